from typing import Any

import mlx.core as mx
import pytest

from pomona.workers.prefill import SHARED_REACH, WORTH_WAITING, Part, Prefill, plan_chunk, run_chunk, without
from pomona.workers.prefix import PrefixStore
from pomona.workers.row import Row
from tests.support.tiny_model import FAMILIES
from tests.workers.engines import ask, in_memory, tiny, words

CLOSE = 1e-4


NO_STORE = in_memory(0)


def prefill_of(
    name: str, prompt: tuple[int, ...], *, family: str = "llama", salt: str = "", store: PrefixStore = NO_STORE
) -> Prefill:
    loaded = tiny(family)
    return Prefill(loaded.model, Row(ask(name, prompt, salt=salt), loaded.vocabulary, loaded.eos), store)


def of_lengths(*lengths: int, family: str = "llama") -> list[Prefill]:
    """Prompts with so many tokens to compute: the last of a prompt is decode's."""
    return [prefill_of(f"p{length}", words(length, length + 1), family=family) for length in lengths]


def sizes(parts: list[Part]) -> list[int]:
    return [part.tokens for part in parts]


def test_a_long_prompt_takes_the_whole_chunk() -> None:
    assert sizes(plan_chunk(of_lengths(100, 3), 64)) == [64]


def test_prompts_that_end_together_share_a_forward_as_far_as_its_tokens_reach() -> None:
    assert sizes(plan_chunk(of_lengths(20, 10, 20, 5), 64)) == [20, 10, 20]
    assert sizes(plan_chunk(of_lengths(20, 10, 20, 5), 80)) == [20, 10, 20, 5]
    assert sizes(plan_chunk(of_lengths(20, 10), 39)) == [20]


def test_padding_counts() -> None:
    assert sizes(plan_chunk(of_lengths(5, 30), 59)) == [5]
    assert sizes(plan_chunk(of_lengths(5, 30), 60)) == [5, 30]


def test_a_prompt_that_does_not_fit_is_not_overtaken() -> None:
    assert sizes(plan_chunk(of_lengths(10, 90, 10), 64)) == [10]


def test_long_prompts_and_other_kinds_of_caches_are_computed_alone() -> None:
    assert sizes(plan_chunk(of_lengths(5, SHARED_REACH + 1, 5), 10**6)) == [5]
    assert sizes(plan_chunk(of_lengths(SHARED_REACH + 1, 5), 10**6)) == [SHARED_REACH + 1]
    for family in ("gemma3_text", "qwen3_next"):
        assert sizes(plan_chunk(of_lengths(5, 5, family=family), 64)) == [5]


def alone(prefill: Prefill, family: str) -> list[Any]:
    """The caches after the same tokens in one forward."""
    other = prefill_of("alone", (*prefill.next_tokens(10**6), 3), family=family)
    run_chunk(tiny(family).model, [Part(other, other.left)])
    return other.caches


@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_add_up_to_one_forward(family: str) -> None:
    (prefill,) = of_lengths(45, family=family)
    whole = alone(prefill, family)
    for _ in range(4):
        before = prefill.done
        assert run_chunk(tiny(family).model, plan_chunk([prefill], 13)) == prefill.done - before
    assert (prefill.done, prefill.left) == (45, 0)
    same_continuation(family, prefill.caches, whole)


def same_continuation(family: str, caches: list[Any], others: list[Any]) -> None:
    token = mx.array([[9]])
    model = tiny(family).model
    assert mx.allclose(model(token, cache=caches), model(token, cache=others), atol=CLOSE).item()


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_prompts_computed_together_are_as_if_computed_alone(family: str) -> None:
    prefills = of_lengths(30, 7, 0, 22, family=family)
    run_chunk(tiny(family).model, plan_chunk(prefills[:1], 12))
    wholes = [alone(prefill_of("", words(length, length + 1), family=family), family) for length in (30, 7, 22)]
    parts = plan_chunk(prefills, 10**6)
    assert sizes(parts) == [18, 7, 0, 22]
    assert run_chunk(tiny(family).model, parts) == 4 * 22
    assert [prefill.done for prefill in prefills] == [30, 7, 0, 22]
    assert [cache.offset for prefill in prefills for cache in prefill.caches[:1]] == [30, 7, 0, 22]
    for prefill, whole in zip([prefills[0], prefills[1], prefills[3]], wholes, strict=True):
        same_continuation(family, prefill.caches, whole)


def test_nothing_to_compute_is_no_forward() -> None:
    (prefill,) = of_lengths(0)
    assert (prefill.left, run_chunk(None, plan_chunk([prefill], 64))) == (0, 0)


def begin_alike(common: int, *salts: str, family: str = "llama", ram_bytes: int = 10**9) -> list[Prefill]:
    """Prompts of 10 tokens more than their common beginning."""
    store = in_memory(ram_bytes)
    return [
        prefill_of(f"p{number}", (*words(1, common), *words(2 + number, 11)), family=family, salt=salt, store=store)
        for number, salt in enumerate(salts)
    ]


def test_prompts_that_begin_alike_wait_for_the_first_and_go_on_from_what_it_computed() -> None:
    prefills = begin_alike(WORTH_WAITING, "", "", "other", "")
    assert [part.prefill for part in plan_chunk(prefills, 10**6)] == [prefills[0], prefills[2]]
    run_chunk(tiny().model, [Part(prefills[0], prefills[0].left)])
    prefills[0].store()
    parts = plan_chunk(prefills[1:], 10**6)
    assert [(part.prefill, part.tokens) for part in parts] == [
        (prefills[1], 10),
        (prefills[2], WORTH_WAITING + 10),
        (prefills[3], 10),
    ]
    assert [prefill.restored for prefill in prefills] == [0, WORTH_WAITING, 0, WORTH_WAITING]
    whole = alone(prefill_of("", (*words(1, WORTH_WAITING), *words(3, 11))), "llama")
    run_chunk(tiny().model, parts)
    same_continuation("llama", prefills[1].caches, whole)


def test_nobody_waits_for_a_short_common_beginning_or_for_what_will_not_be_kept() -> None:
    for prefills in (begin_alike(WORTH_WAITING - 1, "", ""), begin_alike(WORTH_WAITING, "", "", ram_bytes=0)):
        assert [part.prefill for part in plan_chunk(prefills, 10**6)] == prefills


def test_a_prompt_that_was_looked_up_too_early_looks_again_until_it_computes() -> None:
    first, second = begin_alike(WORTH_WAITING, "", "")
    second.begin()
    assert second.done == 0
    run_chunk(tiny().model, [Part(first, first.left)])
    first.store()
    second.begin()
    assert (second.restored, second.done, second.rows[0].cached_tokens) == (WORTH_WAITING, WORTH_WAITING, WORTH_WAITING)
    run_chunk(tiny().model, [Part(second, 3)])
    second.begin()
    assert (second.restored, second.done) == (WORTH_WAITING, WORTH_WAITING + 3)


def test_a_prefill_serves_the_same_tokens_under_the_same_salt() -> None:
    prefill = prefill_of("a", words(1, 20), salt="x")
    loaded = tiny()

    def row(prompt: tuple[int, ...], salt: str, committed: tuple[int, ...] = ()) -> Row:
        return Row(ask("b", prompt, salt=salt, committed=committed), loaded.vocabulary, loaded.eos)

    assert prefill.serves(row(words(1, 20), "x"))
    assert prefill.serves(row((*words(1, 20)[:-1], 3), "x"))  # the last token is decode's
    assert prefill.serves(row(words(1, 20)[:15], "x", committed=words(1, 20)[15:]))
    assert not prefill.serves(row(words(1, 20), "y"))
    assert not prefill.serves(row(words(1, 19), "x"))
    assert not prefill.serves(row(words(2, 20), "x"))


def test_a_prefill_ends_with_its_last_row() -> None:
    first, second = of_lengths(10, 20)
    loaded = tiny()
    twin = Row(ask("twin", words(10, 11)), loaded.vocabulary, loaded.eos)
    first.attach(twin)
    assert without([first, second], first.rows[0]) == ([first, second], [])
    assert first.rows == [twin]
    assert without([first, second], twin) == ([second], [first])
