"""Fixtures that every test folder may use."""

from pathlib import Path

import pytest

from tests.support.tiny_model import build_tiny_model

pytest_plugins = ["tests.support.smollm2"]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama as a Hugging Face folder, id `tiny`."""
    return build_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
