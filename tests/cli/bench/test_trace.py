from collections import Counter
from itertools import pairwise
from pathlib import Path

import msgspec
from typer.testing import CliRunner

from pomona.cli.bench import bench_app
from pomona.cli.bench.trace import Traced, TracePlan, TraceWay, budget_of, conclude, visited, visits
from tests.cli.bench.test_reuse import HERE, answer

PLAN = TracePlan(
    conversations=50,
    turns=3,
    systems=4,
    system_words=10,
    question_words=5,
    active=6,
    share=0.1,
    max_tokens=4,
    seed="0",
)


def test_every_conversation_has_all_its_turns_in_order_and_few_are_under_way_at_once() -> None:
    trace = list(visits(PLAN))
    assert trace == list(visits(PLAN))
    begun: Counter[int] = Counter()
    for visit in trace:
        assert visit.turn == begun[visit.conversation]
        begun[visit.conversation] += 1
        assert sum(turns < PLAN.turns for turns in begun.values()) <= PLAN.active
    assert begun == dict.fromkeys(range(PLAN.conversations), PLAN.turns)
    neighbours = pairwise(trace)
    assert sum(one.conversation != other.conversation for one, other in neighbours) > PLAN.conversations


def test_a_conversation_keeps_its_system_prompt_and_the_first_is_the_most_popular() -> None:
    system = {visit.conversation: visit.system for visit in visits(PLAN)}
    assert all(visit.system == system[visit.conversation] for visit in visits(PLAN))
    popular = Counter(system.values())
    assert set(popular) == set(range(PLAN.systems))
    assert popular.most_common(1)[0][0] == 0


def test_hits_are_shares_of_the_prompt_tokens_of_a_way() -> None:
    first, second = list(visits(PLAN))[:2]
    answered = {
        TraceWay.ALL: [visited(first, answer(100, 0, 2.0)), visited(second, answer(300, 100, 1.0))],
        TraceWay.MEMORY: [visited(first, answer(100, 50, 1.0))],
        TraceWay.MLX_LM: [],
    }
    traced = conclude(HERE, PLAN, 1000, answered, interrupted=True)
    assert [(line.way, line.hit_ratio, line.budget_bytes) for line in traced.lines] == [
        (TraceWay.ALL, 0.25, None),
        (TraceWay.MEMORY, 0.5, 100),
    ]
    assert traced.lines[0].mean_ttft_ms == 1500
    assert traced.requests[TraceWay.MLX_LM] == ()
    assert budget_of(PLAN, 5) == 1
    assert conclude(HERE, PLAN, None, {}, interrupted=True).lines == ()


def test_conversations_go_through_both_servers_with_the_same_memory(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    sizes = ["--trace", "4", "--systems", "2", "--system-words", "60", "--trace-turns", "2", "--question-words", "4"]
    arguments = ["cache", "--tiny", *sizes, "--share", "0.6", "--max-tokens", "4", "--out", str(out)]
    result = CliRunner().invoke(bench_app, [*arguments, "--ready-timeout", "120"], standalone_mode=False)
    assert result.return_value == 0, result.output
    traced = msgspec.json.decode(result.stdout, type=Traced)
    assert traced == msgspec.json.decode(out.read_bytes(), type=Traced)
    assert [line.way for line in traced.lines] == list(TraceWay)
    assert traced.working_set_bytes is not None
    assert [line.requests for line in traced.lines] == [8] * 4
    budget = int(0.6 * traced.working_set_bytes)
    assert [line.budget_bytes for line in traced.lines] == [None, budget, budget, budget]
    assert 1 > traced.lines[0].hit_ratio >= traced.lines[1].hit_ratio > 0
    assert "All of the trace takes" in result.stderr
