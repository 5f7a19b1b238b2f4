from itertools import accumulate
from operator import mul
from statistics import harmonic_mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pomona.config import Method
from pomona.workers.speculation.draft_cost import DraftCost
from pomona.workers.speculation.round_plan import Promise, RoundPlan, plan_round

PLAIN = 1.0


def promise(place: int, chance: float, bound: int = 4, ordered: int = 0, method: Method = "ngram") -> Promise:
    whole = [1.0, *accumulate([chance] * bound, mul)]
    gain = [tokens - 1 for tokens in accumulate(whole)]
    more = 4 - bound
    return Promise(place, method, bound, ordered, whole + whole[-1:] * more, gain + gain[-1:] * more)


def costs(each: float = 0.0, replay: float = 0.0) -> DraftCost:
    made = DraftCost()
    made.proposed("mtp", 1, each)
    made.replayed(replay)
    return made


def test_copies_all_join_where_nothing_else_costs() -> None:
    plan = plan_round(3, [promise(0, 0.5), promise(2, 0.0), promise(3, 0.5, bound=1)], 4, 2.0, None, PLAIN)
    assert plan.drafts() == {0: 2, 2: 2, 3: 1}
    assert plan.tokens == pytest.approx(4 * harmonic_mean([1.75, 1, 1.5, 1]))
    assert plan.rate == pytest.approx(plan.tokens / 2)


def test_what_one_row_gains_does_not_make_up_for_what_seven_lose() -> None:
    """Twelve tokens in the time of eleven, but seven of the eight rows wait so much longer for theirs."""
    alone = plan_round(5, [promise(0, 0.98)], 8, 1.4, None, PLAIN)
    assert 8 + alone.drafting[0].gain[4] > 1.4 * 8
    assert alone.rate < 8 / PLAIN
    assert plan_round(5, [promise(place, 0.98) for place in range(8)], 8, 1.4, None, PLAIN).rate > 8 / PLAIN


def test_a_plain_round_drafts_nothing() -> None:
    plan = plan_round(1, [promise(0, 0.5)], 2, 1.0, costs(0.1, 0.1), PLAIN)
    assert (plan.tokens, plan.seconds, set(plan.drafts().values())) == (2.0, 1.0, {0})


def test_a_row_that_makes_the_round_slower_is_left_out() -> None:
    plan = plan_round(3, [promise(0, 0.9), promise(1, 0.05)], 2, 1.2, costs(replay=1.0), PLAIN)
    assert plan.drafts() == {0: 2}
    assert plan.seconds == pytest.approx(1.2 + (1 - 0.81) * 1.0)


def test_a_row_with_an_order_is_never_left_out_and_brings_no_other_along() -> None:
    ordered = promise(2, 0.05, ordered=2)
    assert plan_round(3, [ordered], 2, 1.2, costs(replay=1.0), PLAIN).drafts() == {2: 2}
    plan = plan_round(3, [promise(0, 0.97), promise(1, 0.07), ordered], 3, 1.2, costs(replay=1.0), PLAIN)
    assert plan.drafts() == {0: 2, 1: 2, 2: 2}  # the replay is due anyhow
    model = promise(0, 0.01, method="mtp")
    assert plan_round(3, [model, ordered], 2, 1.2, costs(each=1.0), PLAIN).drafts() == {2: 2}
    sure = promise(2, 0.98, ordered=2, method="mtp")
    assert plan_round(3, [promise(0, 0.05), sure], 2, 1.2, costs(0.01, 1.0), PLAIN).drafts() == {2: 2}


def test_a_models_drafts_are_paid_once_for_all_rows() -> None:
    rows = [promise(place, 0.5, method="mtp") for place in range(2)]
    plan = plan_round(3, rows, 2, 1.2, costs(0.1), PLAIN)
    assert plan.drafts() == {0: 2, 1: 2}
    assert plan.seconds == pytest.approx(1.2 + 2 * 0.1)
    short = [*rows[:1], promise(1, 0.5, bound=1, method="mtp")]
    assert plan_round(3, short, 2, 1.2, costs(0.1), PLAIN).seconds == pytest.approx(1.2 + 2 * 0.1)


@given(
    st.lists(st.tuples(st.floats(0.01, 0.98), st.integers(1, 4)), min_size=1, max_size=5),
    st.integers(2, 5),
    st.floats(0.0, 2.0),
)
def test_no_choice_of_copying_rows_is_slower_than_plain_decoding(
    rows: list[tuple[float, int]], width: int, replay: float
) -> None:
    """Rows join from the most promising on, which is not always the best set, but never one that loses."""
    promises = [promise(place, chance, bound) for place, (chance, bound) in enumerate(rows)]
    own = plan_round(width, promises, len(rows), 1.3, costs(replay=replay), PLAIN)
    assert own.rate >= rate((), width, len(rows), replay)
    assert own.rate == pytest.approx(rate(own.drafting, width, len(rows), replay))


def rate(chosen: tuple[Promise, ...], width: int, rows: int, replay: float) -> float:
    whole = 1.0
    for each in chosen:
        whole *= each.whole[width - 1]
    tokens = [1 + each.gain[width - 1] for each in chosen] + [1.0] * (rows - len(chosen))
    return RoundPlan(width, chosen, rows * harmonic_mean(tokens), 1.3 + (1 - whole) * replay).rate
