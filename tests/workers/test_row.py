from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pomona.runtime.wire import replace
from pomona.workers.messages import (
    Delta,
    Limits,
    PositionLogprobs,
    Request,
    RequestId,
    Sampling,
    TokenEvent,
    TokenLogprob,
    Usage,
)
from pomona.workers.row import FORBIDDEN, Row
from pomona.workers.sampling.law import Adjustment
from pomona.workers.vocabulary import Vocabulary
from tests.support.tiny_model import train_tokenizer
from tests.workers.tiny_tokenizers import fast, sentencepiece

TOKENIZER = train_tokenizer(320)
VOCABULARY = Vocabulary(fast(TOKENIZER))
EOS = 2
APPLE = tuple(TOKENIZER.encode("🍎", add_special_tokens=False).ids)


def tokens_of(text: str) -> tuple[int, ...]:
    """One token a byte-level character, so that tests choose where tokens end."""
    return tuple(token for character in text for token in TOKENIZER.encode(character).ids)


def request(
    *, prompt: tuple[int, ...] = (5, 6), committed: tuple[int, ...] = (), law: Sampling | None = None, **limits: object
) -> Request:
    return Request(
        id=RequestId("r"),
        model="m",
        prompt=prompt,
        sampling=law or Sampling(seed=1),
        limits=replace(Limits(max_tokens=64), **limits),
        committed=committed,
    )


def row(**settings: object) -> Row:
    return Row(request(**settings), VOCABULARY, frozenset({EOS}))  # type: ignore[arg-type]


def feed(row: Row, tokens: tuple[int, ...]) -> list[TokenEvent]:
    """Commit until the end."""
    events = []
    for token in tokens:
        events.append(row.commit(token))
        if row.finish is not None:
            break
    return events


def text(events: list[TokenEvent]) -> str:
    return "".join(delta.text for event in events for delta in event.deltas)


LAWS = st.builds(
    Sampling,
    seed=st.just(1),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, -0.25]),
    logit_bias=st.dictionaries(st.integers(0, 319), st.floats(-100, 100), max_size=3),
)
LIMITS = st.builds(
    Limits,
    max_tokens=st.integers(1, 14),
    min_tokens=st.integers(0, 6),
    stop=st.lists(st.text(alphabet="ab🍎", min_size=1, max_size=3), max_size=3).map(tuple),
    stop_token_ids=st.sampled_from([(), (40,)]),
    ignore_eos=st.booleans(),
)
# Few tokens, so that stops and unfinished characters are met: a, b, an apple's bytes, the end and a stop token.
TOKENS = st.lists(st.sampled_from([*tokens_of("ab"), *APPLE, EOS, 40, 300]), max_size=16).map(tuple)


@settings(deadline=None, max_examples=150)
@given(LAWS, LIMITS, TOKENS, st.integers(0, 16))
def test_a_row_resumed_from_its_committed_tokens_goes_on_as_if_undisturbed(
    law: Sampling, limits: Limits, tokens: tuple[int, ...], cut: int
) -> None:
    whole = replace(request(law=law), limits=limits)
    undisturbed = Row(whole, VOCABULARY, frozenset({EOS}))
    events = feed(undisturbed, tokens)
    cut = min(cut, len(events))
    resumed = Row(replace(whole, committed=tokens[:cut]), VOCABULARY, frozenset({EOS}))
    if resumed.finish is None:
        assert feed(resumed, tokens[cut:]) == events[cut:]
    else:
        assert (cut, resumed.replayed()) == (
            len(events),
            TokenEvent(id=whole.id, position=cut, finish=undisturbed.finish),
        )
    assert resumed.finish == undisturbed.finish
    assert resumed.committed == undisturbed.committed
    assert resumed.usage() == undisturbed.usage()
    assert resumed.law() == undisturbed.law()
    if resumed.finish is None:
        assert resumed.end("length") == undisturbed.end("length")


@settings(deadline=None, max_examples=150)
@given(LIMITS, TOKENS)
def test_events_carry_positions_without_gaps_and_the_text_of_a_decoder(limits: Limits, tokens: tuple[int, ...]) -> None:
    live = Row(replace(request(), limits=limits), VOCABULARY, frozenset({EOS}))
    events = feed(live, tokens)
    if live.finish is None:
        events.append(live.end("cancelled"))
    assert [event.position for event in events] == list(range(len(events)))
    assert [event.finish is not None for event in events] == [False] * (len(events) - 1) + [True]
    assert live.finish is not None
    decoded = VOCABULARY.join(live.committed).decode(errors="replace")
    if live.finish.stop_text is None:
        ended_by_token = live.finish.reason == "stop"
        own = live.committed[:-1] if ended_by_token else live.committed
        assert text(events) == VOCABULARY.join(own).decode(errors="replace")
    else:
        assert decoded.startswith(text(events) + live.finish.stop_text)


def test_a_fresh_row_goes_on_from_the_prompt_and_a_resumed_one_from_its_last_token() -> None:
    assert (row().last_token, row().tokens, row().remaining) == (6, [5, 6], 64)
    resumed = row(committed=(7, 8))
    assert (resumed.last_token, resumed.tokens, resumed.remaining) == (8, [5, 6, 7, 8], 62)


def test_an_end_of_sequence_token_stops_without_text() -> None:
    live = row()
    first, last = feed(live, (*tokens_of("a"), EOS))
    assert (first.deltas, first.finish) == ((Delta("content", "a"),), None)
    assert (last.tokens, last.deltas) == ((EOS,), ())
    assert last.finish is not None
    assert (last.finish.reason, last.finish.stop_text, last.finish.usage) == ("stop", None, Usage(2, 2))


def test_a_stop_token_ends_like_an_end_of_sequence_even_where_that_is_ignored() -> None:
    (letter,) = tokens_of("q")
    live = row(ignore_eos=True, stop_token_ids=(letter,))
    events = feed(live, (EOS, *tokens_of("ab"), letter))
    assert text(events) == "ab"
    assert live.finish is not None
    assert live.finish.reason == "stop"


def test_logprobs_go_with_content_tokens_only() -> None:
    live = row()
    entry = PositionLogprobs(TokenLogprob(9, b"x", -0.5))
    assert live.commit(tokens_of("a")[0], entry).logprobs == (entry,)
    assert live.commit(EOS, entry).logprobs == ()


def test_length_counts_committed_tokens_and_delivers_what_was_withheld() -> None:
    live = row(max_tokens=3, stop=("abx",))
    events = feed(live, tokens_of("zab"))
    assert [text([event]) for event in events] == ["z", "", "ab"]
    assert live.finish is not None
    assert (live.finish.reason, live.remaining) == ("length", 0)


def test_an_end_of_sequence_at_the_last_token_is_a_stop() -> None:
    live = row(max_tokens=2)
    feed(live, (*tokens_of("a"), EOS))
    assert live.finish is not None
    assert live.finish.reason == "stop"


def test_a_stop_string_ends_the_text_before_it() -> None:
    live = row(stop=("b!", "a b!"))
    events = feed(live, tokens_of("xa b!y"))
    assert text(events) == "x"
    assert live.finish is not None
    assert (live.finish.reason, live.finish.stop_text, live.finish.usage.completion_tokens) == ("stop", "a b!", 5)


def test_a_stop_found_only_at_the_end_is_the_reason() -> None:
    live = row(stop=("\ufffd",), max_tokens=2)
    events = feed(live, (*tokens_of("a"), APPLE[0]))
    assert text(events) == "a"
    assert live.finish is not None
    assert (live.finish.reason, live.finish.stop_text) == ("stop", "\ufffd")


def test_an_error_or_a_cancel_stays_one_whatever_was_withheld() -> None:
    for reason in ("error", "cancelled"):
        live = row(stop=("\ufffd",))
        feed(live, (APPLE[0],))
        last = live.end(reason, "why")
        assert last.finish is not None
        assert (last.finish.reason, last.finish.message, last.finish.stop_text) == (reason, "why", None)


def test_an_unfinished_character_at_the_end_is_a_replacement() -> None:
    live = row(max_tokens=len(APPLE) - 1)
    assert text(feed(live, APPLE)) == "\ufffd"
    assert text(feed(row(max_tokens=len(APPLE)), APPLE)) == "🍎"


def test_the_blank_that_a_tokeniser_puts_in_front_is_no_text() -> None:
    tokenizer = sentencepiece(prepend=True)
    live = Row(request(), Vocabulary(fast(tokenizer)), frozenset({EOS}))
    assert text(feed(live, tuple(tokenizer.encode("apple the").ids))) == "apple the"


@pytest.mark.parametrize("end", [EOS, 40])
def test_before_min_tokens_nothing_ends_the_answer(end: int) -> None:
    live = row(min_tokens=2, stop=("a",), stop_token_ids=(40,))
    assert live.commit(tokens_of("a")[0]).finish is None
    assert live.law().adjustment is not None
    assert live.commit(end).finish is None
    assert live.law().adjustment is None
    assert live.commit(end).finish is not None


def test_a_stop_string_counts_from_the_token_that_makes_min_tokens() -> None:
    live = row(min_tokens=2, stop=("b",))
    events = feed(live, tokens_of("bb"))
    assert text(events) == "b"
    assert live.finish is not None
    assert live.finish.stop_text == "b"


def test_after_the_end_a_commit_is_an_error() -> None:
    live = row(max_tokens=1)
    live.commit(9)
    with pytest.raises(ValueError, match="request r has ended"):
        live.commit(9)


def test_committed_tokens_behind_the_end_are_ignored() -> None:
    ended = row(committed=(*tokens_of("a"), EOS, *tokens_of("b")))
    assert ended.committed == [*tokens_of("a"), EOS]
    assert ended.replayed().finish == ended.finish


def test_no_adjustment_where_the_law_touches_no_logit() -> None:
    assert row(prompt=(5, 6), committed=(7, 8)).law().adjustment is None


def test_the_law_counts_positions_from_the_first_output_token() -> None:
    assert row(committed=(7, 8)).law().position == 2
    assert replace(request(), logprobs=3) == Row(replace(request(), logprobs=3), VOCABULARY, frozenset()).request
    assert Row(replace(request(), logprobs=3), VOCABULARY, frozenset()).law().logprobs == 3


def test_penalties_bias_and_forbidden_ends_add_up() -> None:
    law = Sampling(
        seed=1, repetition_penalty=1.5, presence_penalty=0.25, frequency_penalty=0.5, logit_bias={7: 2.0, 11: -1.0}
    )
    live = row(prompt=(5, 6), law=law, committed=(7, 7, 8), min_tokens=4, stop_token_ids=(8,))
    assert live.law().adjustment == Adjustment(
        tokens=[2, 5, 6, 7, 8, 11],
        repetition=[1.0, 1.5, 1.5, 1.5, 1.5, 1.0],
        add=[FORBIDDEN, 0.0, 0.0, 2.0 - 0.25 - 2 * 0.5, -0.25 - 0.5 + FORBIDDEN, -1.0],
    )


def test_presence_and_frequency_are_over_output_tokens_and_repetition_over_the_prompt_too() -> None:
    output_only = Sampling(seed=1, presence_penalty=1.0, frequency_penalty=0.5)
    assert row(law=output_only).law().adjustment == Adjustment([], [], [])
    assert row(law=output_only, committed=(9,)).law().adjustment == Adjustment([9], [1.0], [-1.5])
    both = Sampling(seed=1, repetition_penalty=2.0)
    assert row(law=both, committed=(9,)).law().adjustment == Adjustment([5, 6, 9], [2.0] * 3, [0.0] * 3)


@settings(deadline=None)
@given(TOKENS)
def test_counts_follow_every_committed_token(tokens: tuple[int, ...]) -> None:
    live = row(law=Sampling(seed=1, frequency_penalty=1.0), ignore_eos=True, max_tokens=99)
    feed(live, tokens)
    adjustment = live.law().adjustment
    assert adjustment is not None
    assert dict(zip(adjustment.tokens, adjustment.add, strict=True)) == {
        token: -float(count) for token, count in Counter(tokens).items()
    }
