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
from pomona.workers.layers import UnsupportedCacheError
from pomona.workers.models.fingerprint import tokenizer_digest, weights_digest
from pomona.workers.prefix import PrefixStore, layout_of
from pomona.workers.recent import RecentPrefixes

log = logging.getLogger(__name__)

PROBES = (1, 5)
"""Tokens of the forwards that show the layout."""


def open_prefix_store(me: Peer, config: Config, folder: Path, model: Any) -> PrefixStore:
    """The store of one worker; it keeps nothing where a cache of the model is of a kind that cannot be restored."""
    try:
        layout = probe_layout(model)
    except UnsupportedCacheError as error:
        log.info("prefix-cache-off model=%s reason=%r", folder.name, str(error))
        nothing = KVLayout(())
        return PrefixStore(None, _fingerprint(nothing, "", "", 1).root, nothing, 1)
    block_tokens = layout.block_tokens(config.cache.block_bytes)
    recent = RecentPrefixes(config.cache.ram_bytes, block_tokens)
    if not config.cache.enabled:
        return PrefixStore(None, _fingerprint(layout, "", "", block_tokens).root, layout, block_tokens, recent)
    fingerprint = _fingerprint(layout, weights_digest(folder).hex(), tokenizer_digest(folder).hex(), block_tokens)
    return PrefixStore(CacheClient(config.cache_endpoint, me), fingerprint.root, layout, block_tokens, recent)


def _fingerprint(layout: KVLayout, weights: str, tokenizer: str, block_tokens: int) -> Fingerprint:
    engine = "/".join(
        [importlib.metadata.version("mlx"), importlib.metadata.version("mlx-lm"), device.describe()],
    )
    return Fingerprint(weights, tokenizer, layout, block_tokens, engine=engine)


def probe_layout(model: Any) -> KVLayout:
    """What fresh caches hold after a token, which must be of the same form after a few more.

    Raises UnsupportedCacheError.
    """
    caches = make_prompt_cache(model)
    layouts = []
    for tokens in PROBES:
        model(mx.zeros((1, tokens), dtype=mx.int32), cache=caches)
        mx.eval([cache.state for cache in caches])
        layouts.append(layout_of(caches))
    for number, (first, later) in enumerate(zip(layouts[0].layers, layouts[-1].layers, strict=True)):
        if first != later:
            raise UnsupportedCacheError(f"cache {number}: its arrays change their form with the tokens")
    return layouts[0]
