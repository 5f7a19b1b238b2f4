import pytest
from hypothesis import given
from hypothesis import strategies as st

from pomona.workers.messages import Limits, Request, RequestId, Sampling
from pomona.workers.row import Row
from pomona.workers.speculation import ngram
from pomona.workers.speculation.ngram import NgramProposer
from pomona.workers.speculation.proposal import Ask, Proposal
from pomona.workers.vocabulary import Vocabulary
from tests.support.tiny_model import train_tokenizer
from tests.workers.tiny_tokenizers import fast

VOCABULARY = Vocabulary(fast(train_tokenizer(320)))

texts = st.lists(st.integers(3, 6), max_size=24)


def row(prompt: list[int], committed: list[int] | None = None, name: str = "r") -> Row:
    request = Request(
        id=RequestId(name),
        model="m",
        prompt=tuple(prompt),
        sampling=Sampling(seed=1),
        limits=Limits(max_tokens=10_000),
        committed=tuple(committed or ()),
    )
    return Row(request, VOCABULARY, frozenset())


def commit(row: Row, *tokens: int) -> None:
    for token in tokens:
        row.commit(token)


def proposed(proposer: NgramProposer, row: Row, depth: int) -> tuple[int, ...]:
    (proposal,) = proposer.propose(None, [Ask(row, depth)])
    assert proposal.distributions is None
    return proposal.tokens


def test_it_proposes_what_followed_in_the_prompt() -> None:
    proposer, own = NgramProposer(), row([10, 11, 12, 13, 14, 20])
    assert proposed(proposer, own, 3) == ()
    commit(own, 11)
    assert proposed(proposer, own, 3) == ()
    commit(own, 12)
    assert proposer.strength(own) == 2
    assert proposed(proposer, own, 2) == (13, 14)
    commit(own, 13)
    assert proposer.strength(own) == 3
    assert proposed(proposer, own, 1) == (14,)


def test_it_proposes_what_followed_in_the_answer() -> None:
    proposer, own = NgramProposer(), row([10])
    commit(own, 11, 12, 13, 11, 12)
    assert proposed(proposer, own, 1) == (13,)


def test_each_ask_has_its_own_row() -> None:
    proposer = NgramProposer()
    asks = [
        Ask(row([10, 11, 12, 10, 11], name="a"), 1),
        Ask(row([10, 11, 12, 13, 14], name="b"), 1),
        Ask(row([10, 11, 13, 10, 11], name="c"), 2),
    ]
    assert proposer.propose(None, asks) == [Proposal((12,)), Proposal(), Proposal((13, 10))]


def test_a_match_that_is_too_short_is_none() -> None:
    own = row([10, 11, 12, 13, 9, 11, 12])
    assert NgramProposer(3).strength(own) == 0
    assert proposed(NgramProposer(3), own, 2) == ()
    commit(own, 13)
    assert NgramProposer(3).strength(own) == 3
    with pytest.raises(ValueError, match="2 tokens or more, not 1"):
        NgramProposer(1)


@given(texts, st.lists(st.tuples(texts, st.booleans()), max_size=5), st.integers(1, 5))
def test_what_was_asked_and_forgotten_before_changes_no_answer(
    prompt: list[int], parts: list[tuple[list[int], bool]], depth: int
) -> None:
    proposer, own = NgramProposer(), row([3, *prompt])
    for tokens, forget in parts:
        commit(own, *tokens)
        strength = proposer.strength(own)
        drafts = proposed(proposer, own, depth)
        assert (strength, len(drafts)) == (NgramProposer().strength(own), depth if strength else 0)
        assert proposer.strength(own) == strength
        assert proposed(proposer, own, depth) == drafts
        if forget:
            proposer.forget(own.request.id)


def test_a_resumed_request_is_indexed_anew() -> None:
    """It has the id of the old one, and tokens that the old one never committed."""
    proposer = NgramProposer()
    old = row([10, 11, 12])
    commit(old, 13, 14, 15, 16)
    proposer.strength(old)
    resumed = row([10, 11, 12], committed=[13, 20, 21, 22, 12, 13])
    assert proposed(proposer, resumed, 2) == (20, 21)


def test_a_resumed_request_that_begins_as_the_old_one_goes_its_own_way() -> None:
    proposer, old = NgramProposer(), row([10, 11, 12])
    commit(old, 20)
    proposer.strength(old)
    resumed = row([10, 11, 12], committed=[20])
    commit(resumed, 11, 12)
    assert proposed(proposer, resumed, 1) == (20,)


def test_tokens_that_were_taken_back_are_forgotten() -> None:
    proposer, own = NgramProposer(), row([10, 11, 12])
    commit(own, 10, 11, 30)
    proposer.strength(own)
    own.committed.pop()
    assert proposed(proposer, own, 1) == (12,)
    commit(own, 31)
    proposer.strength(own)
    own.committed[-1] = 12
    assert proposer.strength(own) == 3


def test_a_forgotten_request_holds_nothing() -> None:
    proposer, own = NgramProposer(), row([10, 11, 12, 10, 11])
    proposer.strength(own)
    proposer.forget(own.request.id)
    proposer.forget(RequestId("unknown"))
    assert not proposer._rows
    assert proposer.strength(own) == 2


def test_a_long_prompt_is_indexed_in_parts_and_then_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "AT_ONCE", 4)
    proposer, own = NgramProposer(), row([10, 10, 10, 10, 11, 12, 13, 17, 10, 11])
    assert [proposer.strength(own) for _ in range(4)] == [0, 0, 2, 2]
    assert proposed(proposer, own, 2) == (12, 13)


def test_of_a_prompt_longer_than_the_window_the_end_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "WINDOW", 6)
    proposer, own = NgramProposer(), row([10, 11, 12, 30, 31, 32, 33, 34, 30])
    commit(own, 10, 11)
    assert proposer.strength(own) == 0
    commit(own, 32, 33)
    assert proposed(proposer, own, 2) == (34, 30)


def test_a_row_that_only_grew_is_not_indexed_again() -> None:
    proposer, own = NgramProposer(), row([10, 11, 12])
    proposer.strength(own)
    known = proposer._rows[own.request.id]
    commit(own, 13, 14)
    proposer.strength(own)
    assert proposer._rows[own.request.id] is known
    assert len(known.index) == 5
