"""The command line: parse, call, print. Nothing is computed here, and nothing heavy is imported before it is needed."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

from ddpprof import __version__
from ddpprof.cli.show import add_compare_options, add_output_options, run_compare, run_report
from ddpprof.cli.trace import add_trace_options, run_trace, split
from ddpprof.errors import DdpprofError

_DESCRIPTION = """\
What does DistributedDataParallel cost, and which knob to turn?

  ddpprof demo                                     trace a small training that comes with ddpprof
  ddpprof trace train.py --epochs 1                the script starts its own ranks
  ddpprof trace --nproc-per-node 2 train.py        the script expects torchrun
  ddpprof trace -- accelerate launch train.py      any other command
  ddpprof report runs/train-20260101-120000        show a run again
  ddpprof compare runs/before runs/after           two runs side by side
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 2 for a mistake that the message says how to mend."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # where the terminal's encoding lacks the bars
    try:
        parser, trace = _parsers()
        if arguments[:1] == ["trace"]:
            own, command = split(arguments[1:], trace)
            return run_trace(trace, trace.parse_args(own), command)
        options = parser.parse_args(arguments)
        if options.run is None:
            parser.print_help()
            return 0
        return int(options.run(options))
    except DdpprofError as error:
        print(f"ddpprof: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # `ddpprof report … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


class _Parser(argparse.ArgumentParser):
    """Mistakes in one line, like all others."""

    def error(self, message: str) -> NoReturn:
        raise DdpprofError(f"{message}. See: {self.prog} --help")


def _parsers() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    parser = _Parser(prog="ddpprof", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"ddpprof {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    trace = commands.add_parser(
        "trace",
        help="record a training, without an edit of its script, and report on it",
        usage="ddpprof trace [options] [torchrun's options] train.py [its arguments]\n"
        "       ddpprof trace [options] -- command [its arguments]",
        allow_abbrev=False,
    )
    add_trace_options(trace)
    report = commands.add_parser("report", help="show a run, or torch.profiler traces that ddpprof did not record")
    report.add_argument("path", type=Path, help="a run directory, a directory of traces, or one trace file")
    add_output_options(report)
    report.set_defaults(run=run_report)
    compare = commands.add_parser("compare", help="show two runs side by side: what became slower, beyond noise")
    add_compare_options(compare)
    compare.set_defaults(run=run_compare)
    demo = commands.add_parser("demo", help="trace the small trainings that come with ddpprof")
    demo.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="where the runs go (default: runs)")
    demo.set_defaults(run=_demo)
    return parser, trace


def _demo(options: argparse.Namespace) -> int:
    for name in ("convnet", "transformer"):
        command = ["trace", "--force", "--out", str(options.out / f"demo-{name}"), "-m", f"ddpprof.demo.train_{name}"]
        print(f"$ ddpprof {' '.join(command)}", flush=True)
        code = main(command)
        if code:
            return code
    return 0
