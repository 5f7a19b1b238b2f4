"""The listening HTTP socket: bound before anything starts, shared by all gateways and kept over their restarts."""

import errno
import socket

import psutil

from pomona.refusal import Refusal

BACKLOG = 1024
PROBE_S = 0.5


def listen(host: str, port: int) -> socket.socket:
    """A socket that accepts connections at `host`; port 0 lets the system choose one.

    Raises Refusal in one line that names the address, what is wrong and the mend.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise Refusal(
            f"host {host}: is no address of this machine ({error.strerror}); choose another with --host"
        ) from error
    # `localhost` is both ::1 and 127.0.0.1; old clients try the latter only.
    family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    if port and _answers(family, address):
        raise _in_use(host, port)
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _refusal(host, port, error) from error
    return listener


def _answers(family: int, address: tuple[object, ...]) -> bool:
    """With SO_REUSEADDR macOS lets 127.0.0.1 be bound while another server has the port on all addresses."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_S)
        return probe.connect_ex(address) == 0


def _refusal(host: str, port: int, error: OSError) -> Refusal:
    match error.errno:
        case errno.EADDRINUSE:
            return _in_use(host, port)
        case errno.EACCES:
            return Refusal(f"port {port} on {host}: needs administrator rights; choose one from 1024 up with --port")
        case errno.EADDRNOTAVAIL:
            return Refusal(f"host {host}: is no address of this machine; choose another with --host")
        case _:
            return Refusal(f"port {port} on {host}: cannot listen ({error.strerror}); choose another with --port")


def _in_use(host: str, port: int) -> Refusal:
    return Refusal(f"port {port} on {host} is in use{_holder(port)}; choose another with --port")


def _holder(port: int) -> str:
    """` by process N (NAME)` where the system tells it."""
    try:
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
            if listens and connection.pid:
                return f" by process {connection.pid} ({psutil.Process(connection.pid).name()})"
    except psutil.Error:
        return ""  # macOS tells it to root only
    return ""


def url(host: str, port: int) -> str:
    """How a client on this machine reaches a server that listens there."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{reachable}:{port}"
