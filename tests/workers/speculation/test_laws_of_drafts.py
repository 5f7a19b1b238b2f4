"""Each drafted position is drawn by the law that it would have if the drafts before it were committed."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from pomona.runtime.wire import replace
from pomona.workers.messages import Sampling, Speculation
from pomona.workers.row import Row
from tests.workers.engines import ask, run, tiny, words
from tests.workers.families import model_of
from tests.workers.test_engine_drafts import Every, alone, engine_of, same

FEW = st.lists(st.integers(3, 9), max_size=6)
PENALISED = Sampling(
    seed=3,
    temperature=0.7,
    top_p=0.8,
    repetition_penalty=1.3,
    presence_penalty=0.5,
    frequency_penalty=0.75,
    logit_bias={4: 1.5},
)


def row_of(prompt: Sequence[int], committed: Sequence[int]) -> Row:
    request = ask("r", [1, *prompt], sampling=PENALISED, committed=committed, max_tokens=99, min_tokens=4)
    return Row(request, tiny().vocabulary, frozenset({7}))


@settings(deadline=None)
@given(FEW, FEW, FEW)
def test_they_are_those_of_rows_that_committed_the_drafts(
    prompt: list[int], committed: list[int], drafts: list[int]
) -> None:
    committed = [token for place, token in enumerate(committed) if token != 7 or place < 4]
    row = row_of(prompt, committed)
    before = row.law()
    laws = row.laws(drafts)
    for count, law in enumerate(laws):
        told = [*committed, *drafts[:count]]
        if 7 not in told[4:]:  # an end, behind which nothing is drawn
            assert law == row_of(prompt, told).law()
    assert len(laws) == 1 + len(drafts)
    assert row.law() == before
    assert row.committed == committed


def test_a_frequency_penalty_counts_every_token_of_a_round() -> None:
    """Without it the answer would repeat itself; the rounds that commit five tokens at once see each of them."""
    model = model_of("plain")
    law = Sampling(seed=0, temperature=0.0, frequency_penalty=1.5, logit_bias={50: 9.0, 51: 8.5})
    request = replace(
        ask("r", words(4, 9), sampling=law, max_tokens=41, ignore_eos=True),
        speculation=Speculation(method="draft", depth=4),
    )
    expected = alone(model, [request])
    assert 1 < expected["r"].tokens.count(50) < 20
    engine = engine_of(model, [Every({"r": expected["r"].tokens}, wrong=0.0)])
    assert same(run(engine, [request]), expected)
    assert engine.stats().saved_forwards == 32
