"""The policy against machines whose costs are known, and rows whose acceptance is."""

from collections.abc import Callable
from statistics import mean

import pytest

from pomona.config import DEEPEST
from pomona.workers.messages import RequestId
from pomona.workers.speculation.depth import DEPTHS, DepthPolicy, Outlook
from pomona.workers.speculation.ledger import AT_FIRST, SHARE
from tests.workers.speculation.simulated import (
    Cost,
    Drafted,
    Fixed,
    Text,
    chatting,
    copying,
    gpu,
    run,
    small_model_on_a_cpu,
    steep,
)

MACHINES = [small_model_on_a_cpu, gpu, steep]


def ngram(key: str, available: int = DEEPEST, strength: int = 30, **more: object) -> Outlook:
    return Outlook(RequestId(key), "ngram", available, strength=strength, **more)  # type: ignore[arg-type]


def warm(cost: Cost = gpu, rows: int = 1, widths: int = DEEPEST + 1) -> DepthPolicy:
    """One that has seen all widths, and makes no probes."""
    policy = DepthPolicy(probe_share=0.0)
    for _ in range(8):
        for width in range(1, widths + 1):
            policy.verified(rows, width, cost(rows, width))
            policy.tested(RequestId("before"), "ngram", 0, 20 * rows)  # as if so much were won
    return policy


def plain_rate(cost: Cost, rows: int) -> float:
    return rows / cost(rows, 1)


def share_of_best(
    texts: Callable[[int], list[Text]], cost: Cost, rounds: int, *, replays: bool = False, seeds: int = 3
) -> float:
    """Its rate over that of the fixed depth which, afterwards, turns out to have been the best for the same texts."""
    shares = []
    for seed in range(seeds):
        fixed = [
            run(Fixed(depth), texts(seed), cost, rounds, replays=replays).rate for depth in (0, *DEPTHS[::2], 2, 16)
        ]
        shares.append(run(DepthPolicy(), texts(seed), cost, rounds, replays=replays).rate / max(fixed))
    return mean(shares)


# one answer


def test_before_any_step_nothing_is_drafted() -> None:
    assert DepthPolicy().choose([ngram("a")], 1) == [0]


def test_one_plain_step_is_enough_to_try() -> None:
    policy = DepthPolicy()
    policy.verified(1, 1, 0.06)
    assert policy.choose([ngram("a")], 1)[0] > 0


def test_rows_without_drafts_draft_nothing() -> None:
    policy = warm(rows=2)
    assert policy.choose([], 2) == []
    assert policy.choose([ngram("a", available=0), ngram("b", available=-1)], 2) == [0, 0]
    drafts = policy.choose([ngram("a", available=0), ngram("b")], 2)
    assert drafts[0] == 0
    assert drafts[1] > 0


def test_no_row_drafts_more_than_it_can_or_may() -> None:
    policy = warm(rows=4)
    outlooks = [ngram("a", available=2), ngram("b"), ngram("c", requested=1), ngram("d", available=99)]
    first, second, third, fourth = policy.choose(outlooks, 4)
    assert (first, third) == (2, 1)
    assert 2 < second == fourth <= DEEPEST
    more = [
        ngram("a", 99, requested=99),
        ngram("b", 99, requested=99, named=True),
        ngram("c", requested=-1, named=True),
    ]
    assert policy.choose(more, 4) == [DEEPEST, DEEPEST, 0]


def test_asking_again_changes_nothing() -> None:
    policy, once = DepthPolicy(), DepthPolicy()
    texts, same = [copying(1), chatting(2)], [copying(1), chatting(2)]
    for _ in range(200):
        answers = [policy.choose([text.outlook() for text in texts], 2) for _ in range(3)]
        answer = once.choose([text.outlook() for text in same], 2)
        assert answers == [answer] * 3
        for each, rows in ((policy, texts), (once, same)):
            each.verified(2, 1 + max(answer), gpu(2, 1 + max(answer)))
            for text, depth in zip(rows, answer, strict=True):
                each.tested(text.key, "ngram", depth, text.advance(depth))


def test_all_rows_pay_for_the_width() -> None:
    """One row of four that copies is not worth that all become three tokens wide; all four are."""
    policy = warm(small_model_on_a_cpu, 4, 5)
    assert policy.choose([ngram("a", 2)], 4) == [0]
    assert policy.choose([ngram(key, 2) for key in "abcd"], 4) == [2] * 4


def test_rows_with_fewer_drafts_count_at_greater_widths_too() -> None:
    policy = warm(lambda rows, width: {1: 1.0, 2: 1.5, 3: 1.55}[width], 3, 3)
    assert policy.choose([ngram("a", 1), ngram("b", 1), ngram("c", 2)], 3) == [1, 1, 2]


def test_an_accepted_token_wins_its_share_of_a_plain_step_unless_it_was_ordered() -> None:
    for named, won in ((False, 1.0), (True, 0.0)):
        policy = DepthPolicy()
        policy.verified(4, 1, 1.0)
        policy.choose([ngram("a", requested=4, named=named)], 4)
        policy.tested(RequestId("a"), "ngram", 4, 4)
        allowed = AT_FIRST + SHARE + won
        assert policy._ledger.affords(allowed - 0.01)
        assert not policy._ledger.affords(allowed + 0.01)


def test_a_narrow_margin_is_not_worth_it() -> None:
    """What it promises is a hundredth more than plain decoding."""
    policy = warm(lambda rows, width: 0.01 * (1 + 0.89 * (width - 1)))
    assert policy.choose([ngram("a", 1)], 1) == [0]
    policy = warm(lambda rows, width: 0.01 * (1 + 0.8 * (width - 1)))
    assert policy.choose([ngram("a", 1)], 1) == [1]


# orders


def test_an_order_is_carried_out_whatever_it_costs() -> None:
    policy = warm(steep, 2)
    for _ in range(100):
        drafts = policy.choose([ngram("a", requested=3, named=True, strength=2), ngram("b", 0)], 2)
        assert drafts == [3, 0]
        policy.verified(2, 4, steep(2, 4))
        policy.tested(RequestId("a"), "ngram", 3, 0)
    assert policy.choose([ngram("a", 2, requested=3, named=True)], 2) == [2]
    assert DepthPolicy().choose([ngram("a", requested=3, named=True)], 1) == [3]


def test_a_named_method_without_a_depth_is_measured() -> None:
    assert warm(steep).choose([ngram("a", named=True)], 1) == [0]


def test_a_depth_without_a_named_method_is_a_bound() -> None:
    assert warm(steep).choose([ngram("a", requested=3)], 1) == [0]
    assert warm().choose([ngram("a", requested=0)], 1) == [0]


def test_neighbours_of_an_order_use_the_width_that_is_paid() -> None:
    policy = warm(steep, 2)
    drafts = policy.choose([ngram("a", requested=3, named=True, strength=2), ngram("b", strength=2)], 2)
    assert drafts == [3, 3]


def test_what_orders_cost_is_not_held_against_others() -> None:
    policy, ordered = warm(), Drafted(1, [0.0] * 4, 0.002)
    for _ in range(50):
        policy.choose([ordered.outlook()._replace(requested=4, named=True)], 1)
        policy.proposed("mtp", 4, 0.008)
        policy.verified(1, 5, 0.02)
        policy.tested(ordered.key, "mtp", 4, 0)
    assert policy.choose([ngram("b")], 1) == [DEEPEST]


# between methods


def test_a_long_match_is_preferred_to_a_model_and_a_model_to_a_poor_match() -> None:
    policy = warm()
    policy.proposed("mtp", 2, 0.001)
    model = Outlook(RequestId("a"), "mtp", 3)
    assert policy.prefer([ngram("a"), model], 1) == 0
    assert policy.prefer([model, ngram("a")], 1) == 1
    assert policy.prefer([ngram("a", available=0), model], 1) == 1
    for _ in range(60):
        policy.choose([ngram("a", strength=2)], 1)
        policy.tested(RequestId("a"), "ngram", 1, 0)
        policy.choose([model], 1)
        policy.tested(RequestId("a"), "mtp", 2, 2)
    assert policy.prefer([ngram("b", strength=2), model._replace(key=RequestId("b"))], 1) == 1


def test_of_equal_methods_the_first_is_preferred() -> None:
    policy = warm()
    assert policy.prefer([ngram("a", 0), Outlook(RequestId("a"), "mtp", 0)], 1) == 0
    assert policy.prefer([ngram("a")], 1) == 0
    with pytest.raises(ValueError, match="no method"):
        policy.prefer([], 1)


def test_what_a_draft_costs_counts_in_the_preference() -> None:
    policy = warm()
    for _ in range(5):
        policy.proposed("mtp", 2, 0.0002)
        policy.proposed("draft", 2, 0.02)
    options = [Outlook(RequestId("a"), "draft", 3), Outlook(RequestId("a"), "mtp", 3)]
    assert policy.prefer(options, 1) == 1


# what drafting costs beside its forwards


def test_a_plain_step_that_had_to_wait_for_drafts_is_their_loss_and_no_plain_cost() -> None:
    policy = warm()
    plain = gpu(1, 1)
    assert policy.choose([ngram("a")], 1)[0] > 0
    for _ in range(20):
        policy.waited(1, 2 * plain)
    assert policy.choose([ngram("a")], 1) == [0]
    policy.verified(1, 1, plain)
    assert policy._cost.seconds(1, 1) == pytest.approx(plain, rel=0.05)


def test_the_first_plain_step_tells_its_cost_though_it_waited() -> None:
    policy = DepthPolicy()
    policy.waited(1, 0.03)
    assert policy._cost.seconds(1, 1) == pytest.approx(0.03)
    assert policy.choose([ngram("a")], 1)[0] > 0


def test_looking_for_drafts_takes_no_more_than_its_share() -> None:
    policy, plain = warm(), gpu(1, 1)
    looks = 0
    for _ in range(2000):
        policy.verified(1, 1, plain)
        if policy.affords_any(1):
            looks += 1
            policy.looked(0.1 * plain)
    assert SHARE / 0.1 * 0.9 < looks / 2000 < SHARE / 0.1 * 1.1 + 0.05


def test_nothing_can_be_drafted_before_a_step_or_behind_losses() -> None:
    policy = DepthPolicy()
    assert not policy.affords_any(1)
    policy.verified(1, 1, 0.05)
    assert policy.affords_any(1)
    policy.looked(AT_FIRST * 0.05)
    assert not policy.affords_any(1)
    assert policy.choose([ngram("a")], 1) == [0]


# against the best fixed width


@pytest.mark.parametrize("cost", [small_model_on_a_cpu, gpu])
@pytest.mark.parametrize(("rows", "seeds"), [(1, 2), (4, 1), (8, 1)])
@pytest.mark.parametrize("chance", [0.95, 0.7, 0.4])
def test_it_is_nearly_as_fast_as_the_best_fixed_width(cost: Cost, rows: int, seeds: int, chance: float) -> None:
    def texts(seed: int) -> list[Text]:
        return [copying(10 * seed + row, chance) for row in range(rows)]

    assert share_of_best(texts, cost, 500 if rows == 1 else 300, seeds=seeds) >= 0.94


@pytest.mark.parametrize("cost", [small_model_on_a_cpu, gpu])
@pytest.mark.parametrize("rows", [1, 4])
def test_mixed_rows_are_decoded_nearly_as_fast_as_at_the_best_fixed_width(cost: Cost, rows: int) -> None:
    def texts(seed: int) -> list[Text]:
        return [(copying if row % 2 else chatting)(10 * seed + row) for row in range(rows)]

    assert share_of_best(texts, cost, 500, seeds=2) >= 0.95


@pytest.mark.parametrize("chances", [(0.8, 0.7, 0.6), (0.6, 0.3, 0.2), (0.26, 0.26, 0.3)])
@pytest.mark.parametrize("each", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("cost", [small_model_on_a_cpu, gpu])
def test_a_model_that_drafts_is_used_as_deep_as_it_pays(cost: Cost, each: float, chances: tuple[float, ...]) -> None:
    def texts(seed: int) -> list[Text]:
        return [Drafted(seed, chances, each * cost(1, 1))]

    assert share_of_best(texts, cost, 500) >= 0.95


@pytest.mark.parametrize("chance", [0.95, 0.8, 0.5])
def test_replays_are_weighed(chance: float) -> None:
    """Where a refusal costs a forward more, shallow or no drafts are better than deep ones."""
    assert share_of_best(lambda seed: [copying(seed, chance)], small_model_on_a_cpu, 500, replays=True) >= 0.95


def test_a_row_that_would_be_refused_does_not_make_others_replay() -> None:
    policy = warm()
    for _ in range(20):
        policy.choose([ngram("good"), ngram("bad")], 2)
        policy.verified(2, 5, gpu(2, 5) + 0.01, replay=0.01)
        policy.tested(RequestId("good"), "ngram", 4, 4)
        policy.tested(RequestId("bad"), "ngram", 4, 0)
    good, bad = policy.choose([ngram("good", 4), ngram("bad", 4)], 2)
    assert good > 0
    assert bad == 0


def test_copying_is_twice_as_fast_as_plain_decoding_on_a_cpu() -> None:
    alone = run(DepthPolicy(), [copying(1)], small_model_on_a_cpu, 300, noise=0.1).rate
    four = run(DepthPolicy(), [copying(seed) for seed in range(4)], small_model_on_a_cpu, 300, noise=0.1).rate
    assert alone >= 1.9 * plain_rate(small_model_on_a_cpu, 1)
    assert four >= 1.6 * plain_rate(small_model_on_a_cpu, 4)


# never much slower than plain


@pytest.mark.parametrize("cost", MACHINES)
@pytest.mark.parametrize("rows", [1, 4, 8])
def test_free_chat_is_never_much_slower_than_plain_decoding(cost: Cost, rows: int) -> None:
    for seed in range(3):
        texts = [chatting(100 * seed + row) for row in range(rows)]
        result = run(DepthPolicy(), texts, cost, 300, noise=0.1, seed=seed)
        plain = run(Fixed(0), texts, cost, 300, noise=0.1, seed=seed)
        assert result.rate >= 0.97 * plain.rate


def test_drafts_that_are_always_refused_cost_a_bounded_share() -> None:
    for cost in MACHINES:
        texts = [copying(1, 0.0, 1.0)]
        assert run(DepthPolicy(), texts, cost, 400).rate >= 0.97 * plain_rate(cost, 1)


def test_rows_that_come_and_go_cost_a_bounded_share() -> None:
    """Each new row is hoped to be better than those before it."""
    policy, tokens, seconds = DepthPolicy(), 0, 0.0
    for seed in range(20):
        texts = [copying(seed, 0.0, 1.0)]
        result = run(policy, texts, small_model_on_a_cpu, 40)
        policy.forget(texts[0].key)
        tokens, seconds = tokens + sum(result.tokens), seconds + result.seconds
    assert tokens / seconds >= 0.97 * plain_rate(small_model_on_a_cpu, 1)


def test_a_wrong_belief_costs_a_bounded_share() -> None:
    """Acceptance falls to nothing whenever it has been learned to be high, in matches that look alike."""
    policy = DepthPolicy()
    run(policy, [copying(1)], small_model_on_a_cpu, 300)
    texts = [copying(seed, 0.0, 1.0) for seed in range(2, 3)]
    assert run(policy, texts, small_model_on_a_cpu, 300).rate >= 0.95 * plain_rate(small_model_on_a_cpu, 1)


# change


def test_a_machine_that_becomes_cheaper_for_wide_forwards_is_found_out() -> None:
    def flat(rows: int, width: int) -> float:
        return steep(rows, 1) * (0.98 + 0.02 * width)

    policy, texts = DepthPolicy(), [copying(1)]
    run(policy, texts, steep, 300)
    assert mean(run(policy, texts, steep, 100).widths) < 1.2
    run(policy, texts, flat, 1200)
    assert run(policy, texts, flat, 100).rate > 3 * plain_rate(steep, 1)


def test_a_machine_that_becomes_dearer_for_wide_forwards_is_found_out() -> None:
    policy, texts = DepthPolicy(), [copying(1)]
    run(policy, texts, gpu, 200)
    result = run(policy, texts, lambda rows, width: gpu(rows, 1) * width, 600)
    assert result.rate >= 0.94 * plain_rate(gpu, 1)
    assert mean(result.widths[10:]) < 1.15


def test_a_row_that_begins_to_copy_is_found_out() -> None:
    text = Text(3, lambda at, length: 0.95 if at > 400 else 0.1, lambda at: 0.8 if at > 400 else 0.5)
    policy = DepthPolicy()
    before = run(policy, [text], small_model_on_a_cpu, 395)
    after = run(policy, [text], small_model_on_a_cpu, 200)
    assert before.rate >= 0.97 * plain_rate(small_model_on_a_cpu, 1)
    assert after.rate >= 1.7 * plain_rate(small_model_on_a_cpu, 1)


def test_a_model_that_begins_to_draft_well_is_found_out() -> None:
    policy = DepthPolicy()
    bad, good = Drafted(1, [0.02] * 3, 0.0005, "row"), Drafted(1, [0.9] * 3, 0.0005, "row")
    assert run(policy, [bad], gpu, 500).rate >= 0.97 * plain_rate(gpu, 1)
    run(policy, [good], gpu, 1200)
    assert run(policy, [good], gpu, 100).rate >= 2 * plain_rate(gpu, 1)


def test_a_slower_machine_is_not_taken_for_dear_drafts() -> None:
    policy, texts = DepthPolicy(), [copying(1)]
    run(policy, texts, gpu, 200)
    before = run(policy, texts, gpu, 200)
    assert run(policy, texts, lambda rows, width: 3 * gpu(rows, width), 200).rate >= 0.9 * before.rate / 3


def test_steps_that_say_nothing_change_nothing() -> None:
    policy = DepthPolicy()
    policy.verified(0, 1, 0.01)
    policy.verified(1, 1, 0.0)
    assert policy.choose([ngram("a")], 1) == [0]


def test_a_request_that_left_holds_nothing() -> None:
    policy = warm()
    policy.choose([ngram("a")], 1)
    policy.tested(RequestId("a"), "ngram", 2, 1)
    policy.forget(RequestId("a"))
    policy.forget(RequestId("before"))
    policy.forget(RequestId("unknown"))
    assert not policy._strengths
    assert not policy._acceptance._rows
