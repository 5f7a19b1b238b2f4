from collections.abc import Iterator

import pytest

from tests.cli.bench.stub import Stub, running


@pytest.fixture
def stub() -> Iterator[Stub]:
    with running(Stub()) as served:
        yield served
