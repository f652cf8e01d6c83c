"""How does a rank say how it ended?"""

from __future__ import annotations

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
    said = str(error).strip().partition("\n")[0]
    return f"failed: {type(error).__name__}: {said if len(said) <= _MOST else f'{said[: _MOST - 1]}…'}"
