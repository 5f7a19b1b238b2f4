"""The one place for calls that exist only on Metal, and for what the device says of itself."""

import mlx.core as mx
import psutil


def on_metal() -> bool:
    return bool(mx.metal.is_available())


def describe() -> str:
    """`Metal (Apple M3 Max)` or `CPU`; for people."""
    if on_metal():
        return f"Metal ({mx.device_info().get('device_name', 'Apple GPU')})"
    return "CPU"


def bound_buffer_cache() -> None:
    """Keep freed buffers from growing without end: at most a sixteenth of the machine's memory on Metal.

    The wired limit is left alone: raising it has been reported to bring machines down under eviction churn
    (ml-explore/mlx#3186).
    """
    if on_metal():
        mx.set_cache_limit(psutil.virtual_memory().total // 16)


def free_bytes() -> int:
    """Bytes of the machine's memory that are free for new use, as the system estimates it."""
    return int(psutil.virtual_memory().available)


def finish() -> None:
    """Wait until everything that was launched is computed."""
    mx.synchronize()


def memory_bytes() -> int:
    """Bytes that the model, its caches and temporaries take now."""
    if on_metal():
        return int(mx.get_active_memory())
    return int(psutil.Process().memory_info().rss)
