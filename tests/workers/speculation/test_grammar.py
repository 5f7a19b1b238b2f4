"""What a grammar forces, drafted: the answers are those of plain decoding, in fewer forwards."""

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest

from pomona.config import DEEPEST
from pomona.runtime.wire import replace
from pomona.workers.batch import Batch
from pomona.workers.channels.spelling import Spelling
from pomona.workers.constraint.compiler import guide_of
from pomona.workers.constraint.matcher import Matcher
from pomona.workers.messages import Constraint, Limits, Request, RequestId, Sampling, Speculation
from pomona.workers.row import Row
from pomona.workers.sampling.draw import distribution
from pomona.workers.sampling.law import RowLaw
from pomona.workers.speculation.acceptance import Acceptance
from pomona.workers.speculation.acceptance import Outcome as Noted
from pomona.workers.speculation.depth import DepthPolicy, Outlook
from pomona.workers.speculation.grammar import Draft, GrammarProposer, forced
from pomona.workers.speculation.ngram import NgramProposer
from pomona.workers.speculation.proposal import Ask, Proposal
from pomona.workers.speculation.speculator import Speculator
from tests.workers.constraint.engines import constrained, constrained_engine
from tests.workers.constraint.lexicons import matcher, tokens
from tests.workers.constraint.schemas import drawn_schema
from tests.workers.engines import Outcome, any_request, run, tiny
from tests.workers.speculation.scripted import Scripted

KEYS = ("customer", "customer number", "street", "delivery address")
FORM = Constraint(
    "json_schema",
    json.dumps({"type": "object", "properties": {key: {"type": "boolean"} for key in KEYS}, "required": list(KEYS)}),
)
WORDS = "The quick brown fox jumps over the lazy dog."
ONE_WAY = Constraint("choice", json.dumps([WORDS]))
OFF, ORDERED = Speculation(method="off"), Speculation(method="grammar", depth=5)


def asked(name: str, constraint: Constraint, speculation: Speculation = ORDERED, **more: Any) -> Request:
    return replace(constrained(name, constraint, **more), speculation=speculation)


def answers(requests: Sequence[Request]) -> dict[str, Outcome]:
    with constrained_engine(proposers=[GrammarProposer()], max_running=32) as engine:
        return run(engine, requests)


def seen(outcomes: dict[str, Outcome]) -> dict[str, object]:
    return {name: (each.tokens, each.text, each.finish and each.finish.reason) for name, each in outcomes.items()}


def plain(requests: Sequence[Request]) -> dict[str, object]:
    return seen(answers([replace(request, speculation=OFF) for request in requests]))


def row_of(constraint: Constraint | None = FORM, speculation: Speculation = ORDERED) -> Row:
    request = replace(constrained("row", constraint, max_tokens=500), speculation=speculation)
    row = Row(request, tiny().vocabulary, tiny().eos)
    if constraint is not None:
        row.follow(guide_of(request, tokens(), Spelling(tokens())), ())
    return row


def write(row: Row, text: str) -> None:
    for token in tokens().encode(text.encode()):
        row.commit(token)


def written(drafts: Sequence[int]) -> str:
    return tiny().vocabulary.join(drafts).decode()


# answers


@pytest.mark.parametrize("temperature", [0.0, 1.0, 5.0])
def test_answers_are_those_of_plain_decoding(temperature: float) -> None:
    requests = []
    for seed in range(12):
        schema = Constraint("json_schema", json.dumps(drawn_schema(random.Random(seed))))
        wish = replace(ORDERED, depth=1 + seed % DEEPEST)
        requests.append(asked(f"r{seed}", schema, wish, temperature=temperature, seed=seed))
    with constrained_engine(proposers=[GrammarProposer()]) as engine:
        outcomes = run(engine, requests, every=2)
        figures = engine.stats().speculation["grammar"]
    assert seen(outcomes) == plain(requests)
    assert sum(figures.accepted) > 10


def test_among_other_rows_and_methods_too() -> None:
    """Free rows, rows that copy, and rows that leave it to what is measured, in one batch."""
    methods = ("auto", "grammar", "ngram", "off")
    requests = [
        replace(each, speculation=Speculation(method=methods[index % 4], depth=3 if index % 3 else None))  # type: ignore[arg-type]
        for index in range(12)
        for each in (any_request(index), asked(f"form {index}", FORM, temperature=index % 3, seed=index))
    ]
    with constrained_engine(proposers=[NgramProposer(), GrammarProposer()]) as engine:
        outcomes = run(engine, requests, every=1)
        figures = engine.stats().speculation["grammar"]
    assert seen(outcomes) == plain(requests)
    assert sum(figures.accepted) > 10


def test_the_law_is_that_of_plain_decoding() -> None:
    """By enumeration of all answers, against what requests without a seed of their own draw."""
    constraint = Constraint("regex", "(red|blue) is a colour(!|, he said)")
    sampling = Sampling(seed=0, temperature=4.0, repeatable=False)
    model, count = tiny().model, 320
    prompt = constrained("r", constraint).prompt
    expected: Counter[str] = Counter()
    for answer, share in _law(model, prompt, (), 1.0, matcher(constraint), sampling):
        expected[written(answer)] += share  # type: ignore[assignment]  # a counter of shares
    assert sum(expected.values()) == pytest.approx(1.0, abs=1e-4)
    found: Counter[str] = Counter()
    with constrained_engine(proposers=[GrammarProposer()], max_running=32) as engine:
        for first in range(0, count, 32):
            requests = [
                replace(asked(f"r{seed}", constraint), prompt=prompt, sampling=replace(sampling, seed=seed))
                for seed in range(first, first + 32)
            ]
            found.update(outcome.text for outcome in run(engine, requests).values())
        assert sum(engine.stats().speculation["grammar"].accepted) > 5 * count
    assert found.keys() == expected.keys()
    assert len(expected) == 4
    distance = sum((found[text] - count * share) ** 2 / (count * share) for text, share in expected.items())
    assert distance < 16.3  # p = 0.001, 3 degrees of freedom


def _law(
    model: Any, prompt: tuple[int, ...], answer: tuple[int, ...], share: float, at: Matcher, sampling: Sampling
) -> Iterator[tuple[tuple[int, ...], float]]:
    if at.over:
        yield answer, share
        return
    law = RowLaw(sampling, len(answer), None, None, at.masks()[0])
    probabilities = np.array(distribution(model(mx.array([[*prompt, *answer]]))[:, -1], [law])[0])
    for token in np.flatnonzero(probabilities).tolist():
        further = at.fork()
        further.commit(token)
        yield from _law(model, prompt, (*answer, token), share * float(probabilities[token]), further, sampling)


def test_drafts_that_spell_a_special_tokens_name_may_be_refused_and_change_nothing() -> None:
    names = [tokens().pieces[token].decode() for token in sorted(tokens().special)]
    constraint = Constraint("choice", json.dumps([f"so {name} it is, {name}!" for name in names]))
    requests = [asked(f"r{seed}", constraint, temperature=3.0, seed=seed) for seed in range(6)]
    assert seen(answers(requests)) == plain(requests)


def test_a_stretch_may_end_with_the_answer() -> None:
    (outcome,) = answers([asked("r", ONE_WAY, temperature=2.0)]).values()
    assert outcome.finish is not None
    assert (outcome.text, outcome.finish.reason) == (WORDS, "stop")
    assert not set(outcome.tokens) & tiny().eos
    assert seen({"r": outcome}) == plain([asked("r", ONE_WAY, temperature=2.0)])


def test_a_stretch_costs_one_forward_for_each_depth_and_one() -> None:
    with constrained_engine(proposers=[GrammarProposer()]) as engine:
        (outcome,) = run(engine, [asked("r", ONE_WAY)]).values()
        stats = engine.stats()
    rounds = -(-len(outcome.tokens) // 6)
    assert stats.verify_steps == rounds
    assert stats.saved_forwards >= len(outcome.tokens) - rounds - 1


def test_a_stretch_is_cut_by_the_most_tokens() -> None:
    whole = answers([asked("r", ONE_WAY)])["r"].tokens
    assert len(whole) > 8
    outcomes = answers([asked(str(most), ONE_WAY, max_tokens=most) for most in range(1, len(whole))])
    for most in range(1, len(whole)):
        outcome = outcomes[str(most)]
        assert outcome.tokens == whole[:most]
        assert outcome.finish is not None
        assert outcome.finish.reason == "length"


def test_a_stretch_ends_at_a_stop_string() -> None:
    request = replace(asked("r", ONE_WAY), limits=Limits(max_tokens=60, stop=("fox",)))
    (outcome,) = answers([request]).values()
    assert outcome.text == "The quick brown "
    assert seen({"r": outcome}) == plain([request])


def test_an_answer_goes_on_where_it_was_broken_off() -> None:
    request = asked("r", FORM, temperature=1.0, max_tokens=200)
    whole = answers([request])["r"]
    parts = {str(cut): tuple(whole.tokens[:cut]) for cut in range(1, len(whole.tokens), 2)}
    for cut, resumed in answers([replace(request, id=RequestId(cut), committed=parts[cut]) for cut in parts]).items():
        assert resumed.tokens == whole.tokens
        assert whole.text.endswith(resumed.text)
        assert resumed.finish is not None
        assert resumed.finish.reason == "stop", cut


def test_a_form_of_fixed_keys_takes_a_fraction_of_the_forwards() -> None:
    keys = [f"{kind}_{part}" for kind in ("customer", "shipping", "billing", "supplier") for part in PARTS]
    number = {"type": "integer", "minimum": 0, "maximum": 99}
    schema = {
        "type": "object",
        "properties": dict.fromkeys(keys, number),
        "required": keys,
        "additionalProperties": False,
    }
    blanks = {token: -100.0 for token, piece in enumerate(tokens().pieces) if piece[:1].isspace()}
    request = asked("r", Constraint("json_schema", json.dumps(schema)), replace(ORDERED, depth=DEEPEST), max_tokens=900)
    request = replace(request, sampling=replace(request.sampling, logit_bias=blanks))
    with constrained_engine(proposers=[GrammarProposer()]) as engine:
        (outcome,) = run(engine, [request]).values()
        stats = engine.stats()
    assert list(json.loads(outcome.text)) == keys
    assert len(outcome.tokens) > 3 * stats.decode_steps, stats


PARTS = ("name", "street", "city", "country", "number")


# what is proposed


def stretch_of(row: Row) -> tuple[int, ...]:
    """What is forced behind the row's last token."""
    ahead = row.foresee()
    assert ahead is not None
    return ahead.forced(DEEPEST)


def test_what_is_forced_is_proposed_as_deep_as_asked() -> None:
    row, proposer = row_of(), GrammarProposer()
    write(row, '{"')
    stretch = stretch_of(row)
    assert written(stretch).startswith("custome")
    assert proposer.plan(row) == tuple(Draft(token, 0) for token in stretch)
    assert proposer.propose(None, [Ask(row, 2)]) == [Proposal(stretch[:2])]
    assert proposer.propose(None, [Ask(row, DEEPEST)]) == [Proposal(stretch)]
    row.commit(stretch[0])
    assert proposer.plan(row) == GrammarProposer().plan(row) == tuple(Draft(token, 0) for token in stretch[1:])


def test_where_there_is_a_choice_nothing_is_proposed() -> None:
    row, proposer = row_of(), GrammarProposer()
    for text in ("{", '"customer":', " ", "true,"):
        write(row, text)
        assert proposer.plan(row) == ()
        assert proposer.propose(None, [Ask(row, 3)]) == [Proposal()]


def test_a_long_stretch_is_proposed_part_by_part() -> None:
    row, proposer = row_of(Constraint("choice", json.dumps([9 * WORDS]))), GrammarProposer()
    while row.finish is None:
        plan = proposer.plan(row)
        assert 0 < len(plan) <= DEEPEST
        assert forced(plan) == len(plan)
        row.commit(plan[0].token)
    assert written(row.committed) == 9 * WORDS
    assert proposer.plan(row) == ()


def test_a_row_that_begins_behind_committed_tokens_is_looked_at_from_there() -> None:
    row = row_of(Constraint("choice", json.dumps(["xz" * 9])))
    write(row, "xzxz")
    assert written([draft.token for draft in GrammarProposer().plan(row)]).startswith("xz" * 6)


def test_rows_without_a_constraint_are_not_looked_at() -> None:
    row, proposer = row_of(None), GrammarProposer()
    assert proposer.plan(row) == ()
    assert row.foresee() is None
    assert proposer._rows == {}


def test_another_row_of_the_same_request_begins_anew() -> None:
    first, second, proposer = row_of(), row_of(), GrammarProposer()
    write(first, '{"')
    assert written([draft.token for draft in proposer.plan(first)]) != "{"
    assert written([draft.token for draft in proposer.plan(second)]) == "{"
    proposer.forget(RequestId("row"))
    proposer.forget(RequestId("row"))
    assert proposer._rows == {}


def plans(row: Row, proposer: GrammarProposer, text: str) -> list[tuple[Draft, ...]]:
    """Behind each token of a text."""
    found = []
    for token in tokens().encode(text.encode()):
        row.commit(token)
        found.append(proposer.plan(row))
    return found


def test_what_stood_between_two_stretches_is_guessed_the_next_time() -> None:
    row, proposer = row_of(), GrammarProposer()
    plans(row, proposer, '{ "customer": true, "customer number": false')
    (comma,) = plans(row, proposer, ",")
    assert written([draft.token for draft in comma]).startswith(' "street')
    assert [draft.times for draft in comma[:3]] == [1, 2, 0]
    assert forced(comma) == 0
    (blank, quote) = plans(row, proposer, ' "')
    assert [draft.token for draft in blank[:5]] == [draft.token for draft in comma[1:6]]
    assert forced(quote) > 2
    behind = quote[forced(quote) :]
    assert written([draft.token for draft in behind]).startswith('":')


def test_what_was_otherwise_the_last_time_is_not_insisted_on() -> None:
    row, proposer = row_of(), GrammarProposer()
    plans(row, proposer, '{ "customer": true, "customer number": false,\n')
    (blank,) = plans(row, proposer, ' "street": true,')[-1:]
    assert written([draft.token for draft in blank]).startswith("\n ")
    assert blank[0].times == 1


def test_guesses_that_lead_to_nothing_forced_are_not_proposed() -> None:
    row, proposer = row_of(Constraint("regex", "[a-c ]*x")), GrammarProposer()
    assert set(plans(row, proposer, "a b a b a b a b a")) == {()}


def test_a_failed_grammar_forces_nothing() -> None:
    row = row_of()
    write(row, '{"')
    row.fault = "too much"
    assert row.foresee() is None
    assert GrammarProposer().plan(row) == ()


# who drafts


def speculator(*proposers: Any, slope: float = 0.0) -> Speculator:
    """One for which each further token of a forward costs so much of a plain step; the test itself takes no time."""
    one = Speculator(proposers)
    for width in range(1, DEEPEST + 2):
        for _ in range(4):
            one.calibrated(1, width, 100 * (1 + slope * (width - 1)))
    one.ran(1, 1, 100.0, waited=False)
    one._policy.tested(RequestId("before"), "ngram", 0, 20)  # as if so much were won
    return one


def batch_of(row: Row) -> Batch:
    return cast(Batch, SimpleNamespace(rows=[row], max_drafts=None))


def test_by_itself_a_row_drafts_its_whole_stretch() -> None:
    row = row_of(speculation=Speculation())
    write(row, '{"')
    drafts = speculator(GrammarProposer()).draft(batch_of(row))
    assert drafts is not None
    assert drafts.tokens == [stretch_of(row)]


def test_another_methods_drafts_give_way_where_the_grammar_leaves_one_way() -> None:
    named, row = row_of(speculation=Speculation(method="draft")), row_of(speculation=Speculation())
    for each in (named, row):
        write(each, '{"')
    stretch = stretch_of(row)
    further = (*stretch, *tokens().encode(b'": true'))
    told = _Told(further)
    one = speculator(told, GrammarProposer())
    for _ in range(20):  # from then on it is thought to be right, and it goes deeper
        drafts = one.draft(batch_of(named))
        assert drafts is not None
        one.tested(named, len(drafts.tokens[0]), len(drafts.tokens[0]))
    for says, drafted, method in (
        ((*stretch[:2], 5), stretch, "grammar"),  # it strays on the way
        ((5,), stretch, "grammar"),
        ((*stretch, 5), stretch, "draft"),  # it is cut behind it
        (further, further, "draft"),  # it goes on
    ):
        told.says = says
        drafts = one.draft(batch_of(row))
        assert drafts is not None
        assert drafts.tokens == [drafted]
        before = one.figures.get(method)  # type: ignore[call-overload]  # one of the methods
        one.tested(row, len(drafted), len(drafted))
        assert one.figures[method] != before  # type: ignore[index]


class _Told(Scripted):
    """Says the same whatever it is asked."""

    def __init__(self, drafts: Sequence[int]) -> None:
        super().__init__({})
        self.says = tuple(drafts)

    def propose(self, batch: Batch, asks: Sequence[Ask]) -> list[Proposal]:
        return [Proposal(self.says[: ask.depth]) for ask in asks]


def test_a_named_method_is_left_to_itself() -> None:
    row = row_of(speculation=Speculation(method="draft", depth=6))
    write(row, '{"')
    drafts = speculator(_Told([5, 5]), GrammarProposer()).draft(batch_of(row))
    assert drafts is None


def test_drafts_are_due_where_some_will_be_behind_the_token_that_is_drawn() -> None:
    row, proposer = row_of(speculation=Speculation()), GrammarProposer()
    one = speculator(proposer)
    due = []
    for token in tokens().encode(b'{ "customer": true, "customer number": false, '):
        row.commit(token)
        one.look(batch_of(row), drawing=True)
        due.append(one.due)
        assert one.due <= (len(proposer.plan(row)) > 1)
        assert one.due or forced(proposer.plan(row)) < 2
    assert any(due)
    assert not all(due)


def test_where_it_is_not_worth_it_before_a_doubtful_token_it_may_be_due_behind_it() -> None:
    row, proposer = row_of(speculation=Speculation()), GrammarProposer()
    plans(row, proposer, '{ "customer": true, "customer number": false,')
    one = speculator(proposer, slope=0.5)
    assert forced(proposer.plan(row)) == 0
    assert one.draft(batch_of(row)) is None
    assert one.due


# what it is thought to be worth


def test_what_is_forced_is_certain_and_what_is_guessed_is_not() -> None:
    acceptance, key, strength = Acceptance(), RequestId("a"), (0, 0, 2, 0)
    before = acceptance.chances(key, "grammar", strength, 4, 0)
    assert [before[place] for place in (0, 1, 3)] == [1.0] * 3
    assert before[2] < 1
    for step in range(9):
        acceptance.note(key, Noted("grammar", strength, 4, 2), step)
    after = acceptance.chances(key, "grammar", strength, 4, 9)
    assert [after[place] for place in (0, 1, 3)] == [1.0] * 3
    assert after[2] < before[2] / 2
    for step in range(9):
        acceptance.note(key, Noted("grammar", (0,), 1, 0), step)
    assert acceptance.chances(key, "grammar", (0,), 1, 9)[0] < 0.5  # whatever the reason


@pytest.mark.parametrize(("slope", "drafts"), [(0.1, 6), (0.9, 6), (1.2, 0)])
def test_it_is_drafted_where_a_verified_token_costs_less_than_a_plain_step(slope: float, drafts: int) -> None:
    policy = DepthPolicy(probe_share=0.0)
    for _ in range(4):
        for width in range(1, 8):
            policy.verified(1, width, 1 + slope * (width - 1))
            policy.tested(RequestId("before"), "ngram", 0, 40)  # as if so much were won
    assert policy.choose([Outlook(RequestId("a"), "grammar", 6, strength=(0,) * 6)], 1) == [drafts]


def test_a_certain_draft_is_preferred_to_a_likely_one_as_deep() -> None:
    policy = DepthPolicy()
    for width in range(1, 8):
        policy.calibrated(1, width, 1 + 0.1 * width)
    key = RequestId("a")
    options = [
        Outlook(key, "ngram", 4, strength=30),
        Outlook(key, "draft", 4),
        Outlook(key, "grammar", 4, strength=(0,) * 4),
    ]
    assert policy.prefer(options, 1) == 2
