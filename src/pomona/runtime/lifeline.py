"""How an actor learns that the supervisor is gone: the read end of a pipe that only the supervisor holds open.

The kernel closes the pipe however the supervisor ends, kill -9 included, so nothing has to be sent for it.
"""

import os
import threading

ORPHANED = 75
"""Exit status of an actor whose supervisor went away."""


def hold(descriptor: int) -> None:
    """End this process at once, without clean-up, as soon as `descriptor` reads end-of-file."""
    threading.Thread(target=_watch, args=(descriptor,), name="lifeline", daemon=True).start()


def _watch(descriptor: int) -> None:
    while os.read(descriptor, 4096):
        pass
    os._exit(ORPHANED)
