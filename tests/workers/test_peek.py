"""The first layers run ahead over the batch's own caches, and nothing that they write there is left behind."""

import copy
import random
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.base import create_attention_mask

from pomona.workers.batch import Batch
from pomona.workers.forms.ring import SLACK
from pomona.workers.speculation.anatomy import FirstLayers
from tests.workers.families import model_of
from tests.workers.rows_bench import CLOSE, Bench


class FirstAttention:
    """One layer of LFM2, whose next one holds state."""

    caches = 1

    def __init__(self, model: Any) -> None:
        self._model = model.model

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        hidden = self._model.embed_tokens(inputs)
        hidden = self._model.layers[0](hidden, create_attention_mask(hidden, cache[0]), cache=cache[0])
        logits: mx.array = self._model.embed_tokens.as_linear(self._model.embedding_norm(hidden))
        return logits


@pytest.mark.parametrize(
    ("family", "layers"), [("plain", 1), ("narrow window", 2), ("wide window", 3), ("attention first", 1)]
)
def test_first_layers_see_what_each_row_holds_and_their_own_drafts(family: str, layers: int) -> None:
    """Also of rows that have tokens to feed again, and of rows that have changed their places since."""
    bench, source = Bench(family, 30), random.Random(1)
    part = FirstAttention(bench.model) if family == "attention first" else FirstLayers(bench.model, layers)
    for length in (1, 8, 43, 20):
        bench.join(f"r{length}", length)
    for round_ in range(6):
        held = bench.batch.nbytes
        alone = {name: copy.deepcopy(caches[:layers]) for name, caches in bench.alone.items()}
        tokens, drafts = bench.batch.inputs, []
        for step in range(3):
            logits = bench.batch.peek(part, tokens, step)
            for index, row in enumerate(bench.batch.rows):
                own = part(tokens[index : index + 1, None], alone[row.request.id])[0, -1]
                assert mx.allclose(logits[index], own, atol=CLOSE, rtol=0).item(), (round_, step, row.request.id)
            tokens = mx.argmax(logits, axis=-1).astype(mx.int32)
            drafts.append(tokens.tolist())
        assert bench.batch.nbytes >= held
        fed = {row.request.id: own for row, own in zip(bench.batch.rows, zip(*drafts, strict=True), strict=True)}
        bench.verify([own[:round_] for own in fed.values()])
        if round_ == 2:
            bench.batch.leave([bench.batch.rows[0]])
        bench.settle(fed, {name: source.randint(1, 1 + min(3, round_)) for name in fed}, source)
        if round_ == 3:
            bench.batch.leave([bench.batch.rows[0]])
        if round_ == 4:
            bench.step()
            bench.join("late", 3)


@pytest.mark.parametrize(
    ("family", "caches", "reason"),
    [
        ("plain", 1, ""),
        ("plain", 2, ""),
        ("plain", 0, "there are 2 caches, not 0"),
        ("plain", 3, "there are 2 caches, not 3"),
        ("attention first", 1, ""),
        ("attention first", 2, "ArraysCache 1 cannot be written over"),
        ("hybrid", 1, "ArraysCache 0 cannot be written over"),
        ("list", 1, "CacheList 0 cannot be written over"),
        ("chunked", 1, "ChunkedKVCache 0 cannot be written over"),
        ("quantized", 1, "QuantizedKVCache 0 cannot be written over"),
    ],
)
def test_only_what_is_written_over_lets_its_layers_run_ahead(family: str, caches: int, reason: str) -> None:
    assert Batch(model_of(family)).peek_refusal(caches) == reason


class Nothing:
    caches = 1

    def __call__(self, inputs: mx.array, cache: object) -> mx.array:
        return mx.zeros((*inputs.shape, 320))


def test_a_peek_that_cannot_be_taken_back_is_refused() -> None:
    batch = Batch(model_of("hybrid"))
    with pytest.raises(ValueError, match="ArraysCache 0 cannot be written over"):
        batch.peek(Nothing(), batch.inputs, 0)
    bench = Bench("wide window")
    bench.join("r", 60)
    bench.batch.peek(Nothing(), bench.batch.inputs, SLACK - 2)
    with pytest.raises(ValueError, match="step 31 runs further ahead than the 31 drafts that one forward takes"):
        bench.batch.peek(Nothing(), bench.batch.inputs, SLACK - 1)
    bench.batch.verify([[1]])
    with pytest.raises(ValueError, match="not settled"):
        bench.batch.peek(Nothing(), bench.batch.inputs, 0)


def test_as_far_as_a_peek_may_go_it_writes_over_nothing_that_the_window_needs() -> None:
    bench, source = Bench("wide window"), random.Random(2)
    bench.join("r", 90)
    part = FirstLayers(bench.model, 2)
    for _ in range(2):
        for step in range(SLACK - 1):
            bench.batch.peek(part, mx.array([source.randrange(320)]), step)
        bench.verify([[5, 6]])
        bench.settle({"r": [5, 6]}, {"r": 1}, source)
