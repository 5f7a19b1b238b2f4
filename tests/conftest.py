"""Fixtures that every test folder may use."""

import signal
from pathlib import Path

import pytest

from tests.support.tiny_model import build_tiny_model

# A shell that runs the tests in the background has SIGINT ignored, and every process below inherits that; with a
# handler here, the processes that tests interrupt start with the default.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.support.smollm2"]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama as a Hugging Face folder, id `tiny`."""
    return build_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
