"""Detection of a script that dies because no launcher has set RANK, so that `ddpprof trace` can say so."""

import os
import sys

_LAUNCHER_VARIABLES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE"}


def install(note):
    """Write the file `note` when the process ends for lack of RANK. Other exceptions are shown as usual."""
    show = sys.excepthook

    def hook(kind, value, traceback):
        missing = _missing_variable(kind, value)
        if missing is None:
            show(kind, value, traceback)
        else:
            with open(note, "w", encoding="utf-8") as file:
                file.write(missing)

    sys.excepthook = hook


def _missing_variable(kind, value):
    """Return the variable's name, if its absence ended the script."""
    if issubclass(kind, KeyError) and value.args and value.args[0] in _LAUNCHER_VARIABLES - os.environ.keys():
        return value.args[0]
    message = str(value)
    if issubclass(kind, ValueError) and "environment variable" in message and "expected, but not set" in message:
        return next((name for name in sorted(_LAUNCHER_VARIABLES) if f"variable {name} " in message), "RANK")
    return None
