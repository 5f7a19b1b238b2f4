"""Reading one stream: moments in, one outcome out."""

import json

import pytest

from pomona.cli.bench.answer import REASON_CHARACTERS, Answer, AnswerReader, Failure, Outcome, shorten


def read(*lines: tuple[float, str], started: float = 100.0, ended: float = 110.0) -> Outcome:
    reader = AnswerReader(started)
    for now, line in lines:
        reader.feed(line, now)
    return reader.outcome(ended)


def chunk(finish: str | None = None, **delta: str) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def usage(tokens: int) -> str:
    return "data: " + json.dumps({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": tokens}})


def test_moments_of_text_make_ttft_tpot_and_gaps() -> None:
    outcome = read(
        (100.2, chunk(role="assistant", content="")),
        (100.5, chunk(content="One")),
        (101.0, chunk(content=" two")),
        (102.0, chunk(content=" three")),
        (102.5, chunk("stop")),
        (102.75, usage(5)),
        (103.0, "data: [DONE]"),
    )
    assert outcome == Answer(
        started=100.0,
        deltas=(100.5, 101.0, 102.0),
        finished=102.5,
        prompt_tokens=7,
        completion_tokens=5,
        finish="stop",
        text="One two three",
        opened=100.2,
    )
    assert outcome.ttft == 0.5
    assert outcome.tpot == (102.5 - 100.5) / 4
    assert outcome.whole == 2.5 / 5
    assert outcome.gaps == (0.5, 1.0)


def test_a_single_token_has_no_time_per_token() -> None:
    outcome = read((101.0, chunk("length", content="x")), (101.0, usage(1)))
    assert isinstance(outcome, Answer)
    assert outcome.tpot is None
    assert outcome.whole == 1.0
    assert outcome.gaps == ()


@pytest.mark.parametrize("name", ["content", "reasoning", "reasoning_content"])
def test_reasoning_counts_as_text_under_either_name(name: str) -> None:
    outcome = read((101.5, chunk(**{name: "hm"})), (102.0, chunk("stop")), (102.0, usage(2)))
    assert isinstance(outcome, Answer)
    assert outcome.ttft == 1.5


def test_usage_on_the_finish_chunk_counts_too() -> None:
    last = {"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}
    outcome = read((101.0, "data:" + json.dumps(last)))
    assert isinstance(outcome, Answer)
    assert outcome.completion_tokens == 3


def test_comments_blank_lines_and_other_fields_carry_nothing() -> None:
    noise = [(100.1, ": keepalive 3/9"), (100.1, ""), (100.1, "event: ping"), (100.1, "data:"), (100.1, "data: {}")]
    outcome = read(*noise, (101.0, chunk("stop", content="x")), (101.0, usage(1)))
    assert isinstance(outcome, Answer)
    assert outcome.deltas == (101.0,)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([chunk(content="x"), usage(1)], "without a finish_reason"),
        ([chunk("stop"), usage(0)], "no text before finish 'stop'"),
        ([chunk("stop", content="x")], "no usage"),
        ([chunk(content="x"), 'data: {"error": {"message": "worker died"}}', chunk("stop"), usage(1)], "worker died"),
        (['data: {"error": "plain words"}'], "plain words"),
        ([chunk(content="x"), "data: {half", chunk("stop"), usage(1)], "unreadable event"),
        (['data: {"choices": [{"delta": {"content": 5}}]}'], "unreadable event"),
    ],
)
def test_a_stream_that_is_not_whole_is_a_failure_with_its_reason(lines: list[str], reason: str) -> None:
    outcome = read(*((101.0, line) for line in lines))
    assert isinstance(outcome, Failure)
    assert reason in outcome.reason
    assert (outcome.started, outcome.finished) == (100.0, 110.0)


def test_reasons_are_one_short_line() -> None:
    assert shorten(" two\n lines ") == "two lines"
    long = shorten("x" * (REASON_CHARACTERS + 1))
    assert len(long) == REASON_CHARACTERS
    assert long.endswith("…")
    assert shorten("x" * REASON_CHARACTERS) == "x" * REASON_CHARACTERS
