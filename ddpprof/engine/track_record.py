"""How often did the first change that a rule advises shorten the step as promised? `analyses/advice` has tried it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_RIGHT = 0.8
"""least share of trials that must confirm a rule for it to be advised first"""


class Tried(NamedTuple):
    num_cases: int
    num_confirmed: int


TRACK_RECORD: Mapping[str, Tried] = {
    "buckets-too-large": Tried(2, 2),
    "trailing-communication": Tried(2, 2),
}
"""rule → its trials that came to a verdict, as in `analyses/advice/results.json`; others have not been tried"""


def is_trusted(rule: str) -> bool:
    """Return whether the rule may be advised first: it is not known to be wrong in more than a fifth of cases."""
    tried = TRACK_RECORD.get(rule)
    return tried is None or tried.num_confirmed >= _RIGHT * tried.num_cases
