"""How threads and signal handlers reach an event loop that sleeps on sockets."""

import queue
import socket
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Doorbell(Generic[Item]):
    """`post` from any thread or signal handler; the loop polls `fileno()` and drains.

    Its write end also serves as `signal.set_wakeup_fd`: a signal that another thread takes wakes the loop all the same.
    """

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        return self._reader.fileno()

    @property
    def wakeup_fd(self) -> int:
        return self._writer.fileno()

    def post(self, item: Item) -> None:
        self._items.put(item)
        try:
            self._writer.send(b"\0")
        except BlockingIOError:
            return  # the loop has yet to take an earlier ring, and takes this item with it
        except OSError:
            return  # closed: nobody listens any more

    def drain(self) -> Iterator[Item]:
        """All items posted so far, oldest first."""
        try:
            while self._reader.recv(4096):
                pass
        except BlockingIOError:
            pass
        while True:
            try:
                yield self._items.get_nowait()
            except queue.Empty:
                return

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
