import re
import socket

import pytest

from pomona.cli.bench.models import find_target
from pomona.cli.bench.problem import BenchError
from tests.cli.bench.stub import Stub


def test_the_first_listed_model_is_taken_unless_one_is_named(stub: Stub) -> None:
    stub.models = ("apple", "pear")
    assert find_target(stub.url, None, None).model == "apple"
    assert find_target(stub.url, "pear", "k").model == "pear"
    assert find_target(stub.url, "pear", "k").key == "k"


def test_an_address_without_a_path_gets_v1(stub: Stub) -> None:
    bare = stub.url.removesuffix("/v1")
    assert find_target(bare, None, None).url == stub.url
    assert find_target(bare + "/", None, None).url == stub.url
    assert find_target(stub.url + "/", None, None).url == stub.url


def test_a_server_without_models_needs_one_named(stub: Stub) -> None:
    stub.models = ()
    with pytest.raises(BenchError, match="lists no model: name the --model"):
        find_target(stub.url, None, None)


def test_an_address_that_lists_nothing_readable_needs_a_model_named(stub: Stub) -> None:
    with pytest.raises(BenchError, match="name the --model"):
        find_target(stub.url + "/elsewhere", None, None)


def test_nobody_at_the_address_is_one_line_with_the_mend() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    with pytest.raises(BenchError, match=re.escape(f"nothing answers at {url}") + ".*--url"):
        find_target(url, "good", None)


@pytest.mark.parametrize("url", ["localhost:8420", "ftp://127.0.0.1/v1", "http://", "http://[::1", ""])
def test_what_is_no_web_address_is_refused(url: str) -> None:
    with pytest.raises(BenchError, match=r"write it like http://127\.0\.0\.1:8420/v1"):
        find_target(url, None, None)
