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
from ddpprof.cli.experiments import add_experiment_options, run_experiment
from ddpprof.cli.show import add_compare_options, add_output_options, run_compare, run_report
from ddpprof.cli.timeline import add_timeline_options
from ddpprof.cli.trace import add_trace_options, run_trace, split
from ddpprof.errors import DdpprofError

_DESCRIPTION = """\
What does DistributedDataParallel cost, and which knob to turn?

  ddpprof demo                                        trace a small training that comes with ddpprof
  ddpprof trace train.py --epochs 1                   the script starts its own ranks
  ddpprof trace --nproc-per-node 2 train.py           the script expects torchrun
  ddpprof trace -- accelerate launch train.py         any other command
  ddpprof overhead train.py                           with DDP, and without: what does the wrapper cost?
  ddpprof scale --nproc 1,2,4 train.py                how much faster are more processes?
  ddpprof sweep --vary bucket_cap_mb=1,5,25 train.py  the step time over values of any option
  ddpprof report runs/train-20260101-120000           show a run again
  ddpprof compare runs/before runs/after              two runs side by side
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 2 for a mistake that the message says how to mend."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # where the terminal's encoding lacks the bars
    try:
        parser, of_jobs = _parsers()
        job = of_jobs.get(arguments[0]) if arguments else None
        if job is not None and arguments[0] == "trace":
            own, command = split(arguments[1:], job)
            return run_trace(job, job.parse_args(own), command)
        if job is not None:
            return run_experiment(job, arguments[1:])
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


_EXPERIMENTS = {
    "overhead": ("measure what DDP costs: the job with it, and with its wrapper taken away", 5),
    "scale": ("measure how much faster more processes train, and where the lost time goes", 3),
    "sweep": ("measure the step time over values of an option, of the script's or DDP's", 3),
}
"""What each does, and in how many rounds."""


def _parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser, and those of commands that take a job: their arguments are not all ddpprof's."""
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
    of_jobs: dict[str, argparse.ArgumentParser] = {"trace": trace}
    report = commands.add_parser("report", help="show a run, or torch.profiler traces that ddpprof did not record")
    report.add_argument(
        "path",
        type=Path,
        help="a run, traces of torch.profiler, a Horovod timeline, an experiment, or a CSV table of times",
    )
    add_output_options(report)
    report.set_defaults(run=run_report)
    compare = commands.add_parser("compare", help="show two runs side by side: what became slower, beyond noise")
    add_compare_options(compare)
    compare.set_defaults(run=run_compare)
    add_timeline_options(
        commands.add_parser("timeline", help="write a run as one file for Perfetto, all ranks on one clock")
    )
    for name, (what, rounds) in _EXPERIMENTS.items():
        of_jobs[name] = commands.add_parser(
            name,
            help=what,
            usage=f"ddpprof {name} [options] train.py [its arguments]\n"
            f"       ddpprof {name} [options] -- command [its arguments]",
            allow_abbrev=False,
        )
        add_experiment_options(of_jobs[name], name, rounds)
    demo = commands.add_parser("demo", help="trace the small trainings that come with ddpprof")
    demo.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="where the runs go (default: runs)")
    demo.set_defaults(run=_demo)
    return parser, of_jobs


def _demo(options: argparse.Namespace) -> int:
    for name in ("convnet", "transformer"):
        command = ["trace", "--force", "--out", str(options.out / f"demo-{name}"), "-m", f"ddpprof.demo.train_{name}"]
        print(f"$ ddpprof {' '.join(command)}", flush=True)
        code = main(command)
        if code:
            return code
    return 0
