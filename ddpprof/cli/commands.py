"""Table of all commands. Parsers, help texts and shell completion are made from this table."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Container, Mapping, Sequence
from importlib import import_module
from typing import NamedTuple, NoReturn

from ddpprof.cli.saying import add_saying_options
from ddpprof.errors import DdpprofError, did_you_mean
from ddpprof.version import __version__

Parser = argparse.ArgumentParser


class Command(NamedTuple):
    """A command.

    Its module has a function ``add_NAME_options``. This function adds the options, and sets one of two defaults of the
    parser to the function that runs the command: ``run``, which is called with the parsed options, or ``run_words``,
    which is called with the parser and the unparsed arguments.
    """

    name: str
    summary: str
    question: str
    example: str
    module: str = ""
    """name of the module that implements the command, if it differs from the command's name"""
    writes_files: bool = True

    def add_options(self, parser: Parser) -> None:
        """Import the command's module, and add its options to the parser."""
        module = import_module(f"ddpprof.cli.{self.module or self.name}")
        getattr(module, f"add_{self.name}_options")(parser)


GROUPS: Mapping[str, tuple[Command, ...]] = {
    "Record": (
        Command(
            "trace",
            "record and report on a training job without editing its script",
            "Where does the time in a training step go, and what should I change?",
            "ddpprof trace --nproc-per-node 2 train.py",
        ),
        Command("demo", "trace two small example training scripts", "What does ddpprof show?", "ddpprof demo", "trace"),
    ),
    "Read": (
        Command(
            "report",
            "report on a run or on torch.profiler traces",
            "What does DDP cost in this run, and what should I change?",
            "ddpprof report runs/a --out report.html",
        ),
        Command(
            "compare",
            "compare two jobs and show what became slower by more than noise",
            "Did the job become slower by more than noise, and where?",
            "ddpprof compare runs/before runs/after",
        ),
        Command(
            "timeline",
            "export a run for Perfetto, with all ranks on one clock",
            "What did each rank do, and when?",
            "ddpprof timeline runs/a",
        ),
        Command(
            "tensorboard",
            "show runs in TensorBoard, with corrected profiler traces",
            "What do these runs look like side by side, in a browser?",
            "ddpprof tensorboard runs/a runs/b",
        ),
        Command(
            "explain",
            "explain a term used in reports",
            "What does this term in a report mean?",
            "ddpprof explain exposed",
            writes_files=False,
        ),
    ),
    "Act": (
        Command(
            "try",
            "run a job with and without the changes that its report suggests",
            "Does this report's advice make training faster?",
            "ddpprof try runs/a",
            module="trying",
        ),
        Command(
            "tune",
            "predict and measure which bucket sizes are fastest",
            "Which bucket sizes are fastest for this training job?",
            "ddpprof tune --nproc 2 train.py",
        ),
        Command(
            "whatif",
            "predict the step time for other buckets, networks or world sizes",
            "How long would a step take with other bucket sizes, another network or more ranks?",
            "ddpprof whatif runs/a --bucket-cap-mb 1,5,25",
        ),
        Command(
            "sweep",
            "measure the step time for different values of an option",
            "How does the step time depend on this option?",
            "ddpprof sweep --vary bucket_cap_mb=1,5,25 train.py",
            module="experiments",
        ),
        Command(
            "overhead",
            "measure what DDP costs by running the job with and without it",
            "How much longer does a step take because of DDP?",
            "ddpprof overhead train.py",
            module="experiments",
        ),
        Command(
            "scale",
            "measure how well training scales and where time is lost",
            "How much faster is training on more ranks, and where is time lost?",
            "ddpprof scale --nproc 1,2,4 train.py",
            module="experiments",
        ),
        Command(
            "netbench",
            "measure the speed of collectives between ranks, by message size",
            "How fast is communication between the ranks, at each message size?",
            "ddpprof netbench --nproc-per-node 2",
        ),
    ),
    "Watch": (
        Command(
            "watch",
            "watch a whole training job without recording steps in detail",
            "Is the job still as fast as it was? If not, when did it slow down, and why?",
            "ddpprof watch --nproc-per-node 2 train.py",
            module="trace",
        ),
        Command(
            "top",
            "show what each rank of a running job does or waits for",
            "What is the job doing now, and which rank slows it down?",
            "ddpprof top runs/a",
            writes_files=False,
        ),
        Command(
            "capture",
            "profile the next steps of a running job on all its ranks",
            "Where does the step time go in a running job?",
            "ddpprof capture runs/a --steps 5",
            writes_files=False,
        ),
        Command(
            "diagnose",
            "find which rank blocks a job or caused it to fail, and where",
            "Why does the job hang, or why did it fail?",
            "ddpprof diagnose runs/a",
            writes_files=False,
        ),
    ),
    "More": (
        Command(
            "doctor",
            "check whether ddpprof works on this machine",
            "Does ddpprof work and measure correctly on this machine?",
            "ddpprof doctor",
            writes_files=False,
        ),
        Command(
            "schema",
            "print the JSON Schema of a report",
            "What does each field of a JSON report mean?",
            "ddpprof schema report",
            module="explain",
            writes_files=False,
        ),
        Command(
            "completion",
            "print a shell completion script for ddpprof",
            "How do I complete commands and options with Tab?",
            'eval "$(ddpprof completion bash)"',
            module="commands",
            writes_files=False,
        ),
    ),
}
"""title of a group in the help text → commands in this group"""

COMMANDS = {command.name: command for commands in GROUPS.values() for command in commands}


class _Parser(Parser):
    """Parser that reports errors in one line, like the rest of ddpprof. Its help text begins with an example."""

    beginning = ""

    def error(self, message: str) -> NoReturn:
        from ddpprof.cli.arguments import hint

        others = {name: one._option_string_actions for name, one in parsers()[1].items()}  # noqa: SLF001 (its own)
        raise DdpprofError(f"{message}.{hint(message, self._option_string_actions, others)} See: {self.prog} --help")

    def format_help(self) -> str:
        return f"{self.beginning}{super().format_help()}"


class _WorldReadable(argparse.Action):
    """``--world-readable``: sets an environment variable for this process, its helpers and the job's ranks."""

    def __call__(self, *_: object) -> None:
        from ddpprof.own_files import WORLD_READABLE

        os.environ[WORLD_READABLE] = "1"


class _Color(argparse.Action):
    """``--color``: sets the environment variable that controls the use of colors."""

    def __call__(self, _parser: object, _namespace: object, value: object, _option: object = None) -> None:
        os.environ["DDPPROF_COLOR"] = str(value)


class _Root(_Parser):
    """Parser for ddpprof itself. Its help text lists the commands by group."""

    def format_help(self) -> str:
        question = "What does DistributedDataParallel cost, and which setting should you change?"
        lines = ["usage: ddpprof COMMAND …", "       ddpprof RUN          the same as ddpprof report RUN", "", question]
        width = max(map(len, COMMANDS)) + 2
        for title, commands in GROUPS.items():
            lines += ["", title, *(f"  {command.name:<{width}}{command.summary}" for command in commands)]
        return "\n".join([*lines, "", "ddpprof COMMAND --help shows an example and all options.", ""])


def refuse_unknown(words: Sequence[str]) -> NoReturn:
    """Raise a `DdpprofError` saying that the first word is not a command, with a similar command as a suggestion."""
    word = words[0]
    if word.endswith(".py"):
        raise DdpprofError(f"{word} is not a command. To trace it: ddpprof trace {shlex.join(words)}")
    raise DdpprofError(
        f"there is no command {word}.{did_you_mean(word, COMMANDS)} List all commands with: ddpprof --help"
    )


def parsers(wanted: Container[str] = COMMANDS.keys()) -> tuple[Parser, dict[str, Parser]]:
    """Return ddpprof's parser, and the parser of each command by name.

    `wanted`: names of the commands that need their options. The modules of other commands are not imported.
    """
    parser = _Root(prog="ddpprof")
    parser.add_argument("-V", "--version", action="version", version=f"ddpprof {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=_Parser)
    of_commands: dict[str, Parser] = {}
    for command in COMMANDS.values():
        of_command = of_commands[command.name] = commands.add_parser(
            command.name,
            help=command.summary,
            description=f"{command.summary[0].upper()}{command.summary[1:]}.",
        )
        of_command.beginning = f"{command.question}\n\n    {command.example}\n\n"
        if command.name in wanted:
            _add_options(of_command, command)
    return parser, of_commands


def _add_options(parser: Parser, command: Command) -> None:
    from ddpprof.cli.arguments import COLORS, apply_presets

    command.add_options(parser)
    parser.add_argument(
        "--color", choices=COLORS, action=_Color, help="when to use colors (default: auto, only on a terminal)"
    )
    add_saying_options(parser)
    if parser.get_default("run_words") is not None:
        parser.allow_abbrev = False
        parser.usage = parser.usage or (
            f"ddpprof {command.name} [options] train.py [its arguments]\n"
            f"       ddpprof {command.name} [options] -- command [its arguments]"
        )
    if command.writes_files:
        parser.add_argument(
            "--world-readable",
            action=_WorldReadable,
            nargs=0,
            help="let other users on this machine read the files that ddpprof writes, subject to your umask",
        )
    apply_presets(parser, command.name)


SHELLS = ("bash", "zsh", "fish", "tcsh", "powershell")


def add_completion_options(parser: Parser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell that will use the script")
    parser.set_defaults(run=run_completion)


def run_completion(options: argparse.Namespace) -> int:
    """Print a shell script that completes commands, options and file names."""
    from pathlib import Path

    import shtab

    from ddpprof.files import local, location
    from ddpprof.render.glossary import TERMS

    root, of_commands = parsers()
    for parser in of_commands.values():
        if parser.get_default("run_words") is not None:
            parser.add_argument("script", nargs=argparse.REMAINDER, type=Path)
        for action in parser._actions:  # noqa: SLF001 (argparse has no public list of them)
            if action.type in (Path, local, location) or action.dest == "out":
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            if action.dest == "term":
                names = (word for term in TERMS for word in (term.name, *term.aliases))
                action.choices = sorted({word for word in names if word.isidentifier()})
    print(shtab.complete(root, shell=options.shell))
    return 0
