"""Speculation by enumeration: the joint law of several tokens, all branches followed, is that of plain sampling."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from pomona.workers.messages import Sampling
from pomona.workers.randomness import Purpose, uniform
from pomona.workers.sampling import reference
from pomona.workers.sampling.reference import Vector
from pomona.workers.speculation.exact import (
    Chance,
    Keyed,
    Verified,
    acceptance_probability,
    residual_distribution,
    speculative_output_marginal,
    verify_one_token,
    verify_round,
)
from tests.workers.speculation.branches import law_of

EXACT = 1e-12
"""Total variation that is rounding."""

Tokens = tuple[int, ...]
Law = dict[Tokens, float]
Origin = Callable[["Target", Tokens], "Vector | Tokens"]
"""What a history is drafted from: a distribution, or tokens that are point masses."""


@dataclass(frozen=True, eq=False)
class Target:
    """A model over a few tokens, whose logits are any function of the history, and how it is sampled."""

    vocabulary: int
    sampling: Sampling
    masks: bool = False
    """Some histories forbid tokens, as a grammar does."""

    def law(self, history: Tokens, *, xtc: bool = False) -> Vector:
        return _target_law(self, history, xtc)

    def drawn_law(self, history: Tokens, chance: Chance) -> Vector:
        """The law of the position, once it is drawn whether XTC is at work there."""
        share = self.sampling.xtc_probability
        at_work = share > 0 and chance(np.array([share, 1 - share]), len(history), Purpose.XTC) == 0
        return self.law(history, xtc=at_work)

    def mixed_law(self, history: Tokens) -> Vector:
        share = self.sampling.xtc_probability
        return np.asarray((1 - share) * self.law(history) + share * self.law(history, xtc=True))


@cache
def _target_law(target: Target, history: Tokens, xtc: bool) -> Vector:
    random = np.random.default_rng([1, *history])
    logits = random.normal(0, 1.5, target.vocabulary)
    values = reference.adjusted(logits, target.sampling, prompt=(0,), output=history)
    if target.masks:
        allowed = 1 + int(random.integers(2**target.vocabulary - 1))
        values = reference.masked(values, np.array([allowed], dtype=np.uint32))
    return reference.distribution(values, target.sampling, xtc=xtc)


def random_law(key: int, history: Tokens, vocabulary: int) -> Vector:
    return np.random.default_rng([key, *history]).dirichlet(np.full(vocabulary, 0.7))


def support(target: Target, history: Tokens, *, of: bool) -> Vector:
    """Even over the tokens that the target may give, or may not; even over all where there are none."""
    kept = (target.law(history) > 0) == of
    return np.asarray(kept / kept.sum() if kept.any() else np.full(target.vocabulary, 1 / target.vocabulary))


ORIGINS: dict[str, Origin] = {
    "another model": lambda target, history: random_law(2, history, target.vocabulary),
    "another model that ignores the history": lambda target, history: random_law(3, (), target.vocabulary),
    "the target itself": lambda target, history: target.law(history),
    "nearly the target": lambda target, history: (
        0.9 * target.law(history) + 0.1 * random_law(4, history, target.vocabulary)
    ),
    "even": lambda target, history: np.full(target.vocabulary, 1 / target.vocabulary),
    "the target's support": lambda target, history: support(target, history, of=True),
    "none of the target's support": lambda target, history: support(target, history, of=False),
    "a few tokens": lambda target, history: np.eye(target.vocabulary)[len(history) % 2 : 2].mean(axis=0),
    "one token, said to be sampled": lambda target, history: np.eye(target.vocabulary)[len(history) % 2],
    "another model's likeliest": lambda target, history: (int(np.argmax(random_law(5, history, target.vocabulary))),),
    "the target's likeliest": lambda target, history: (int(np.argmax(target.law(history))),),
    "always the same": lambda target, history: (1,),
    "sampled and point masses by turns": lambda target, history: (
        (len(history) % target.vocabulary,) if sum(history) % 2 else random_law(6, history, target.vocabulary)
    ),
}

PLAIN = Sampling(seed=0)
LAWS = {
    "plain": Target(3, PLAIN),
    "tempered": Target(3, Sampling(seed=0, temperature=0.6)),
    "greedy": Target(3, Sampling(seed=0, temperature=0.0)),
    "filtered": Target(3, Sampling(seed=0, temperature=1.3, top_p=0.8, min_p=0.1, top_k=2)),
    "penalised": Target(3, Sampling(seed=0, repetition_penalty=1.5, presence_penalty=0.4, frequency_penalty=0.7)),
    "biased": Target(3, Sampling(seed=0, temperature=0.8, logit_bias={0: 1.5, 2: -2.0})),
    "masked": Target(3, PLAIN, masks=True),
    "all": Target(
        3,
        Sampling(
            seed=0,
            temperature=0.9,
            top_p=0.9,
            top_k=2,
            repetition_penalty=1.2,
            frequency_penalty=0.5,
            logit_bias={1: 1},
        ),
        masks=True,
    ),
}


def speculated(target: Target, origin: Origin, history: Tokens, depth: int, chance: Chance) -> Tokens:
    """A round: the history with what one verify forward appends to it."""
    drafts: list[int] = []
    origins: list[Vector | None] = []
    targets = [target.drawn_law(history, chance)]
    for _ in range(depth):
        behind = (*history, *drafts)
        match origin(target, behind):
            case tuple() as forced:
                drafts.append(forced[0])
                origins.append(None)
            case q:
                drafts.append(chance(q, len(behind), Purpose.DRAFT))
                origins.append(q)
        targets.append(target.drawn_law((*history, *drafts), chance))
    return (*history, *verify_round(targets, drafts, origins, len(history), chance))


def joint(target: Target, origin: Origin, length: int, depth: int) -> Law:
    """The law of the first `length` tokens, round after round; a round begins with nothing but the history."""
    reached: Law = {(): 1.0}
    for size in range(length):
        for history in [tokens for tokens in reached if len(tokens) == size]:
            weight = reached.pop(history)

            def one_round(chance: Chance, history: Tokens = history) -> Tokens:
                return speculated(target, origin, history, depth, chance)[:length]

            for tokens, share in law_of(one_round).items():
                reached[tokens] = reached.get(tokens, 0.0) + weight * share
    return reached


def plain(target: Target, length: int) -> Law:
    return {
        tokens: math.prod(target.mixed_law(tokens[:place])[tokens[place]] for place in range(length))
        for tokens in product(range(target.vocabulary), repeat=length)
    }


def variation(one: Law, other: Law) -> float:
    return sum(abs(one.get(tokens, 0.0) - other.get(tokens, 0.0)) for tokens in one.keys() | other.keys()) / 2


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("origin", ORIGINS)
def test_the_joint_law_of_three_tokens_is_that_of_plain_sampling(origin: str, law: str) -> None:
    assert variation(joint(LAWS[law], ORIGINS[origin], 3, 2), plain(LAWS[law], 3)) < EXACT


@pytest.mark.parametrize(("vocabulary", "length", "depth"), [(5, 1, 1), (5, 2, 1), (4, 2, 3), (2, 4, 3), (3, 4, 3)])
@pytest.mark.parametrize("origin", ["another model", "nearly the target", "sampled and point masses by turns"])
def test_other_lengths_depths_and_vocabularies_have_it_too(
    origin: str, vocabulary: int, length: int, depth: int
) -> None:
    target = replace(LAWS["all"], vocabulary=vocabulary)
    assert variation(joint(target, ORIGINS[origin], length, depth), plain(target, length)) < EXACT


@pytest.mark.parametrize("origin", ["another model", "another model's likeliest", "sampled and point masses by turns"])
def test_where_xtc_is_at_work_now_and_then_the_joint_law_is_the_mixture(origin: str) -> None:
    target = Target(3, Sampling(seed=0, temperature=0.8, xtc_probability=0.4, xtc_threshold=0.2, top_k=2))
    assert variation(joint(target, ORIGINS[origin], 3, 1), plain(target, 3)) < EXACT
    assert (
        variation(joint(replace(target, vocabulary=4), ORIGINS[origin], 2, 2), plain(replace(target, vocabulary=4), 2))
        < EXACT
    )


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("law", ["plain", "all"])
def test_numbers_that_belong_to_positions_may_serve_again_in_later_rounds(origin: str, law: str) -> None:
    """What a refused round drew behind its end decided nothing that is kept; the next depth may hang on the rest."""
    target = replace(LAWS[law], vocabulary=2)

    def three_tokens(chance: Chance) -> Tokens:
        history: Tokens = ()
        depth = 2
        while len(history) < 3:
            longer = speculated(target, ORIGINS[origin], history, depth, chance)
            depth = min(2, len(longer) - len(history))
            history = longer
        return history[:3]

    assert variation(law_of(three_tokens, keyed=True), plain(target, 3)) < EXACT


def test_the_enumeration_sees_a_coin_that_is_off_by_a_little() -> None:
    def forgiving(chance: Chance) -> Tokens:
        p, q = np.array([0.5, 0.5]), np.array([0.6, 0.4])
        draft = chance(q, 0, Purpose.DRAFT)
        acceptance = min(1.0, acceptance_probability(p, q, draft) + 1e-9)
        kept = chance(np.array([acceptance, 1 - acceptance]), 0, Purpose.COIN) == 0
        return (draft if kept else chance(residual_distribution(p, q), 0, Purpose.RESIDUAL),)

    assert variation(law_of(forgiving), {(0,): 0.5, (1,): 0.5}) > EXACT


def pairs() -> Iterator[tuple[Vector, Vector]]:
    """Laws and what drafts come from, of every relation between their supports."""
    random = np.random.default_rng(7)
    for size in (1, 2, 3, 8, 40) * 8:
        p, q = random.dirichlet(np.full(size, 0.5)), random.dirichlet(np.full(size, 0.5))
        few = np.where(np.arange(size) % 2 == 0, p, 0)
        yield from [(p, q), (p, p), (p, few / few.sum()), (few / few.sum(), p), (p, np.eye(size)[size // 2])]
        if size > 1:
            rest = p - few
            yield few / few.sum(), rest / rest.sum()


def test_the_marginal_is_p_whatever_q_is() -> None:
    for p, q in pairs():
        assert np.abs(speculative_output_marginal(p, q) - p).sum() / 2 < EXACT


def test_the_marginal_is_the_law_of_a_verified_token() -> None:
    for p, q in pairs():
        if len(p) > 8:
            continue

        def verified(chance: Chance, p: Vector = p, q: Vector = q) -> int:
            return verify_one_token(p, q, chance(q, 0, Purpose.DRAFT), 0, chance).token

        law = law_of(verified)
        marginal = speculative_output_marginal(p, q)
        assert [law.get(token, 0.0) for token in range(len(p))] == pytest.approx(marginal, abs=EXACT)


def test_the_acceptance_is_the_share_of_p_in_q_and_one_at_most() -> None:
    p, q = np.array([0.2, 0.5, 0.3, 0.0]), np.array([0.4, 0.25, 0.3, 0.05])
    assert [acceptance_probability(p, q, draft) for draft in range(4)] == [0.5, 1.0, 1.0, 0.0]


def test_the_residual_is_what_p_has_above_q() -> None:
    p, q = np.array([0.2, 0.5, 0.3, 0.0]), np.array([0.5, 0.2, 0.2, 0.1])
    assert residual_distribution(p, q) == pytest.approx([0, 0.75, 0.25, 0])


def test_without_a_residual_p_itself_is_drawn_from() -> None:
    p = np.array([0.5, 0.25, 0.25])
    assert residual_distribution(p, p).tolist() == p.tolist()
    less = np.array([0.5, 0.25, 0.25 - 2**-40])
    assert residual_distribution(less, p) == pytest.approx(p, abs=1e-9)
    assert residual_distribution(less, p).sum() == pytest.approx(1, abs=1e-15)
    refuse: Chance = lambda probabilities, position, purpose: 1  # noqa: E731
    assert verify_one_token(less, p, 2, 0, refuse) == Verified(1, False)


def test_a_point_mass_is_accepted_where_the_plain_draw_gives_it() -> None:
    p = np.array([0.3, 0.7])
    for position in range(200):
        token = int(uniform(4, position, Purpose.SAMPLE) >= 0.3)
        for draft in range(2):
            assert verify_one_token(p, None, draft, position, Keyed(4)) == Verified(token, token == draft)


def test_a_coin_keeps_the_draft_below_the_acceptance_and_the_residual_has_a_number_of_its_own() -> None:
    p, q = np.array([0.2, 0.4, 0.4]), np.array([1.0, 0.0, 0.0])
    for position in range(300):
        kept = uniform(5, position, Purpose.COIN) < 0.2
        other = 1 + int(uniform(5, position, Purpose.RESIDUAL) >= 0.5)
        assert verify_one_token(p, q, 0, position, Keyed(5)) == Verified(0 if kept else other, kept)


def test_an_impossible_draft_is_refused_even_by_a_coin_of_zero() -> None:
    """The lowest number there is decides for the first index that has any probability."""
    assert reference.pick(np.array([0.0, 1.0]), 0.0) == 1
    assert reference.pick(np.array([0.25, 0.75]), 0.25) == 1
    assert reference.pick(np.array([1.0, 0.0]), math.nextafter(1, 0)) == 0


def test_a_round_ends_at_the_first_token_that_is_not_the_draft() -> None:
    sure = [np.eye(4)[token] for token in (2, 1, 3)]
    even = np.full(4, 0.25)

    def tokens(*drafts: int) -> list[int]:
        return verify_round(sure[: len(drafts) + 1], drafts, [even] * len(drafts), 0, Keyed(1))

    assert tokens() == [2]
    assert (tokens(2), tokens(0)) == ([2, 1], [2])
    assert (tokens(2, 1), tokens(2, 0), tokens(0, 1)) == ([2, 1, 3], [2, 1], [2])


def test_a_round_draws_each_token_with_the_numbers_of_its_position() -> None:
    even = np.full(8, 0.125)
    numbers = [int(uniform(3, position, Purpose.SAMPLE) * 8) for position in range(5, 8)]
    assert verify_round([even] * 3, numbers[:2], [None, None], 5, Keyed(3)) == numbers


def test_a_draft_that_q_cannot_have_given_raises() -> None:
    p, q = np.array([0.5, 0.5]), np.array([1.0, 0.0])
    with pytest.raises(ValueError, match="draft 1 has probability 0"):
        acceptance_probability(p, q, 1)
    with pytest.raises(ValueError, match="draft 1 has probability 0"):
        verify_one_token(p, q, 1, 0, Keyed(0))


@pytest.mark.parametrize("bad", [[0.5, math.nan], [-0.5, 1.5], [0.5, 0.6], [math.inf, 0.5], [0.0, 0.0], [0.5, 0.49]])
def test_what_is_no_distribution_raises(bad: list[float]) -> None:
    good, other = np.array([0.5, 0.5]), np.array(bad)
    for p, q, name in ((good, other, "q"), (other, good, "p")):
        with pytest.raises(ValueError, match=f"^{name} is no distribution"):
            residual_distribution(p, q)
        with pytest.raises(ValueError, match=f"^{name} is no distribution"):
            acceptance_probability(p, q, 0)


def test_lengths_that_do_not_fit_raise() -> None:
    p = np.array([0.5, 0.5])
    with pytest.raises(ValueError, match="p is over 2 tokens and q over 3"):
        residual_distribution(p, np.full(3, 1 / 3))
    for targets, origins in (([p], [None]), ([p] * 3, [None]), ([p] * 2, [])):
        message = f"1 drafts from {len(origins)} distributions need 2 laws, not {len(targets)}"
        with pytest.raises(ValueError, match=message):
            verify_round(targets, [0], origins, 0, Keyed(0))
