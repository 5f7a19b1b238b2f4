import logging
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, RotatingKVCache, make_prompt_cache

from pomona.config import CacheConfig, Config
from pomona.runtime.mailbox import Peer
from pomona.runtime.wire import replace
from pomona.workers.layers import UnsupportedCacheError
from pomona.workers.prefill import Prefill, plan_chunk, run_chunk
from pomona.workers.row import Row
from pomona.workers.storage import open_prefix_store, probe_layout
from tests.cache.house import DEADLINE_S, CacheHouse
from tests.support.tiny_model import build_tiny_model
from tests.workers.engines import ask, tiny, words
from tests.workers.families import SETTINGS, model_of
from tests.workers.lone_cache import LoneCaches

ME = Peer("worker:m", 1)


class Growing:
    """A model whose state has an entry for each token, as no recurrent one has."""

    def make_cache(self) -> list[Any]:
        return [ArraysCache(1)]

    def __call__(self, inputs: mx.array, cache: list[Any]) -> None:
        held = cache[0][0]
        cache[0][0] = inputs if held is None else mx.concatenate([held, inputs], axis=1)


class Sinks:
    """A model whose windows keep their first tokens."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def make_cache(self) -> list[Any]:
        return [RotatingKVCache(max_size=16, keep=4) for _ in self._model.layers]

    def __call__(self, inputs: mx.array, cache: list[Any]) -> Any:
        return self._model(inputs, cache=cache)


@pytest.mark.parametrize("family", SETTINGS)
def test_the_layout_is_the_same_after_any_number_of_tokens(family: str) -> None:
    model = model_of(family)
    layout = probe_layout(model)
    caches = make_prompt_cache(model)
    for tokens in (3, 1, 60, 1):
        model(mx.zeros((1, tokens), dtype=mx.int32), cache=caches)
    assert layout == probe_layout(model)
    assert [layer.is_state for layer in layout.layers].count(False) == {
        "plain": 2,
        "quantized": 2,
        "narrow window": 2,
        "wide window": 2,
        "chunked": 1,
        "recurrent": 0,
        "hybrid": 2,
        "list": 2,
    }[family]


def test_state_that_changes_its_form_is_refused() -> None:
    with pytest.raises(UnsupportedCacheError, match="cache 0: its arrays change their form"):
        probe_layout(Growing())


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (lambda: LoneCaches(tiny().model), "cache 0: LoneCache is of no kind"),
        (lambda: Sinks(tiny().model), "cache 0: RotatingKVCache keeps its first 4 tokens"),
    ],
)
@pytest.mark.parametrize("enabled", [True, False])
def test_a_model_that_cannot_be_restored_is_told_once_and_keeps_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, model: Any, why: str, enabled: bool
) -> None:
    config = Config(cache=replace(CacheConfig(), enabled=enabled), runtime_folder=str(tmp_path))
    with caplog.at_level(logging.INFO):
        store = open_prefix_store(ME, config, tmp_path, model())
    (record,) = caplog.records
    assert why in record.getMessage()
    assert not store.keeps_recent
    assert not store.wants(0, 10**6)
    store.close(1.0)


def test_without_a_disk_the_memory_keeps_a_model_with_state(tmp_path: Path) -> None:
    config = Config(cache=replace(CacheConfig(), enabled=False, block_bytes=1), runtime_folder=str(tmp_path))
    store = open_prefix_store(ME, config, tmp_path, model_of("hybrid"))
    assert store.keeps_recent
    block = store.chunk(0, 1000)
    assert 16 <= block <= 512
    assert store.chunk(block - 3, 1000) == 3
    assert store.chunk(block, 1000) == block


@pytest.mark.parametrize("family", ["gemma3_text", "qwen3_next"])
def test_a_restarted_worker_restores_what_a_model_with_state_had_stored(tmp_path: Path, family: str) -> None:
    folder = build_tiny_model(tmp_path / "model", family)
    loaded = tiny(family)
    with CacheHouse(tmp_path / "kv", block_bytes=1) as house:
        restored = []
        for incarnation in (1, 2):
            store = open_prefix_store(Peer("worker:m", incarnation), house.config, folder, loaded.model)
            store.on_roster(house.roster())
            block = store.chunk(0, 1000)
            prompt = words(1, 2 * block + 5)
            prefill = Prefill(loaded.model, Row(ask("a", prompt), loaded.vocabulary, loaded.eos), store)
            prefill.begin()
            restored.append(prefill.restored // block)
            while prefill.left:
                run_chunk(loaded.model, plan_chunk([prefill], 1000))
            store.close(DEADLINE_S)
            assert (store.stored_blocks, store.dropped_blocks) == (0 if incarnation == 2 else 2, 0)
        assert restored == [0, 2]
