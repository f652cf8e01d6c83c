"""Memory that arrays gave back goes back to the system, in processes that are ddpprof's own."""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3
_THRESHOLD_BYTES = 1 << 16


def give_back_freed_arrays() -> None:
    """Else glibc soon keeps what is freed, for reuse, and the heap of a long trace is half holes.

    It is a setting of the whole process, so nothing for a library to choose. Without glibc nothing happens.
    """
    try:
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES)
    except (OSError, AttributeError, TypeError):
        return
