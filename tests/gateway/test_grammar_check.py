"""Constraints are compiled elsewhere first: what takes too much is killed there, and everything else goes on."""

import asyncio
import json
from collections.abc import AsyncIterator

import psutil
import pytest

from pomona.gateway.errors import ApiError
from pomona.gateway.grammar_check import KILLED_S, GrammarChecker
from pomona.runtime.mailbox import now
from pomona.workers.messages import Constraint

ENDLESS = Constraint("json_schema", json.dumps({"type": "integer", "multipleOf": 12345678}))
"""Compiling it takes minutes and gigabytes."""
GOOD = Constraint("regex", "[a-z]+")


@pytest.fixture
async def checkers() -> AsyncIterator[list[GrammarChecker]]:
    made: list[GrammarChecker] = []
    yield made
    for checker in made:
        await checker.close()
    assert processes() == []


def processes() -> list[psutil.Process]:
    """Only those that still run."""
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE and "grammar" in " ".join(child.cmdline())
    ]


def checker(made: list[GrammarChecker], **settings: float) -> GrammarChecker:
    made.append(GrammarChecker(**settings))  # type: ignore[arg-type]
    return made[-1]


async def refusal(one: GrammarChecker, constraint: Constraint) -> ApiError:
    with pytest.raises(ApiError) as failure:
        await one.check(constraint, "field")
    return failure.value


async def test_what_can_be_followed_passes_and_what_cannot_is_a_400_with_the_reason(
    checkers: list[GrammarChecker],
) -> None:
    one = checker(checkers)
    await one.check(GOOD, "field")
    await one.check(Constraint("json_object"), "field")
    for constraint, reason in (
        (Constraint("regex", "(a"), "unclosed group"),
        (Constraint("regex", "(?=a)b"), "look-around"),
        (Constraint("lark", "start: ((("), "Expected token"),
        (Constraint("lark", 'other: "a"'), "start"),
        (Constraint("lark", "start: <|no_such_token|>"), "no_such_token"),
        (Constraint("json_schema", '{"$ref": "#/$defs/nowhere"}'), "nowhere"),
        (Constraint("json_schema", '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}'), "without end"),
        (Constraint("json_schema", '{"type": "integer", "minimum": 5, "maximum": 3}'), "minimum"),
        (Constraint("json_schema", "false"), ""),
        (Constraint("json_schema", '{"const": "\\u0001"}'), "control character"),
    ):
        error = await refusal(one, constraint)
        assert (error.status, error.param) == (400, "field")
        assert error.message.startswith("field: ")
        assert reason in error.message
        assert "\n" not in error.message
    assert len(processes()) == 1


async def test_what_takes_too_long_is_killed_and_the_next_one_is_answered(checkers: list[GrammarChecker]) -> None:
    one = checker(checkers, limit_s=1.0, limit_bytes=1 << 40)
    await one.check(GOOD, "field")
    (first,) = processes()
    error = await refusal(one, ENDLESS)
    assert error.status == 400
    assert "more than 1 s to compile" in error.message
    assert not first.is_running()
    await one.check(Constraint("regex", "[0-9]"), "field")
    assert "more than 1 s" in (await refusal(one, ENDLESS)).message


async def test_what_takes_too_much_memory_is_killed(checkers: list[GrammarChecker]) -> None:
    one = checker(checkers, limit_s=60.0, limit_bytes=16 << 20)
    error = await refusal(one, ENDLESS)
    assert error.status == 400
    assert "more than 16 MiB of memory" in error.message
    await one.check(GOOD, "field")


async def test_a_process_that_dies_takes_one_constraint_with_it(checkers: list[GrammarChecker]) -> None:
    one = checker(checkers)
    await one.check(GOOD, "field")
    (first,) = processes()
    first.kill()
    first.wait(10)
    await refusal(one, Constraint("regex", "[a-b]"))
    await one.check(Constraint("regex", "[c-d]"), "field")


async def test_one_that_took_too_much_is_tried_again_later(
    checkers: list[GrammarChecker], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = checker(checkers)
    await one.check(GOOD, "field")
    processes()[0].kill()
    slow = Constraint("regex", "[e-f]")
    assert "make it simpler" in (await refusal(one, slow)).message
    assert "make it simpler" in (await refusal(one, slow)).message
    later = now() + KILLED_S
    monkeypatch.setattr("pomona.gateway.grammar_check.now", lambda: later)
    await one.check(slow, "field")


async def test_a_constraint_is_compiled_once_and_the_event_loop_never_waits(checkers: list[GrammarChecker]) -> None:
    one = checker(checkers, limit_s=1.0)
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    ticking = asyncio.create_task(tick())
    asked = [asyncio.create_task(refusal(one, ENDLESS)) for _ in range(50)]
    errors = await asyncio.gather(*asked)
    ticking.cancel()
    assert turns > 20
    assert len({error.message for error in errors}) == 1
    assert [await refusal(one, ENDLESS) for _ in range(3)]
    assert one._asked == {}


async def test_no_more_than_so_many_wait(checkers: list[GrammarChecker]) -> None:
    one = checker(checkers, limit_s=0.5, waiting=4)
    endless = [json.dumps({"type": "integer", "multipleOf": 12345678 + index}) for index in range(4)]
    asked = [asyncio.create_task(refusal(one, Constraint("json_schema", schema))) for schema in endless]
    await asyncio.sleep(0)
    error = await refusal(one, GOOD)
    assert (error.status, error.headers["retry-after"]) == (503, "5")
    assert [each.status for each in await asyncio.gather(*asked)] == [400] * 4
    await one.check(GOOD, "field")


async def test_a_client_that_leaves_takes_the_verdict_from_nobody(checkers: list[GrammarChecker]) -> None:
    one = checker(checkers)
    leaver = asyncio.create_task(one.check(GOOD, "field"))
    stayer = asyncio.create_task(one.check(GOOD, "field"))
    await asyncio.sleep(0)
    leaver.cancel()
    await stayer
    with pytest.raises(asyncio.CancelledError):
        await leaver


async def test_old_verdicts_are_forgotten(checkers: list[GrammarChecker]) -> None:
    one = checker(checkers, known=2)
    for pattern in ("a", "b", "c"):
        await one.check(Constraint("regex", pattern), "field")
    assert len(one._known) == 2
