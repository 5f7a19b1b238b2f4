import socket

import pytest

from pomona.listener import listen, url
from pomona.refusal import Refusal


def test_the_socket_accepts_connections_at_once() -> None:
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()) as client:
        accepted, address = listener.accept()
        accepted.close()
        assert address == client.getsockname()


def test_localhost_is_reached_by_its_old_address() -> None:
    with listen("localhost", 0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_a_port_in_use_is_one_line_with_the_mend() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(
            Refusal, match=rf"^port {port} on 127\.0\.0\.1 is in use( by process .*)?; choose another with --port$"
        ):
            listen("127.0.0.1", port)


def test_a_port_that_is_bound_but_not_yet_listening_is_in_use_too() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        with pytest.raises(Refusal, match="is in use"):
            listen("127.0.0.1", port)


def test_a_port_that_was_just_left_can_be_taken_again() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = listener.accept()
        accepted.close()  # the server closes first, so its end stays behind in TIME_WAIT
        client.close()
    listen("127.0.0.1", port).close()


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_a_host_that_is_not_here_is_one_line_with_the_mend(host: str) -> None:
    with pytest.raises(Refusal, match=rf"^host {host}: is no .*; choose another with --host$"):
        listen(host, 0)


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        ("127.0.0.1", "http://127.0.0.1:8420"),
        ("0.0.0.0", "http://127.0.0.1:8420"),
        ("::", "http://[::1]:8420"),
        ("::1", "http://[::1]:8420"),
        ("mac.local", "http://mac.local:8420"),
    ],
)
def test_the_url_is_one_that_a_client_here_can_use(host: str, reached: str) -> None:
    assert url(host, 8420) == reached
