"""Memory that arrays gave back goes back to the system."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_BYTES = 2 << 20
"""More than a batch needs at once: memory of its own for each of them would have to be zeroed each time."""
_TRIM_BYTES = 4 << 20


def give_back_large_arrays() -> None:
    """As soon as they are freed; else glibc soon keeps what is freed, for reuse.

    It is a setting of the whole process, so nothing for a library to choose. Without glibc nothing happens.
    """
    with suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def give_back_holes() -> None:
    """The heap is full of them after thousands of small arrays. Any process may ask for it; without glibc: nothing."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
