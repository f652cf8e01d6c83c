"""`ddpprof demo`: trace the example trainings that come with ddpprof."""

from __future__ import annotations

import argparse
from pathlib import Path

from ddpprof.files import local


def add_demo_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=local, default=Path("runs"), metavar="DIR", help="folder for the runs (default: runs)"
    )
    parser.set_defaults(run=run_demo)


def run_demo(options: argparse.Namespace) -> int:
    from ddpprof.cli import main

    for name in ("convnet", "transformer"):
        command = ["trace", "--force", "--out", str(options.out / f"demo-{name}"), "-m", f"ddpprof.demo.train_{name}"]
        print(f"$ ddpprof {' '.join(command)}", flush=True)
        code = main(command)
        if code:
            return code
    return 0
