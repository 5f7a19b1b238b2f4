"""Fixtures that every test folder may use."""

import signal
from pathlib import Path

import hypothesis
import pytest

from tests.support.tiny_model import build_tiny_model

# A shell that runs the tests in the background has SIGINT ignored, and nohup SIGHUP; every process below inherits that.
# With handlers here, the processes that tests send these signals to start with the default.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# How long an example takes says nothing on a busy machine.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

pytest_plugins = ["tests.support.smollm2"]

SERVERS = ("tests/system/", "tests/cli/", "tests/conformance/")
"""Folders whose tests start whole servers."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that start servers come first, as they take longest."""
    items.sort(key=lambda item: not item.nodeid.startswith(SERVERS))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama as a Hugging Face folder, id `tiny`."""
    return build_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
