"""Requests and arrivals are drawn beforehand, and follow from the seed alone."""

from hypothesis import given
from hypothesis import strategies as st

from pomona.cli.bench.asks import arrivals, asks
from pomona.cli.bench.mixture import Mixture, Share

WORDS = Mixture((Share(4, 1.0), Share(30, 1.0)))
TOKENS = Mixture((Share(2, 1.0), Share(50, 1.0)))


def test_the_same_seed_asks_the_same_and_another_does_not() -> None:
    first = list(asks("a", 20, WORDS, TOKENS, 0.5))
    assert first == list(asks("a", 20, WORDS, TOKENS, 0.5))
    assert {one.prompt for one in first}.isdisjoint(one.prompt for one in asks("b", 20, WORDS, TOKENS, 0.5))


def test_the_cancel_share_changes_neither_prompts_nor_lengths() -> None:
    stay, leave = (list(asks("a", 50, WORDS, TOKENS, share)) for share in (0.0, 1.0))
    assert [(one.prompt, one.max_tokens) for one in stay] == [(one.prompt, one.max_tokens) for one in leave]
    assert {one.leaves_after for one in stay} == {None}
    assert all(one.leaves_after is not None for one in leave)


def test_about_the_share_of_clients_leaves() -> None:
    leaving = [one.leaves_after for one in asks("a", 2000, Mixture.of(1), TOKENS, 0.1)]
    assert 140 < sum(after is not None for after in leaving) < 260


@given(st.integers(0, 60), st.floats(0, 1), st.integers(2, 40))
def test_a_client_leaves_before_its_answer_can_be_whole(requests: int, cancel: float, limit: int) -> None:
    drawn = list(asks("a", requests, Mixture.of(1), Mixture.of(limit), cancel))
    assert len({one.prompt for one in drawn}) == requests
    assert all(one.leaves_after is None or 1 <= one.leaves_after < limit for one in drawn)


@given(st.text(max_size=4), st.integers(0, 60), st.floats(0.01, 1000))
def test_arrivals_ascend_and_follow_from_the_seed(seed: str, requests: int, rate: float) -> None:
    moments = arrivals(seed, requests, rate)
    assert len(moments) == requests
    assert list(moments) == sorted(moments)
    assert all(0 < moment <= requests / rate for moment in moments)
    assert moments == arrivals(seed, requests, rate)


def test_arrivals_are_poisson() -> None:
    """The count in a unit of time has its mean as its variance."""
    moments = arrivals("0", 20_000, 5.0)
    counts = [0] * int(moments[-1])
    for moment in moments:
        if moment < len(counts):
            counts[int(moment)] += 1
    mean = sum(counts) / len(counts)
    variance = sum((count - mean) ** 2 for count in counts) / len(counts)
    assert 4.95 < mean < 5.05
    assert 0.9 < variance / mean < 1.1
