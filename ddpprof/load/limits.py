"""What no real trace reaches, and what was made to fill memory or to take for ever does."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one trace file; the defaults are several times what traces of the longest recordings reach."""

    inflated_bytes: int = 64 * 10**9
    """of its JSON. Of a rank 10 GB are much"""
    events: int = 500_000_000
    inflation: int = 300
    """How many times as large as the file its JSON may be, beyond the first GB: traces reach 50, a gzip bomb 1000."""
    whole_bytes: int = 2 * 10**9
    """of its JSON where the layout forbids batches: memory then holds several times as much"""
    keys_bytes: int = 256 * 10**6
    """of what stands before and after the events, which is read in one piece"""
    files: int = 20_000
    """in one folder that may be traces: each is opened to see of which rank it is"""

    @classmethod
    def chosen(cls, trace_gb: float | None, events: int | None, files: int | None = None) -> Limits:
        """As the user says; who says how large a trace may be knows it, however well it is compressed."""
        limits = cls()
        if trace_gb is not None:
            limits = replace(limits, inflated_bytes=round(trace_gb * 10**9), inflation=_ANY)
        given = {name: value for name, value in (("events", events), ("files", files)) if value is not None}
        return replace(limits, **given)


_ANY = 1 << 62


DEFAULT_LIMITS = Limits()

MAX_TRACE_OPTION, MAX_EVENTS_OPTION, MAX_FILES_OPTION = "--max-trace-gb", "--max-events", "--max-files"
"""of the command line; errors name them"""
