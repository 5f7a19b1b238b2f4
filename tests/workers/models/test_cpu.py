import math
import sys

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import activations, llama

from pomona.workers.models.cpu import attention, speed_up, swiglu
from tests.support.tiny_model import FAMILIES
from tests.workers.engines import tiny


def test_swiglu_is_silu_times_x() -> None:
    gate = np.concatenate([np.linspace(-100, 100, 4001), [0.0, -0.0, 1e-30, -1e-30, 3e37, -3e37]])
    exact = gate / (1 + np.exp(np.clip(-gate, None, 700)))
    ours = np.array(swiglu(mx.array(gate, dtype=mx.float32), mx.full(gate.shape, 3.0)), dtype=np.float64)
    theirs = np.array(activations.swiglu(mx.array(gate, dtype=mx.float32), mx.full(gate.shape, 3.0)), dtype=np.float64)
    near = np.abs(gate) < 10
    np.testing.assert_allclose(ours[near], 3 * exact[near], rtol=3e-6)
    np.testing.assert_allclose(ours, 3 * exact, rtol=3e-6, atol=1e-3 * 3e-6)
    np.testing.assert_allclose(ours, theirs, rtol=3e-6, atol=1e-3 * 3e-6)


def test_what_is_not_finite_stays_so() -> None:
    gate = mx.array([math.nan, math.inf, 1.0])
    result = swiglu(gate, mx.array([1.0, 1.0, math.inf])).tolist()
    assert math.isnan(result[0])  # type: ignore[index,arg-type]
    assert result[1:] == [math.inf, math.inf]  # type: ignore[index]


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_narrow_numbers_keep_mlx_lms_own(dtype: mx.Dtype) -> None:
    gate, x = mx.linspace(-8, 8, 99).astype(dtype), mx.linspace(1, 2, 99).astype(dtype)
    assert mx.array_equal(swiglu(gate, x), activations.swiglu(gate, x)).item()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_computes_the_same_with_it(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(family).model
    modules = {sys.modules[type(layer).__module__] for layer in model.modules()}
    for module in modules:
        if hasattr(module, "swiglu"):
            monkeypatch.setattr(module, "swiglu", activations.swiglu)
    tokens = mx.array([[5, 9, 200, 31]])
    before = model(tokens)
    speed_up(model)
    after = model(tokens)
    assert mx.allclose(before, after, atol=1e-4, rtol=1e-4).item()
    assert all(getattr(module, "swiglu", swiglu) is swiglu for module in modules)


def test_a_swiglu_that_a_model_brings_itself_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(gate: mx.array, x: mx.array) -> mx.array:
        return gate

    monkeypatch.setattr(llama, "swiglu", own)
    speed_up(tiny("llama").model)
    assert llama.swiglu is own


def boolean(rows: int, tokens: int, reach: int) -> mx.array:
    """Each row may look at fewer slots than its neighbour, as rows of different lengths do."""
    lengths = mx.array([reach - 2 * row for row in range(rows)])[:, None, None, None]
    return mx.arange(reach) < lengths - mx.arange(tokens)[::-1, None]


@pytest.mark.parametrize(("rows", "tokens", "reach"), [(1, 1, 9), (1, 7, 7), (1, 5, 40), (3, 1, 20), (3, 6, 20)])
@pytest.mark.parametrize("kind", ["none", "causal", "boolean", "additive", "shared"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (3, 1)])
def test_attention_is_mlxs(rows: int, tokens: int, reach: int, kind: str, heads: int, kv_heads: int) -> None:
    mx.random.seed(rows + 10 * tokens + 100 * heads)
    queries = 3 * mx.random.normal((rows, heads, tokens, 16))
    keys, values = mx.random.normal((rows, kv_heads, reach, 16)), mx.random.normal((rows, kv_heads, reach, 8))
    masks = {
        "none": None,
        "causal": "causal",
        "boolean": boolean(rows, tokens, reach),
        "additive": mx.where(boolean(rows, tokens, reach), mx.random.normal((tokens, reach)), -math.inf),
        "shared": boolean(1, tokens, reach)[0, 0],
    }
    ours = attention(queries, keys, values, scale=0.3, mask=masks[kind])
    theirs = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.3, mask=masks[kind])
    assert mx.allclose(ours, theirs, atol=1e-5, rtol=1e-4).item()


def test_scores_of_any_size_do_not_overflow() -> None:
    queries, keys = mx.array([[[[1e4, 0.0]]]]), mx.array([[[[1e4, 0.0], [-1e4, 0.0], [1e4, 1.0]]]])
    mixed = attention(queries, keys, mx.array([[[[1.0], [7.0], [3.0]]]]), scale=1.0, mask=None)
    assert mixed.item() == pytest.approx(2.0)
