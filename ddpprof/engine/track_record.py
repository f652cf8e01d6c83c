"""How often did the first change recommended by a rule shorten the step as promised? Measured by `analyses/advice`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_RIGHT = 0.8
"""minimum share of trials that must confirm a rule for it to be recommended first"""


class Tried(NamedTuple):
    num_cases: int
    num_confirmed: int


TRACK_RECORD: Mapping[str, Tried] = {
    "buckets-too-large": Tried(4, 4),
    "idle-for-data": Tried(1, 1),
    "reduces-every-pass": Tried(1, 1),
    "trailing-communication": Tried(5, 5),
}
"""rule → its trials with a verdict, as in `analyses/advice/results.json`; other rules have not been tried"""


def is_trusted(rule: str) -> bool:
    """Return True if the rule may be recommended first: it is not known to be wrong in more than a fifth of cases."""
    tried = TRACK_RECORD.get(rule)
    return tried is None or tried.num_confirmed >= _RIGHT * tried.num_cases
