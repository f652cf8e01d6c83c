"""Limits that no real trace reaches, against files made to fill memory or to take forever."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one trace file. The defaults are several times what traces of the longest recordings reach."""

    inflated_bytes: int = 64 * 10**9
    """size of its JSON; 10 GB is a lot for a rank"""
    events: int = 500_000_000
    inflation: int = 300
    """ratio of JSON to file size, beyond the first GB: traces reach 50, a gzip bomb 1000"""
    whole_bytes: int = 2 * 10**9
    """size of its JSON if the layout does not allow batches: memory then holds several times as much"""
    keys_bytes: int = 256 * 10**6
    """size of the text before and after the events, which is read in one piece"""
    files: int = 20_000
    """number of files in one folder that may be traces; each is opened to determine its rank"""

    @classmethod
    def chosen(cls, trace_gb: float | None, events: int | None, files: int | None = None) -> Limits:
        """Return the limits with the user's values.

        A user who gives a trace's size knows the trace: any compression is allowed.
        """
        limits = cls()
        if trace_gb is not None:
            limits = replace(limits, inflated_bytes=round(trace_gb * 10**9), inflation=_ANY)
        given = {name: value for name, value in (("events", events), ("files", files)) if value is not None}
        return replace(limits, **given)


_ANY = 1 << 62


DEFAULT_LIMITS = Limits()

MAX_TRACE_OPTION, MAX_EVENTS_OPTION, MAX_FILES_OPTION = "--max-trace-gb", "--max-events", "--max-files"
"""command-line options named in errors"""


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_BYTES = 2 << 20
"""more than a batch needs at a time: a separate mapping for each batch would have to be zeroed each time"""
_TRIM_BYTES = 4 << 20


def give_back_large_arrays() -> None:
    """Return large arrays to the system when they are freed. Otherwise, glibc soon keeps their memory for reuse.

    The setting applies to the whole process, so a library must not choose it. Without glibc, this does nothing.
    """
    with suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def give_back_holes() -> None:
    """Return free memory between thousands of small arrays on the heap to the system. Without glibc, do nothing."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
