"""Text helpers: valid UTF-8 names, and lists that name only the first items."""

from __future__ import annotations

from collections.abc import Sequence

_MOST_RANKS = 8
_MOST_PARAMETERS = 4


def listed(words: Sequence[object], most: int) -> str:
    """Return the first `most` words and the number of the remaining words, such as ``a, b and 3 more``."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return f"{', '.join(map(str, words[:most]))}{more}"


def clauses(words: Sequence[str], most: int) -> str:
    """Return the first `most` clauses and the number of the remaining clauses, such as ``a; b; and 3 more``."""
    return "; ".join([*words[:most], *([f"and {len(words) - most} more"] if len(words) > most else [])])


def ranks_in_words(ranks: Sequence[int], most: int = _MOST_RANKS) -> str:
    """Return ranks as text, such as ``rank 3`` or ``ranks 0, 1``. Only the first `most` ranks are named."""
    return f"rank{'s' if len(ranks) > 1 else ''} {listed(ranks, most)}"


def utf8_text(name: str) -> str:
    """Return a name as valid UTF-8, as JSON requires; file names may be invalid."""
    return name.encode("utf-8", "replace").decode()


def not_averaged(parameters: Sequence[str]) -> str:
    """Return a clause about parameters that were frozen when DDP was constructed and have been trained since."""
    those = "1 parameter that was" if len(parameters) == 1 else f"{len(parameters)} parameters that were"
    named = listed(parameters, _MOST_PARAMETERS)
    return f"DDP does not average the gradients of {those} frozen when DDP was constructed: {named}"


def trained_apart(parameters: Sequence[str]) -> str:
    """Return a clause that says that each rank trains its own copy of these parameters."""
    return f"each rank has since trained its own copy of {'it' if len(parameters) == 1 else 'them'}"


CONSTRUCT_AGAIN = "Construct DDP again after unfreezing parameters."
