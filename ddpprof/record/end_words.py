"""How does a rank say how it ended, and where?"""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from ddpprof.model.stack import collective_of, frames_of, place_of_user

_MOST = 200


def how_it_ends(error: BaseException | None) -> str:
    """Return ``"finished"``, ``"interrupted"`` for Ctrl-C, or ``"failed: "`` with `error`, which ends the process."""
    if isinstance(error, SystemExit):
        if error.code in (None, 0):
            return "finished"
        error = error.__context__ or error  # `mp.spawn` catches the error that ends a rank, and exits with 1
    if error is None:
        return "finished"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if "exited unexpectedly" in str(error) and error.__cause__ is not None:
        error = error.__cause__  # `DataLoader` says with it what killed its worker
    said = _in_one_line(str(error).strip())
    return f"failed: {type(error).__name__}: {said if len(said) <= _MOST else f'{said[: _MOST - 1]}…'}"


def _in_one_line(said: str) -> str:
    """Return the first line of an error and, of NCCL's and a `DataLoader`'s, also the one that names the cause."""
    first, (_, _, cause) = said.partition("\n")[0], said.partition("Last error:\n")
    if first.startswith("Caught "):  # in a worker process, whose traceback follows
        cause = said.rpartition("\n")[2]
    cause = cause.partition("\n")[0].strip()
    return f"{cause} ({first})" if cause else first


@dataclass(frozen=True, slots=True)
class EndPlace:
    """Where the error was raised that ends the process; ``None`` where that is not known."""

    line: str | None = None
    """innermost line of the user's code, as ``file:line in function``"""
    collective: str | None = None
    """collective of torch in which it was raised"""


def where_it_ends(error: BaseException | None) -> EndPlace:
    """Return where in the traceback of the `error` that ends the process."""
    if isinstance(error, SystemExit) and error.__context__ is not None:
        error = error.__context__
    if error is None or isinstance(error, SystemExit):
        return EndPlace()
    frames = frames_of(traceback.walk_tb(error.__traceback__))
    place = place_of_user(frames)
    return EndPlace(None if place is None else str(place), collective_of(frames))
