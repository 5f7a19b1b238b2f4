import pytest

from pomona.workers.speculation.draft_cost import GUESS, DraftCost


def test_a_models_drafts_are_guessed_before_any_was_made_and_copies_are_free() -> None:
    costs = DraftCost()
    assert costs.each("mtp", 2.0) == 2.0 * GUESS
    assert costs.each("ngram", 2.0) == 0.0
    costs.proposed("ngram", 2, 0.1)
    assert costs.each("ngram", 2.0) == 0.0


def test_each_draft_of_the_longest_row_costs_its_share() -> None:
    costs = DraftCost()
    costs.proposed("mtp", 2, 0.02)
    costs.proposed("draft", 4, 0.2)
    assert costs.seconds({"mtp": 3, "draft": 2, "ngram": 9}, 1.0) == pytest.approx(0.03 + 0.1)


def test_of_the_first_calls_the_shortest_counts_and_later_their_mean() -> None:
    costs = DraftCost()
    for seconds in (5.0, 0.01, 0.012):
        costs.proposed("mtp", 1, seconds)
    assert costs.each("mtp", 1.0) == 0.01
    for _ in range(60):
        costs.proposed("mtp", 1, 0.03)
    assert costs.each("mtp", 1.0) == pytest.approx(0.03, rel=0.02)
    costs.proposed("mtp", 1, 50.0)
    assert costs.each("mtp", 1.0) < 0.035


def test_a_call_without_drafts_and_a_round_without_replay_say_nothing() -> None:
    costs = DraftCost()
    costs.proposed("mtp", 0, 1.0)
    costs.replayed(0.0)
    assert costs.each("mtp", 1.0) == GUESS
    assert costs.replay == 0.0


def test_a_replay_costs_what_replays_took() -> None:
    costs = DraftCost()
    for _ in range(5):
        costs.replayed(0.04)
        costs.replayed(0.0)
    assert costs.replay == pytest.approx(0.04)


def test_drafts_cost_nothing_where_all_are_copies_and_nothing_is_replayed() -> None:
    costs = DraftCost()
    assert costs.none({"ngram"}, 1.0)
    assert not costs.none({"ngram", "mtp"}, 1.0)
    costs.replayed(0.01)
    assert not costs.none({"ngram"}, 1.0)
