"""Entry point of the process for one check: ``python -m ddpprof.doctor.one MODULE FUNCTION CONTEXT``."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import NoReturn

from ddpprof.child_processes import adopt_orphans, kill_descendants
from ddpprof.doctor.check import CannotCheck, Context, Run, Setup
from ddpprof.doctor.processes import RESULT_FILE
from ddpprof.errors import DdpprofError


def main(module: str, function: str, about: str) -> int:
    adopt_orphans()
    signal.signal(signal.SIGTERM, _end)
    given = json.loads(about)
    context = Context(Path(given["folder"]), Path(given["out"]), given["gpus"], Setup(**given["setup"]))
    run: Run = getattr(import_module(f"ddpprof.doctor.{module}"), function)
    try:
        outcomes = list(run(context))
    except (CannotCheck, DdpprofError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        kill_descendants()
    result = [asdict(outcome) for outcome in outcomes]
    (context.folder / RESULT_FILE).write_text(json.dumps(result), encoding="utf-8")
    return 0


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
