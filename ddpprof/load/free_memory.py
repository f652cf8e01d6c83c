"""Return the memory of freed arrays to the system."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_BYTES = 2 << 20
"""more than a batch needs at once: a mapping of its own for each batch would have to be zeroed each time"""
_TRIM_BYTES = 4 << 20


def give_back_large_arrays() -> None:
    """Let large arrays go back to the system when they are freed; else glibc soon keeps their memory for reuse.

    The setting is the whole process's, so a library must not choose it. Without glibc nothing happens.
    """
    with suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def give_back_holes() -> None:
    """Return the heap's holes, which thousands of small arrays leave, to the system; without glibc, do nothing."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
