"""Every command, what it is for and what it takes. The help, the shells' completion and the parsers come from here."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from ddpprof import __version__
from ddpprof.cli.compare import add_compare_options, run_compare
from ddpprof.cli.completion import add_completion_options
from ddpprof.cli.demo import add_demo_options
from ddpprof.cli.doctor import add_doctor_options
from ddpprof.cli.experiments import add_experiment_options, run_experiment
from ddpprof.cli.explain import add_explain_options
from ddpprof.cli.netbench import add_netbench_options
from ddpprof.cli.report import add_report_options
from ddpprof.cli.schema import add_schema_options
from ddpprof.cli.tensorboard import add_tensorboard_options
from ddpprof.cli.timeline import add_timeline_options
from ddpprof.cli.trace import add_trace_options, run_trace
from ddpprof.cli.tune import add_tune_options, run_tune
from ddpprof.cli.whatif import add_whatif_options
from ddpprof.errors import DdpprofError
from ddpprof.own_files import WORLD_READABLE

Parser = argparse.ArgumentParser


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    summary: str
    example: str
    add_options: Callable[[Parser], None]
    run_job: Callable[[Parser, Sequence[str]], int] | None = None
    """of a command that splits its words itself, as at ``--``: with its parser, and what stands behind its name"""
    writes_files: bool = True


@dataclass(frozen=True, slots=True)
class Group:
    title: str
    commands: tuple[Command, ...]


def _experiment(name: str, rounds: int) -> Callable[[Parser], None]:
    return lambda parser: add_experiment_options(parser, name, rounds)


GROUPS = (
    Group(
        "",
        (
            Command(
                "trace",
                "record a training without an edit of its script, and report on it",
                "ddpprof trace --nproc-per-node 2 train.py",
                add_trace_options,
                run_trace,
            ),
            Command(
                "report",
                "look at a run, or at traces of torch.profiler: here, or as a page",
                "ddpprof report runs/a --out report.html",
                add_report_options,
            ),
            Command(
                "compare",
                "two jobs side by side: what became slower, beyond noise",
                "ddpprof compare runs/before runs/after",
                add_compare_options,
                run_compare,
            ),
        ),
    ),
    Group(
        "Look",
        (
            Command(
                "timeline",
                "write a run as one file for Perfetto, all ranks on one clock",
                "ddpprof timeline runs/a",
                add_timeline_options,
            ),
            Command(
                "tensorboard",
                "start TensorBoard with runs in it and its profiler page put right",
                "ddpprof tensorboard runs/a runs/b",
                add_tensorboard_options,
            ),
            Command(
                "schema",
                "print the JSON Schema of a report",
                "ddpprof schema report",
                add_schema_options,
                writes_files=False,
            ),
            Command(
                "explain", "say what a term means", "ddpprof explain exposed", add_explain_options, writes_files=False
            ),
        ),
    ),
    Group(
        "Predict",
        (
            Command(
                "whatif",
                "the recorded step under other buckets, networks, numbers of ranks",
                "ddpprof whatif runs/a --bucket-cap-mb 1,5,25",
                add_whatif_options,
            ),
            Command(
                "tune",
                "try the buckets that the prediction likes best, for real",
                "ddpprof tune --nproc 2 train.py",
                add_tune_options,
                run_tune,
            ),
        ),
    ),
    Group(
        "Measure by experiment",
        (
            Command(
                "overhead",
                "what DDP costs: the job with it, and with its wrapper taken away",
                "ddpprof overhead train.py",
                _experiment("overhead", 5),
                run_experiment,
            ),
            Command(
                "scale",
                "how much faster more processes train, and where time is lost",
                "ddpprof scale --nproc 1,2,4 train.py",
                _experiment("scale", 3),
                run_experiment,
            ),
            Command(
                "sweep",
                "the step time over values of an option, of the script's or DDP's",
                "ddpprof sweep --vary bucket_cap_mb=1,5,25 train.py",
                _experiment("sweep", 3),
                run_experiment,
            ),
            Command(
                "netbench",
                "how fast collectives are between the ranks of a job, by size",
                "ddpprof netbench --nproc-per-node 2",
                add_netbench_options,
            ),
        ),
    ),
    Group(
        "More",
        (
            Command(
                "doctor",
                "check this machine, this installation, and ddpprof on both",
                "ddpprof doctor",
                add_doctor_options,
                writes_files=False,
            ),
            Command("demo", "trace the small trainings that come with ddpprof", "ddpprof demo", add_demo_options),
            Command(
                "completion",
                "print what makes a shell complete ddpprof's commands",
                'eval "$(ddpprof completion bash)"',
                add_completion_options,
                writes_files=False,
            ),
        ),
    ),
)

COMMANDS = {command.name: command for group in GROUPS for command in group.commands}


class _Parser(Parser):
    """Mistakes in one line, like all others."""

    def error(self, message: str) -> NoReturn:
        raise DdpprofError(f"{message}. See: {self.prog} --help")


class _WorldReadable(argparse.Action):
    """Sets the variable that this process, its helpers and the ranks of its job heed alike."""

    def __call__(self, *_: object) -> None:
        os.environ[WORLD_READABLE] = "1"


class _Root(_Parser):
    """Its help shows the commands as they are grouped, each with an example."""

    def format_help(self) -> str:
        lines = ["usage: ddpprof COMMAND …", "", "What does DistributedDataParallel cost, and which knob to turn?"]
        width = max(map(len, COMMANDS)) + 2
        for group in GROUPS:
            lines += ["", *([group.title] if group.title else [])]
            for command in group.commands:
                lines += [f"  {command.name:<{width}}{command.summary}", f"  {'':{width}}{command.example}"]
        return "\n".join([*lines, "", "ddpprof COMMAND --help shows all options of a command.", ""])


def parsers() -> tuple[Parser, dict[str, Parser]]:
    """Of ddpprof, and of each command."""
    parser = _Root(prog="ddpprof")
    parser.add_argument("--version", action="version", version=f"ddpprof {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=_Parser)
    of_commands: dict[str, Parser] = {}
    for command in COMMANDS.values():
        what = f"{command.summary[0].upper()}{command.summary[1:]}."
        usage = (
            f"ddpprof {command.name} [options] train.py [its arguments]\n"
            f"       ddpprof {command.name} [options] -- command [its arguments]"
        )
        of_command = of_commands[command.name] = commands.add_parser(
            command.name,
            help=command.summary,
            description=what,
            epilog=f"For example: {command.example}",
            usage=usage if command.run_job else None,
            allow_abbrev=command.run_job is None,
        )
        command.add_options(of_command)
        if command.writes_files:
            of_command.add_argument(
                "--world-readable",
                action=_WorldReadable,
                nargs=0,
                help="let everybody on this machine read what is written, as far as your umask does",
            )
    return parser, of_commands
