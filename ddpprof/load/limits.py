"""Limits that no real trace reaches, but files made to fill memory or to take for ever do."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one trace file; the defaults are several times what traces of the longest recordings reach."""

    inflated_bytes: int = 64 * 10**9
    """size of its JSON; 10 GB are much for a rank"""
    events: int = 500_000_000
    inflation: int = 300
    """ratio of JSON to file size, beyond the first GB: traces reach 50, a gzip bomb 1000"""
    whole_bytes: int = 2 * 10**9
    """size of its JSON if the layout forbids batches: memory then holds several times as much"""
    keys_bytes: int = 256 * 10**6
    """size of the text before and after the events, which is read in one piece"""
    files: int = 20_000
    """number of files in one folder that may be traces: each is opened to find its rank"""

    @classmethod
    def chosen(cls, trace_gb: float | None, events: int | None, files: int | None = None) -> Limits:
        """Return the user's limits; a user who gives a trace's size knows the trace, so any compression is allowed."""
        limits = cls()
        if trace_gb is not None:
            limits = replace(limits, inflated_bytes=round(trace_gb * 10**9), inflation=_ANY)
        given = {name: value for name, value in (("events", events), ("files", files)) if value is not None}
        return replace(limits, **given)


_ANY = 1 << 62


DEFAULT_LIMITS = Limits()

MAX_TRACE_OPTION, MAX_EVENTS_OPTION, MAX_FILES_OPTION = "--max-trace-gb", "--max-events", "--max-files"
"""command-line options that errors name"""
