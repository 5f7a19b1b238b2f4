"""Fixtures that every test folder may use."""

import signal
from pathlib import Path

import pytest

from tests.support.tiny_model import build_tiny_model

# A shell that runs the tests in the background has SIGINT ignored, and nohup SIGHUP; every process below inherits that.
# With handlers here, the processes that tests send these signals to start with the default.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest_plugins = ["tests.support.smollm2"]

SERVERS = ("tests/system/", "tests/cli/", "tests/conformance/")
"""Folders whose tests start whole servers; these take turns, in one of the processes that run the tests."""


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests belong into one process: those that start servers, first, as they take longest; then each file,
    so that what it sets up is set up once.
    """
    items.sort(key=lambda item: not item.nodeid.startswith(SERVERS))
    for item in items:
        name, _, _ = item.nodeid.partition("::")
        item.add_marker(pytest.mark.xdist_group("servers" if name.startswith(SERVERS) else name))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama as a Hugging Face folder, id `tiny`."""
    return build_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
