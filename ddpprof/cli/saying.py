"""The only place that prints sentences; names and texts in them may come from untrusted files."""

from __future__ import annotations

import sys
from typing import TextIO

_LONGEST_LINE = 2000
"""characters; long enough to show most command lines in full"""


def say(*texts: object, file: TextIO | None = None, end: str = "\n", flush: bool = False) -> None:
    """Print as ``print`` does, but shorten very long lines and remove control characters."""
    from ddpprof.layout import clean

    lines = [_shortened(line) for line in " ".join(map(str, texts)).split("\n")]
    print("\n".join(clean(line, _LONGEST_LINE) for line in lines), file=file or sys.stdout, end=end, flush=flush)


def _shortened(line: str) -> str:
    """Shorten a long line in the middle, because its end often says what went wrong."""
    half = _LONGEST_LINE // 2 - 1
    return line if len(line) <= _LONGEST_LINE else f"{line[:half]}…{line[-half:]}"
