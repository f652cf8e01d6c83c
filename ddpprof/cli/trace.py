"""`ddpprof trace`: run the job with recording switched on, then report on it."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ddpprof.cli.after_trace import after_trace, nothing_recorded
from ddpprof.cli.arguments import count, numbers, positive, seconds
from ddpprof.cli.saying import say
from ddpprof.files import local
from ddpprof.profiled_ranks import MOST

if TYPE_CHECKING:
    from ddpprof.record.launch import JobEnd
    from ddpprof.record.settings import Settings


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    from ddpprof.record.settings import Settings

    add = parser.add_argument
    add("--out", type=local, metavar="DIR", help="run directory (default: runs/SCRIPT-TIME)")
    add("--force", action="store_true", help="replace an earlier run in DIR")
    add(
        "--repeat",
        type=positive,
        metavar="N",
        help="run the job N times in turn, and keep the runs as DIR/run-1 to DIR/run-N; runs already there stay, "
        "and new ones are numbered after them. Compare such folders with: ddpprof compare",
    )
    add(
        "--skip-first",
        type=count,
        default=Settings.skip_first,
        metavar="N",
        help="do not record the first N steps (%(default)s)",
    )
    add(
        "--cost-steps",
        type=count,
        default=Settings.cost_steps,
        metavar="N",
        help="then alternate recording off and on for N steps, to measure ddpprof's own cost (%(default)s)",
    )
    add(
        "--warmup",
        type=count,
        default=Settings.warmup,
        metavar="N",
        help="then let the profiler warm up for N steps (%(default)s)",
    )
    add("--steps", type=positive, default=Settings.steps, metavar="N", help="then profile N steps (%(default)s)")
    add(
        "--most-seconds",
        type=seconds,
        default=Settings.most_seconds,
        metavar="S",
        help="stop profiling after S seconds, even before N steps (%(default)g)",
    )
    add(
        "--most-memory",
        type=positive,
        default=Settings.most_bytes >> 20,
        metavar="MIB",
        help="stop profiling once the process has grown by this many MiB (%(default)s)",
    )
    add(
        "--baseline-steps",
        type=count,
        default=Settings.baseline_steps,
        metavar="N",
        help="then profile N steps without gradient communication, and run N more unprofiled, to measure how much "
        "communication slows computation and to predict better. These steps spoil the training, so the job then ends "
        "with exit code 0, and torch.save writes nothing during them (%(default)s)",
    )
    add("--stop-after", action="store_true", help="end the job with exit code 0 once the steps are recorded")
    add(
        "--profile-ranks",
        type=numbers,
        metavar="N",
        help=f"profile only these ranks, such as 0-7,64 (default: all or, in a job of more than {MOST}, some at even "
        "distances). Light recording covers all ranks",
    )
    add("--no-profiler", action="store_true", help="record lightly only")
    add("--record-shapes", action="store_true", help="as in torch.profiler")
    add("--with-stack", action="store_true", help="as in torch.profiler")
    add("--profile-memory", action="store_true", help="as in torch.profiler")
    add("--no-command", action="store_true", help="do not store the command in the run")
    add("--quiet", action="store_true", help="print only what the job prints")
    add("-m", "--module", action="store_true", help="run a module instead of a script, as python -m does")
    add_torchrun_options(parser)


def add_torchrun_options(parser: argparse.ArgumentParser) -> None:
    """Add ``torchrun``: the list of words to pass on, or ``None`` if none is given."""
    from ddpprof.record.torchrun import OPTIONS

    torchrun = parser.add_argument_group("torchrun's options", "passed to torchrun, which then starts the ranks")
    for names, takes_value in OPTIONS:
        if takes_value:
            shown = "number of ranks for torchrun to start" if names[0] == "--nproc-per-node" else argparse.SUPPRESS
            torchrun.add_argument(*names, action=_Passed, dest="torchrun", metavar="N", help=shown)
        else:
            torchrun.add_argument(*names, action=_Passed, dest="torchrun", nargs=0, help=argparse.SUPPRESS)
    torchrun.description = "all of torchrun's options, by their own names; torchrun then starts the ranks"


class _Passed(argparse.Action):
    """Action that collects torchrun's options as they were given."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        given = [option_string or ""] if self.nargs == 0 else [option_string or "", str(values)]
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or []), *given])


def split(arguments: list[str], parser: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
    """Split into ddpprof's own options and the command, which begins at the first non-option or at ``--``."""
    options = parser._option_string_actions  # noqa: SLF001 (argparse has no public way to ask for an option's arity)
    index = 0
    while index < len(arguments):
        word = arguments[index]
        if word == "--" or not word.startswith("-") or word == "-":
            break
        action = options.get(word)
        index += 2 if action is not None and action.nargs != 0 else 1
    return arguments[:index], arguments[index:]


def run_trace(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    own, command = split(list(arguments), parser)
    options = parser.parse_args(own)
    words = command[1:] if command[:1] == ["--"] else command
    if not words:
        parser.error("nothing to trace: give a script, or a command after --")
    if words is not command and options.torchrun:
        parser.error("torchrun's options go to torchrun itself here: ddpprof trace -- torchrun … train.py")
    if options.baseline_steps and options.no_profiler:
        parser.error("--baseline-steps needs the profiler: leave --no-profiler out")
    out = Path(options.out or default_out(words))
    options.recorded_with = (*_without(own, ("--out", "--repeat"), ("--force",)), *command)
    if options.repeat is not None:
        return _trace_repeatedly(parser, options, out, command)
    return _trace(options, out, command).exit_code


def _trace_repeatedly(
    parser: argparse.ArgumentParser, options: argparse.Namespace, out: Path, command: Sequence[str]
) -> int:
    """Run the job repeatedly; stop at the first run that fails, and return its exit code."""
    from ddpprof import rundir
    from ddpprof.record import launch

    if launch.inside_job(os.environ):
        parser.error("--repeat starts the job itself, so it cannot be used under a launcher")
    if rundir.is_run(out):
        parser.error(f"{out} is itself a run. Choose another folder for repeated runs: --out {out}s")
    there = rundir.repeated_runs_in(out)
    first = 1 if options.force else max(there, default=0) + 1
    options.quiet, is_quiet = True, options.quiet
    numbered = [out / rundir.repeated_directory(number) for number in range(first, first + options.repeat)]
    for number, directory in enumerate(numbered, 1):
        outcome = _trace(options, directory, command)
        if outcome.exit_code or outcome.interrupted:
            return outcome.exit_code
        if not is_quiet:
            say(f"ddpprof: run {number} of {options.repeat} is recorded", file=sys.stderr, flush=True)
    kept = len(rundir.repeated_runs_in(out))
    if not kept:
        say(nothing_recorded(numbered, _name(command)), file=sys.stderr)
    elif not is_quiet:
        say(f"\nWrote {out} ({kept} run{'s' if kept != 1 else ''}). See them with: ddpprof report {out}", flush=True)
    return 0


def _without(own: Sequence[str], with_value: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Return ddpprof's own words without these options."""
    kept, is_value = [], False
    for word in own:
        name = word.partition("=")[0]
        if not is_value and name not in (*with_value, *flags):
            kept.append(word)
        is_value = not is_value and word in with_value
    return kept


def _trace(options: argparse.Namespace, out: Path, command: Sequence[str]) -> JobEnd:
    from ddpprof.record import launch
    from ddpprof.record.attempts import agent_of_this_process
    from ddpprof.record.settings import Settings

    wrapped = command[:1] == ["--"]
    words = command[1:] if wrapped else command
    settings = Settings(
        out=str(out.absolute()),
        command=() if options.no_command else tuple(words),
        recorded_with=() if options.no_command else options.recorded_with,
        skip_first=options.skip_first,
        cost_steps=options.cost_steps,
        warmup=options.warmup,
        steps=options.steps,
        profile_ranks=options.profile_ranks.spans if options.profile_ranks else (),
        most_seconds=options.most_seconds,
        most_bytes=options.most_memory << 20,
        profiler=not options.no_profiler,
        baseline_steps=options.baseline_steps,
        alone_steps=options.baseline_steps,
        record_shapes=options.record_shapes or options.baseline_steps > 0,  # shapes tell kernels of one name apart
        with_stack=options.with_stack,
        profile_memory=options.profile_memory,
        stop_after=options.stop_after or options.baseline_steps > 0,
        force=options.force,
    )
    inside = options.torchrun is None and launch.inside_job(os.environ)
    if inside:
        settings = dataclasses.replace(settings, agent=agent_of_this_process())
    if launch.is_first_rank(os.environ) if inside else not _is_further_node(options.torchrun):
        settings = launch.clear_out(settings, inside)
    job = words if wrapped else launch.script_command(words, options.module, options.torchrun)
    outcome = launch.run_job(job, settings, explain_rank=not inside)
    _note_exit(outcome, settings, inside)
    if outcome.needs_rank:
        instead = (
            "-- torchrun --nproc-per-node 2 train.py" if wrapped else f"--nproc-per-node 2 {_shown(options, words)}"
        )
        say(
            f"ddpprof: {words[0]} expects a launcher: {outcome.needs_rank} is not set. Run: ddpprof trace {instead}",
            file=sys.stderr,
        )
    elif not options.quiet:
        sys.stdout.flush()
        try:
            after_trace(out, inside, _name(command), interrupted=outcome.signal is not None)
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 (the job's exit code is what counts)
            say(f"ddpprof: no report: {error}. The run is in {out}.", file=sys.stderr)
    if outcome.signal is not None:
        _die_of(outcome.signal)
    return outcome


def _note_exit(outcome: JobEnd, settings: Settings, inside: bool) -> None:
    """Write how the job, or inside a job this rank, ended; a rank that is killed cannot do that itself."""
    from ddpprof.record import exits
    from ddpprof.record.launch import rank_given

    whose = {"rank": int(rank_given(os.environ) or 0)} if inside else {"is_job": True}
    code = outcome.exit_code if outcome.signal is None else -outcome.signal
    with suppress(OSError, ValueError):  # the job's exit code is what counts
        exits.append(Path(settings.out), {**whose, "exit_code": code, "interrupted": outcome.interrupted})


def _shown(options: argparse.Namespace, words: Sequence[str]) -> str:
    return " ".join([*(["-m"] if options.module else []), *words])


def _name(command: Sequence[str]) -> str:
    """Return what a message may call the job: its script, or "the job" if it is another program's."""
    return "the job" if command[0] == "--" else Path(command[0]).name


def default_out(words: Sequence[str]) -> str:
    name = words[0].rpartition(".")[2] if "/" not in words[0] and not words[0].endswith(".py") else Path(words[0]).stem
    return f"runs/{name or 'job'}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


def _is_further_node(torchrun: Sequence[str] | None) -> bool:
    """Return whether this is not the first of several nodes; the first one creates the shared run directory."""
    given = list(torchrun or ())
    return any(name in given and given[given.index(name) + 1] != "0" for name in ("--node-rank", "--node_rank"))


def _die_of(number: int) -> NoReturn:
    """End by the same signal as the job, so that the caller of ddpprof sees that signal."""
    sys.stdout.flush()
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(number, signal.SIG_DFL) if number not in (signal.SIGKILL, signal.SIGSTOP) else None
    os.kill(os.getpid(), number)
    sys.exit(128 + number)
