"""What is usual of a number that some steps or ranks may lack?"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median


def median_known(values: Iterable[int | None]) -> int | None:
    """``None`` where all are."""
    known = [value for value in values if value is not None]
    return round(median(known)) if known else None
