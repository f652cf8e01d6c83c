"""`ddpprof demo`: trace the example training scripts that are part of ddpprof."""

from __future__ import annotations

import argparse
from pathlib import Path

from ddpprof.files import local

_TRAININGS = (("convnet",), ("transformer", "--read-ms", "3"))


def add_demo_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=local, default=Path("runs"), metavar="DIR", help="folder for the runs (default: runs)"
    )
    parser.set_defaults(run=run_demo)


def run_demo(options: argparse.Namespace) -> int:
    from ddpprof.cli import main

    for name, *words in _TRAININGS:
        run = ["--force", "--out", str(options.out / f"demo-{name}")]
        command = ["trace", *run, "-m", f"ddpprof.demo.train_{name}", *words]
        print(f"$ ddpprof {' '.join(command)}", flush=True)
        code = main(command)
        if code:
            return code
    return 0
