"""Every command with its purpose and options: the source of the help, the shell completion and the parsers."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from ddpprof import __version__
from ddpprof.cli.arguments import hint
from ddpprof.cli.capture import add_capture_options
from ddpprof.cli.compare import add_compare_options, run_compare
from ddpprof.cli.completion import add_completion_options
from ddpprof.cli.demo import add_demo_options
from ddpprof.cli.diagnose import add_diagnose_options
from ddpprof.cli.doctor import add_doctor_options
from ddpprof.cli.experiments import add_experiment_options, run_experiment
from ddpprof.cli.explain import add_explain_options
from ddpprof.cli.netbench import add_netbench_options
from ddpprof.cli.report import add_report_options
from ddpprof.cli.schema import add_schema_options
from ddpprof.cli.tensorboard import add_tensorboard_options
from ddpprof.cli.timeline import add_timeline_options
from ddpprof.cli.top import add_top_options
from ddpprof.cli.trace import add_trace_options, run_trace
from ddpprof.cli.tune import add_tune_options, run_tune
from ddpprof.cli.watch import add_watch_options, run_watch
from ddpprof.cli.whatif import add_whatif_options
from ddpprof.errors import DdpprofError
from ddpprof.own_files import WORLD_READABLE

Parser = argparse.ArgumentParser


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    summary: str
    question: str
    example: str
    add_options: Callable[[Parser], None]
    run_job: Callable[[Parser, Sequence[str]], int] | None = None
    """runner of a command that splits its arguments itself, such as at ``--``; takes the parser and those arguments"""
    writes_files: bool = True


def _experiment(name: str, rounds: int) -> Callable[[Parser], None]:
    return lambda parser: add_experiment_options(parser, name, rounds)


GROUPS: Mapping[str, tuple[Command, ...]] = {
    "": (
        Command(
            "trace",
            "record a training without editing its script, and report on it",
            "Where does the time of a training step go, and what should I change?",
            "ddpprof trace --nproc-per-node 2 train.py",
            add_trace_options,
            run_trace,
        ),
        Command(
            "report",
            "report on a run or on torch.profiler traces",
            "What does DDP cost in this run, and what should I change?",
            "ddpprof report runs/a --out report.html",
            add_report_options,
        ),
        Command(
            "compare",
            "compare two jobs: what became slower, beyond noise",
            "Did the job become slower, by more than noise, and where?",
            "ddpprof compare runs/before runs/after",
            add_compare_options,
            run_compare,
        ),
    ),
    "Watch": (
        Command(
            "watch",
            "watch a whole training without recording steps in detail",
            "Is the job still as fast as it was, and if not, since when and why?",
            "ddpprof watch --nproc-per-node 2 train.py",
            add_watch_options,
            run_watch,
        ),
        Command(
            "diagnose",
            "say which rank holds a job up, or has ended it, and where",
            "Why does the job hang, or why did it fail?",
            "ddpprof diagnose runs/a",
            add_diagnose_options,
            writes_files=False,
        ),
        Command(
            "capture",
            "profile the next steps of a running job, on all its ranks",
            "Where does the time of a step go, in a job that is running already?",
            "ddpprof capture runs/a --steps 5",
            add_capture_options,
            writes_files=False,
        ),
    ),
    "Look": (
        Command(
            "top",
            "look at a running job, rank by rank: who waits for whom",
            "What does the job do right now, and which rank holds it up?",
            "ddpprof top runs/a",
            add_top_options,
            writes_files=False,
        ),
        Command(
            "timeline",
            "export a run for Perfetto, with all ranks on one clock",
            "What did each rank do, and when?",
            "ddpprof timeline runs/a",
            add_timeline_options,
        ),
        Command(
            "tensorboard",
            "start TensorBoard on runs, with corrected profiler traces",
            "What do these runs look like side by side, in a browser?",
            "ddpprof tensorboard runs/a runs/b",
            add_tensorboard_options,
        ),
        Command(
            "schema",
            "print the JSON Schema of a report",
            "What does each field of a JSON report mean?",
            "ddpprof schema report",
            add_schema_options,
            writes_files=False,
        ),
        Command(
            "explain",
            "explain a term of the reports",
            "What does this word in a report mean?",
            "ddpprof explain exposed",
            add_explain_options,
            writes_files=False,
        ),
    ),
    "Predict": (
        Command(
            "whatif",
            "predict the step with other buckets, networks or world sizes",
            "How long would a step take with other buckets, another network or more ranks?",
            "ddpprof whatif runs/a --bucket-cap-mb 1,5,25",
            add_whatif_options,
        ),
        Command(
            "tune",
            "measure the bucket sizes that are predicted to be fastest",
            "Which bucket sizes are the fastest for this training?",
            "ddpprof tune --nproc 2 train.py",
            add_tune_options,
            run_tune,
        ),
    ),
    "Measure by experiment": (
        Command(
            "overhead",
            "measure what DDP costs: the job with and without its wrapper",
            "How much longer does a step take because of DDP?",
            "ddpprof overhead train.py",
            _experiment("overhead", 5),
            run_experiment,
        ),
        Command(
            "scale",
            "measure how training scales, and where time is lost",
            "How much faster is training on more ranks, and where is time lost?",
            "ddpprof scale --nproc 1,2,4 train.py",
            _experiment("scale", 3),
            run_experiment,
        ),
        Command(
            "sweep",
            "measure the step time over an option of the script or of DDP",
            "How does the time of a step depend on this option?",
            "ddpprof sweep --vary bucket_cap_mb=1,5,25 train.py",
            _experiment("sweep", 3),
            run_experiment,
        ),
        Command(
            "netbench",
            "measure the speed of collectives between ranks, by message size",
            "How fast is communication between the ranks, at each message size?",
            "ddpprof netbench --nproc-per-node 2",
            add_netbench_options,
        ),
    ),
    "More": (
        Command(
            "doctor",
            "check this machine, this installation, and ddpprof on them",
            "Does ddpprof work, and measure correctly, on this machine?",
            "ddpprof doctor",
            add_doctor_options,
            writes_files=False,
        ),
        Command(
            "demo", "trace two small example trainings", "What does ddpprof show?", "ddpprof demo", add_demo_options
        ),
        Command(
            "completion",
            "print a shell completion script for ddpprof",
            "How do I complete commands and options with Tab?",
            'eval "$(ddpprof completion bash)"',
            add_completion_options,
            writes_files=False,
        ),
    ),
}
"""commands by the title of their group"""

COMMANDS = {command.name: command for commands in GROUPS.values() for command in commands}


class _Parser(Parser):
    """Parser that reports mistakes in one line, as all of ddpprof does, and begins its help with an example."""

    beginning = ""
    of_commands: Mapping[str, Parser] = {}

    def error(self, message: str) -> NoReturn:
        others = {name: one._option_string_actions for name, one in self.of_commands.items()}  # noqa: SLF001 (its own)
        raise DdpprofError(f"{message}.{hint(message, self._option_string_actions, others)} See: {self.prog} --help")

    def format_help(self) -> str:
        return f"{self.beginning}{super().format_help()}"


class _WorldReadable(argparse.Action):
    """Option that sets the variable which this process, its helpers and the ranks of its job all read."""

    def __call__(self, *_: object) -> None:
        os.environ[WORLD_READABLE] = "1"


class _Root(_Parser):
    """Parser whose help shows the commands by group, each with an example."""

    def format_help(self) -> str:
        question = "What does DistributedDataParallel cost, and which setting should you change?"
        lines = ["usage: ddpprof COMMAND …", "", question]
        width = max(map(len, COMMANDS)) + 2
        for title, commands in GROUPS.items():
            lines += ["", *([title] if title else [])]
            for command in commands:
                lines += [f"  {command.name:<{width}}{command.summary}", f"  {'':{width}}{command.example}"]
        return "\n".join([*lines, "", "ddpprof COMMAND --help shows all options of a command.", ""])


def parsers() -> tuple[Parser, dict[str, Parser]]:
    """Return ddpprof's parser, and the parser of each command by its name."""
    parser = _Root(prog="ddpprof")
    parser.add_argument("--version", action="version", version=f"ddpprof {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=_Parser)
    of_commands: dict[str, Parser] = {}
    for command in COMMANDS.values():
        usage = (
            f"ddpprof {command.name} [options] train.py [its arguments]\n"
            f"       ddpprof {command.name} [options] -- command [its arguments]"
        )
        of_command = of_commands[command.name] = commands.add_parser(
            command.name,
            help=command.summary,
            description=f"{command.summary[0].upper()}{command.summary[1:]}.",
            usage=usage if command.run_job else None,
            allow_abbrev=command.run_job is None,
        )
        of_command.of_commands = of_commands
        of_command.beginning = f"{command.question}\n\n    {command.example}\n\n"
        command.add_options(of_command)
        if command.writes_files:
            of_command.add_argument(
                "--world-readable",
                action=_WorldReadable,
                nargs=0,
                help="let other users of this machine read the files that ddpprof writes, as far as your umask allows",
            )
    return parser, of_commands
