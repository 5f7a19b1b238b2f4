"""One server with the real model for the tests that do not harm it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import Server, serving

MODEL = "smollm2-135m-instruct"


@pytest.fixture(scope="package")
def smollm2(smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("home"), [smollm2_folder]) as server:
        yield server
