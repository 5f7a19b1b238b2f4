"""Ties a loaded model to the cache service: what its blocks are called and how they are cut."""

import importlib.metadata
import logging
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from pomona.cache.client import CacheClient
from pomona.cache.keys import Fingerprint
from pomona.cache.layout import KVLayout
from pomona.config import Config
from pomona.runtime.mailbox import Peer
from pomona.workers import device
from pomona.workers.models.fingerprint import tokenizer_digest, weights_digest
from pomona.workers.prefix import PrefixStore, layout_of
from pomona.workers.recent import RecentPrefixes

log = logging.getLogger(__name__)


def open_prefix_store(me: Peer, config: Config, folder: Path, model: Any) -> PrefixStore:
    """The store of one worker; it keeps nothing where the tier is off or the model's caches are not plain."""
    layout = _probe_layout(model)
    recent = RecentPrefixes(config.cache.ram_bytes)
    if not config.cache.enabled or layout is None:
        if config.cache.enabled:
            log.info("prefix-cache-off model=%s reason=%r", folder.name, "a layer's cache is not a plain KV cache")
        layout = layout or KVLayout("float32", ())
        return PrefixStore(None, _fingerprint(layout, "", "", 1).root, layout, 1, recent)
    block_tokens = layout.block_tokens(config.cache.block_bytes)
    fingerprint = _fingerprint(layout, weights_digest(folder).hex(), tokenizer_digest(folder).hex(), block_tokens)
    return PrefixStore(CacheClient(config.cache_endpoint, me), fingerprint.root, layout, block_tokens, recent)


def _fingerprint(layout: KVLayout, weights: str, tokenizer: str, block_tokens: int) -> Fingerprint:
    engine = "/".join(
        [importlib.metadata.version("mlx"), importlib.metadata.version("mlx-lm"), device.describe()],
    )
    return Fingerprint(weights, tokenizer, layout, block_tokens, engine=engine)


def _probe_layout(model: Any) -> KVLayout | None:
    """One token through fresh caches shows what they hold."""
    caches = make_prompt_cache(model)
    model(mx.array([[0]], dtype=mx.int32), cache=caches)
    mx.eval([cache.state for cache in caches])
    return layout_of(caches)
