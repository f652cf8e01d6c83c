"""Parse the command line of a job, run the job with recording enabled, and report how it ended."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ddpprof import own_files
from ddpprof.cli.arguments import folder_for_runs, seconds
from ddpprof.cli.output import refuse_unwritable_folder
from ddpprof.cli.saying import CHOICES, say
from ddpprof.errors import RunExists
from ddpprof.files import local
from ddpprof.monitor.run_watch import RunWatch

if TYPE_CHECKING:
    from ddpprof.monitor.metrics import MetricsTarget
    from ddpprof.record.launch import JobEnd
    from ddpprof.record.settings import Settings

_NPROC = "--nproc-per-node"
_NUMBER_OF_RANKS = re.compile(r"[1-9]\d{0,8}|auto|gpu|cpu|xpu")
"""pattern for the values that torchrun accepts as a number of ranks"""
_FLAGS_NOT_TO_REPEAT = ("--force", "--dump-stacks", "-q", "--quiet", "-v", "--verbose")
"""options without a value that have no effect on what is recorded, and are therefore left out of `recorded_with`"""
_NOT_TO_REPEAT = ("--out", "--repeat", "--metrics", "--kill-after", "--color")
"""options with a value that have no effect on what is recorded, and are therefore left out of `recorded_with`"""


@dataclass(frozen=True, slots=True)
class JobCommand:
    """The job to run, and the directory of its run."""

    options: argparse.Namespace
    out: Path
    words: tuple[str, ...]
    """the script and its arguments or, if `is_wrapped`, the whole command"""
    is_wrapped: bool
    """whether the command follows ``--``; it may then be any program"""
    recorded_with: tuple[str, ...]
    """arguments of ddpprof with which the recording can be repeated, except the options for the output path"""

    @property
    def name(self) -> str:
        """Name of the job in messages: its script, or "the job" if another program starts it."""
        return "the job" if self.is_wrapped else Path(self.words[0]).name

    @property
    def is_one_node(self) -> bool:
        """Whether, according to the torchrun options, all ranks run on this node."""
        return all(number in ("1", "1:1") for number in self._given_to_torchrun("--nnodes"))

    @property
    def is_first_node(self) -> bool:
        """Whether this is the only node or the first of several nodes. This node creates the shared run directory."""
        return all(number == "0" for number in self._given_to_torchrun("--node-rank", "--node_rank"))

    def _given_to_torchrun(self, *names: str) -> list[str]:
        """Return the values of the torchrun option with these names."""
        words = self.options.torchrun or []
        return [value for name, value in pairwise(words) if name in names]


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that all commands that start a job have in common."""
    add = parser.add_argument
    add("--no-command", action="store_true", help="do not store the command in the run")
    add(
        "--kill-after",
        type=seconds,
        metavar="S",
        help="if the job hangs, end it S seconds after ddpprof has reported the hang (default: never)",
    )
    add(
        "--dump-stacks",
        action="store_true",
        help="if the job hangs, write the stacks of all threads of its ranks to DIR/hang-stacks.txt (needs py-spy)",
    )
    add(
        "--metrics",
        type=_metrics_target,
        metavar="ADDRESS",
        help="serve Prometheus metrics on a port of this machine (PORT) or on HOST:PORT, or send metrics to an "
        "OpenTelemetry collector (otlp:http://HOST:PORT)",
    )
    add("-m", "--module", action="store_true", help="run a module instead of a script, as python -m does")
    add_torchrun_options(parser)


def _metrics_target(text: str) -> MetricsTarget:
    from ddpprof.monitor.metrics import metrics_target

    return metrics_target(text)


def add_out_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=local, metavar="DIR", help="run directory (default: runs/SCRIPT-TIME)")
    parser.add_argument("--force", action="store_true", help="replace an earlier run in DIR")


def add_torchrun_options(parser: argparse.ArgumentParser) -> None:
    """Add torchrun's options. They are collected in ``torchrun``, a list of arguments, or ``None`` if none is given."""
    from ddpprof.record.torchrun import OPTIONS

    torchrun = parser.add_argument_group("torchrun's options", "passed to torchrun, which then starts the ranks")
    for names, takes_value in OPTIONS:
        if takes_value:
            is_number = names[0] == _NPROC
            shown = "number of ranks for torchrun to start" if is_number else argparse.SUPPRESS
            torchrun.add_argument(
                *names, *(("--nproc",) if is_number else ()), action=_Passed, dest="torchrun", metavar="N", help=shown
            )
        else:
            torchrun.add_argument(*names, action=_Passed, dest="torchrun", nargs=0, help=argparse.SUPPRESS)
    torchrun.description = "any option of torchrun, under the same name; torchrun then starts the ranks"


class _Passed(argparse.Action):
    """Action that collects torchrun's options as they are given."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        name = self.option_strings[0] if option_string == "--nproc" else option_string or ""
        if self.option_strings[0] == _NPROC and not _NUMBER_OF_RANKS.fullmatch(str(values)):
            raise argparse.ArgumentError(
                self, f"{values} is neither a number of ranks, such as 2, nor gpu, cpu or auto"
            )
        given = [name] if self.nargs == 0 else [name, str(values)]
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or []), *given])


def split(arguments: list[str], parser: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
    """Return ddpprof's own options and the command, which begins at the first non-option or at ``--``."""
    options = parser._option_string_actions  # noqa: SLF001 (argparse has no public way to ask for an option's arity)
    index = 0
    while index < len(arguments):
        word = arguments[index]
        if word == "--" or not word.startswith("-") or word == "-":
            break
        action = options.get(word)
        index += 2 if action is not None and action.nargs != 0 else 1
    return arguments[:index], arguments[index:]


_AFTER_THE_SCRIPT = ("--nproc", "--vary", "--strong", "--set")
"""options of ddpprof that may also follow the script; all other options after the script are passed to the script"""


def split_experiment(arguments: Sequence[str], parser: argparse.ArgumentParser) -> tuple[list[str], list[str], bool]:
    """Return ddpprof's own options, the command, and whether ``--`` precedes the command.

    After ``--``, the command may be any program.
    """
    arity = parser._option_string_actions  # noqa: SLF001 (argparse has no public way to ask for an option's arity)
    own: list[str] = []
    command: list[str] = []
    index = 0
    while index < len(arguments):
        word = arguments[index]
        if word == "--":
            return own, [*command, *arguments[index + 1 :]], not command
        name, equals, _ = word.partition("=")
        if name in _AFTER_THE_SCRIPT or (not command and word.startswith("-") and word != "-"):
            action = arity.get(name)
            has_value = not equals and action is not None and action.nargs != 0 and index + 1 < len(arguments)
            # Joined, because a value may look like an option: --vary --batch-size=32,64
            own.append(f"{word}={arguments[index + 1]}" if has_value else word)
            index += 2 if has_value else 1
        else:
            command.append(word)
            index += 1
    return own, command, False


def parse_job(parser: argparse.ArgumentParser, arguments: Sequence[str], verb: str) -> JobCommand:
    """Parse the arguments of a command that starts a job; `verb` is the command's name."""
    own, command = split(list(arguments), parser)
    options = parser.parse_args(own)
    is_wrapped = command[:1] == ["--"]
    words = command[1:] if is_wrapped else command
    if not words:
        parser.error(f"nothing to {verb}: give a script, or a command after --")
    if is_wrapped and options.torchrun:
        parser.error(f"pass these options to torchrun itself: ddpprof {verb} -- torchrun … train.py")
    return JobCommand(
        options=options,
        out=Path(options.out or default_out(words, is_module=options.module and not is_wrapped)),
        words=tuple(words),
        is_wrapped=is_wrapped,
        recorded_with=(*_without(own, _NOT_TO_REPEAT, _FLAGS_NOT_TO_REPEAT), *command),
    )


def parse_trace_words(words: Sequence[str], verb: str) -> JobCommand:
    """Parse the arguments of `ddpprof trace` for another command, `verb`, which starts the same job."""
    from ddpprof.cli.commands import parsers  # imports the module of `ddpprof trace`, which imports this one

    return parse_job(parsers({"trace"})[1]["trace"], words, verb)


def _without(own: Sequence[str], with_value: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Return ddpprof's own arguments without these options."""
    kept, is_value = [], False
    for word in own:
        name = word.partition("=")[0]
        if not is_value and name not in (*with_value, *flags):
            kept.append(word)
        is_value = not is_value and word in with_value
    return kept


def run_recorded(
    job: JobCommand, out: Path, settings: Settings, verb: str, afterwards: Callable[[bool, JobEnd], None]
) -> JobEnd:
    """Run the job with these settings. If the job needs a launcher, print how to start it with one.

    `settings`: recording settings, to which the command and the output path are added. `afterwards`: function that is
    called after the job has ended, unless ``--quiet`` is given. Its first argument is True if this process runs under a
    launcher. Its second argument says how the job ended.
    """
    from ddpprof.record import launch

    inside = job.options.torchrun is None and launch.inside_job()
    if (
        not inside and job.is_one_node and not job.is_wrapped
    ):  # other launchers may start ranks on machines with other folders
        refuse_unwritable_folder(out)
    if inside or not job.is_one_node:  # the nodes of a job share one folder
        return _run_recorded(job, out, settings, verb, afterwards, inside)
    try:
        with own_files.reserved(out):
            return _run_recorded(job, out, settings, verb, afterwards, inside)
    except own_files.LockedError as error:
        raise RunExists(
            f"another ddpprof process ({error.holder}) is recording into {out}. Wait until it ends, or choose "
            "another --out. The job was not started."
        ) from error


def _run_recorded(
    job: JobCommand,
    out: Path,
    settings: Settings,
    verb: str,
    afterwards: Callable[[bool, JobEnd], None],
    inside: bool,
) -> JobEnd:
    from ddpprof.monitor.pulse_files import gather_left
    from ddpprof.record import launch
    from ddpprof.record.torchrun import OomKills

    options, words = job.options, job.words
    settings = _settings_of(job, out, settings, inside)
    command = words if job.is_wrapped else launch.script_command(words, options.module, options.torchrun)
    tell = (lambda _text: None) if CHOICES.is_quiet else _tell
    watch = RunWatch(out, tell, options.kill_after, options.dump_stacks, names_top=verb == "watch")
    speaks = settings.pulse and (not inside or launch.is_first_rank())
    if speaks:
        _check_packages(options)
    ends: list[Callable[[], None]] = [watch.end]

    def job_runs() -> None:
        watch.start()
        if options.metrics is not None:
            from ddpprof.monitor.metrics import publish

            try:
                ends.append(publish(options.metrics, out))
            except Exception as error:  # noqa: BLE001 (the job is already running and must continue)
                say(f"ddpprof: cannot publish metrics: {error}", file=sys.stderr)

    oom_kills = OomKills()
    try:
        outcome = launch.run_job(command, settings, explain_rank=not inside, when_started=job_runs if speaks else None)
        gather_left()
        _note_exit(outcome, settings, inside, oom_kills.since_last_time())
    finally:
        for end in ends:
            with suppress(Exception):  # must not replace the job's exit code
                end()
    if outcome.needs_rank:
        missing = f"{words[0]} expects a launcher: {outcome.needs_rank} is not set"
        say(f"ddpprof: {missing}. {_with_launcher(job, verb)}", file=sys.stderr)
    elif not CHOICES.is_quiet:
        sys.stdout.flush()
        try:
            afterwards(inside, outcome)
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 (must not replace the job's exit code)
            say(f"ddpprof: cannot report on {out}: {error}", file=sys.stderr)
    if outcome.signal is not None:
        _die_of(outcome.signal)
    return outcome


def _settings_of(job: JobCommand, out: Path, settings: Settings, inside: bool) -> Settings:
    """Add the command and the output path to the settings.

    The first rank, or the launcher on the first node, also clears the output path. Raises ``RunExists`` if the path
    contains an earlier run and ``--force`` is not given.
    """
    from ddpprof.record import launch
    from ddpprof.record.run_directory import agent_of_this_process

    shown = not job.options.no_command
    settings = dataclasses.replace(
        settings,
        out=str(out.absolute()),
        force=job.options.force,
        command=job.words if shown else (),
        recorded_with=job.recorded_with if shown else (),
        agent=agent_of_this_process() if inside else settings.agent,
    )
    is_first = launch.is_first_rank() if inside else job.is_first_node
    return launch.clear_out(settings, inside) if is_first else settings


def _with_launcher(job: JobCommand, verb: str) -> str:
    """Return a sentence that says how to run the job with a launcher."""
    script = " ".join([*(["-m"] if job.options.module else []), *job.words])
    instead = "-- torchrun --nproc-per-node 2 train.py" if job.is_wrapped else f"--nproc-per-node 2 {script}"
    return f"Run: ddpprof {verb} {instead}"


def _check_packages(options: argparse.Namespace) -> None:
    """Raise `DdpprofError` if packages that these options need are not installed. Call this before the job runs."""
    if options.metrics is not None:
        from ddpprof.monitor.metrics import check

        check(options.metrics)
    if options.dump_stacks:
        from ddpprof.monitor.evidence import find_py_spy

        find_py_spy()


def _note_exit(outcome: JobEnd, settings: Settings, inside: bool, num_oom_kills: int | None) -> None:
    """Record how the job ended or, under a launcher, how this rank ended. A killed rank cannot record its own end."""
    from ddpprof.record.launch import rank_given
    from ddpprof.record.torchrun import append_exit

    whose = {"rank": int(rank_given() or 0)} if inside else {"is_job": True}
    code = outcome.exit_code if outcome.signal is None else -outcome.signal
    with suppress(OSError, ValueError):  # must not replace the job's exit code
        how = {"exit_code": code, "interrupted": outcome.interrupted, "num_oom_kills": num_oom_kills}
        append_exit(Path(settings.out), {**whose, **how})


def default_out(words: Sequence[str], *, is_module: bool, kind: str = "") -> str:
    """Return the default output folder, named after the `kind` of experiment, the job and the time."""
    name = words[0].rpartition(".")[2] if is_module else Path(words[0]).stem
    return f"{folder_for_runs()}/{kind and f'{kind}-'}{name or 'job'}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


def _die_of(number: int) -> NoReturn:
    """End this process with the signal that ended the job, so that callers can see the signal."""
    sys.stdout.flush()
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    sys.exit(128 + number)


def _tell(text: str) -> None:
    """Print a message about the job while it runs."""
    with suppress(Exception):  # stderr may be closed
        say(f"ddpprof: {text}", file=sys.stderr, flush=True)
