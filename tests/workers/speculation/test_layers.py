"""The first layers of a model, beside a model that has no others."""

import copy
import importlib
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache, make_prompt_cache

from pomona.workers.speculation.anatomy import FirstLayers, Unfit, head, trunk
from pomona.workers.speculation.layers import Layers
from pomona.workers.speculation.proposal import Ask, Proposal
from tests.support.tiny_model import FAMILIES
from tests.workers.engines import tiny, words
from tests.workers.families import model_of
from tests.workers.rows_bench import Bench
from tests.workers.speculation.drafts import continuation


def cut(model: Any, layers: int) -> Any:
    """Another model of so few layers, with the first ones' weights."""
    module = importlib.import_module(type(model).__module__)
    values = {**vars(model.args), "num_hidden_layers": layers, "layer_types": None}
    other = module.Model(module.ModelArgs.from_dict(values))
    names = {name for name, _ in tree_flatten(other.parameters())}
    other.load_weights([(name, array) for name, array in tree_flatten(model.parameters()) if name in names])
    return other


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("family", ["gemma3_text", "qwen3_next"])
def test_first_layers_compute_what_a_model_of_these_alone_does(family: str, layers: int) -> None:
    model = tiny(family).model
    tokens = mx.array([words(1, 20)])
    part, caches = FirstLayers(model, layers), make_prompt_cache(model)
    if layers == 2:  # with one layer the other model has no cache for the mask that it never uses
        assert mx.allclose(part(tokens, caches[:layers]), cut(model, layers)(tokens), atol=1e-5).item()
    else:
        part(tokens, caches[:layers])
    assert [cache.empty() for cache in caches] == [index >= layers for index in range(4)]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_one_layer_computes_what_a_model_of_it_alone_does(family: str) -> None:
    model = tiny(family).model
    tokens = mx.array([words(1, 20)])
    part = FirstLayers(model, 1)(tokens, make_prompt_cache(model)[:1])
    assert mx.allclose(part, cut(model, 1)(tokens), atol=1e-5).item()


@pytest.mark.parametrize("family", FAMILIES)
def test_cutting_a_model_leaves_it_as_it_was(family: str) -> None:
    model = tiny(family).model
    tokens = mx.array([words(1, 20)])
    before = model(tokens)
    FirstLayers(model, 1)
    behind = head(model)
    assert mx.array_equal(before, model(tokens)).item()
    assert mx.allclose(behind(trunk(model)(tokens)), before, atol=1e-5).item()


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_drafts_are_the_first_layers_and_leave_the_batch_as_it_was(family: str) -> None:
    bench = Bench(family)
    for length in (1, 9, 30):
        bench.join(f"r{length}", length)
    kept = 2 if family == "gemma3_text" else 1
    alone, layers = cut(bench.loaded.model, kept), Layers(bench.loaded.model, kept)
    for _ in range(4):
        bench.step()  # compares the logits with those of each row alone
        rows = [bench.batch.rows[index] for index in (2, 0)]
        proposals = layers.propose(bench.batch, [Ask(rows[0], 3), Ask(rows[1], 1)])
        assert proposals == [Proposal(continuation(alone, row.tokens, n)) for row, n in zip(rows, (3, 1), strict=True)]
    bench.batch.leave([bench.batch.rows[0]])
    layers.forget(rows[0].request.id)
    assert len(layers.propose(bench.batch, [Ask(bench.batch.rows[0], 2)])[0].tokens) == 2
    bench.step()


def test_long_rows_that_stand_apart_draft_too() -> None:
    bench = Bench("llama", long=20)
    for length in (30, 3):
        bench.join(f"r{length}", length)
    alone, layers = cut(bench.loaded.model, 1), Layers(bench.loaded.model, 1)
    bench.step()
    for row, proposal in zip(
        bench.batch.rows, layers.propose(bench.batch, [Ask(row, 2) for row in bench.batch.rows]), strict=True
    ):
        assert proposal.tokens == continuation(alone, row.tokens, 2)
    bench.step()


def test_layers_whose_caches_cannot_be_written_over_are_refused() -> None:
    with pytest.raises(Unfit, match="first 1 layers cannot run ahead of the others: ArraysCache 0"):
        Layers(tiny("qwen3_next").model, 1)


@pytest.mark.parametrize("layers", [0, 2])
def test_a_part_is_some_of_the_layers_and_not_all(layers: int) -> None:
    with pytest.raises(Unfit, match=f"{layers} layers are not a part of 2"):
        Layers(tiny().model, layers)


def test_layers_that_share_caches_are_refused() -> None:
    sharing = copy.copy(tiny().model)
    sharing.make_cache = lambda: [KVCache()]
    with pytest.raises(Unfit, match="one cache for each layer"):
        Layers(sharing, 1)


def test_a_model_of_unknown_parts_is_refused() -> None:
    with pytest.raises(Unfit, match="no module of embed_tokens, layers, norm"):
        Layers(model_of("recurrent"), 1)
    with pytest.raises(Unfit, match="no module"):
        head(model_of("quantized"))
