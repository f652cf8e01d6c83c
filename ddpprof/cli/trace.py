"""`ddpprof trace`: start the job with recording switched on, then report."""

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

from ddpprof.cli.arguments import count, numbers, positive, seconds
from ddpprof.cli.saying import say
from ddpprof.files import local
from ddpprof.profiled_ranks import MOST

if TYPE_CHECKING:
    from ddpprof.pipeline.analysis import Analysis
    from ddpprof.record.launch import Outcome
    from ddpprof.record.settings import Settings


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    from ddpprof.record.settings import Settings

    add = parser.add_argument
    add("--out", type=local, metavar="DIR", help="the run directory (default: runs/SCRIPT-TIME)")
    add("--force", action="store_true", help="replace an earlier run in DIR")
    add(
        "--repeat",
        type=positive,
        metavar="N",
        help="run the job N times, one after the other, and keep the runs as DIR/run-1 to DIR/run-N; runs that are "
        "there already stay, and new ones are numbered after them. Compare such folders with: ddpprof compare",
    )
    add(
        "--skip-first",
        type=count,
        default=Settings.skip_first,
        metavar="N",
        help="leave the first N steps alone (%(default)s)",
    )
    add(
        "--cost-steps",
        type=count,
        default=Settings.cost_steps,
        metavar="N",
        help="then N steps with recording alternately off and on, to measure ddpprof's own cost (%(default)s)",
    )
    add(
        "--warmup",
        type=count,
        default=Settings.warmup,
        metavar="N",
        help="then N steps with the profiler warming up (%(default)s)",
    )
    add("--steps", type=positive, default=Settings.steps, metavar="N", help="then profile N steps (%(default)s)")
    add(
        "--most-seconds",
        type=seconds,
        default=Settings.most_seconds,
        metavar="S",
        help="end the profiled steps after S seconds, however many there were (%(default)g)",
    )
    add(
        "--most-memory",
        type=positive,
        default=Settings.most_bytes >> 20,
        metavar="MIB",
        help="end the profiled steps when the process has grown by so many MiB in them (%(default)s)",
    )
    add(
        "--baseline-steps",
        type=count,
        default=Settings.baseline_steps,
        metavar="N",
        help="then N profiled steps without gradient communication, and N not profiled, to tell how much it slows "
        "computation, and to predict better; they spoil the training, so the job ends with them, with exit code 0, and "
        "torch.save writes nothing in them (%(default)s)",
    )
    add("--stop-after", action="store_true", help="end the job, with exit code 0, once the steps are recorded")
    add(
        "--profile-ranks",
        type=numbers,
        metavar="N",
        help=f"profile these ranks alone, say, 0-7,64; by default all, or, in a job of more than {MOST}, some at even "
        "distances. Light recording is on all ranks",
    )
    add("--no-profiler", action="store_true", help="light recording only")
    add("--record-shapes", action="store_true", help="as in torch.profiler")
    add("--with-stack", action="store_true", help="as in torch.profiler")
    add("--profile-memory", action="store_true", help="as in torch.profiler")
    add("--no-command", action="store_true", help="keep no word of the command in the run")
    add("--quiet", action="store_true", help="print nothing but what the job prints")
    add("-m", "--module", action="store_true", help="train.py is a module's name, as for python -m")
    add_torchrun_options(parser)


def add_torchrun_options(parser: argparse.ArgumentParser) -> None:
    """As ``torchrun``, the words to pass on; ``None`` where none of them is given."""
    from ddpprof.record.torchrun import OPTIONS

    torchrun = parser.add_argument_group("torchrun's options", "given to torchrun, which then starts the ranks")
    for names, takes_value in OPTIONS:
        if takes_value:
            shown = "how many ranks torchrun starts" if names[0] == "--nproc-per-node" else argparse.SUPPRESS
            torchrun.add_argument(*names, action=_Passed, dest="torchrun", metavar="N", help=shown)
        else:
            torchrun.add_argument(*names, action=_Passed, dest="torchrun", nargs=0, help=argparse.SUPPRESS)
    torchrun.description = "every option of torchrun by its own name; torchrun then starts the ranks"


class _Passed(argparse.Action):
    """Collects an option of torchrun as it was given."""

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
    """What is ddpprof's own, and the command: from the first word that is no option, or from ``--``."""
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


_NOTHING_RECORDED = (
    "ddpprof: nothing was recorded: no DistributedDataParallel module finished more steps than are skipped at first "
    "(--skip-first)."
)


def _trace_repeatedly(
    parser: argparse.ArgumentParser, options: argparse.Namespace, out: Path, command: Sequence[str]
) -> int:
    """Stop at the first run that fails, with its exit code."""
    from ddpprof import rundir
    from ddpprof.record import launch

    if launch.inside_job(os.environ):
        parser.error("--repeat starts the job itself, so it cannot stand behind a launcher")
    if rundir.is_run(out):
        parser.error(f"{out} is a run itself. Choose another folder for several: --out {out}s")
    there = rundir.repeated_runs_in(out)
    first = 1 if options.force else max(there, default=0) + 1
    options.quiet, is_quiet = True, options.quiet
    for number in range(first, first + options.repeat):
        outcome = _trace(options, out / rundir.repeated_directory(number), command)
        if outcome.exit_code or outcome.interrupted:
            return outcome.exit_code
        if not is_quiet:
            say(f"ddpprof: run {number - first + 1} of {options.repeat} is recorded", file=sys.stderr, flush=True)
    kept = len(rundir.repeated_runs_in(out))
    if not kept:
        say(_NOTHING_RECORDED, file=sys.stderr)
    elif not is_quiet:
        say(f"\nWrote {out} ({kept} run{'s' if kept != 1 else ''}). See them with: ddpprof report {out}", flush=True)
    return 0


def _without(own: Sequence[str], with_value: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Return ddpprof's own words but for these options."""
    kept, is_value = [], False
    for word in own:
        name = word.partition("=")[0]
        if not is_value and name not in (*with_value, *flags):
            kept.append(word)
        is_value = not is_value and word in with_value
    return kept


def _trace(options: argparse.Namespace, out: Path, command: Sequence[str]) -> Outcome:
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
        record_shapes=options.record_shapes or options.baseline_steps > 0,  # they tell kernels of one name apart
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
            _after_trace(out, inside, interrupted=outcome.signal is not None)
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 (the job's exit code is what counts)
            say(f"ddpprof: no report: {error}. The run is in {out}.", file=sys.stderr)
    if outcome.signal is not None:
        _die_of(outcome.signal)
    return outcome


def _note_exit(outcome: Outcome, settings: Settings, inside: bool) -> None:
    """Write how the job, or inside one this rank, ended: a rank that is killed cannot say it itself."""
    from ddpprof.record import exits
    from ddpprof.record.launch import rank_given

    whose = {"rank": int(rank_given(os.environ) or 0)} if inside else {"is_job": True}
    code = outcome.exit_code if outcome.signal is None else -outcome.signal
    with suppress(OSError, ValueError):  # the job's exit code is what counts
        exits.append(Path(settings.out), {**whose, "exit_code": code, "interrupted": outcome.interrupted})


def _shown(options: argparse.Namespace, words: Sequence[str]) -> str:
    return " ".join([*(["-m"] if options.module else []), *words])


def default_out(words: Sequence[str]) -> str:
    name = words[0].rpartition(".")[2] if "/" not in words[0] and not words[0].endswith(".py") else Path(words[0]).stem
    return f"runs/{name or 'job'}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


def _is_further_node(torchrun: Sequence[str] | None) -> bool:
    """Of several nodes with one run directory, the first one has created it."""
    given = list(torchrun or ())
    return any(name in given and given[given.index(name) + 1] != "0" for name in ("--node-rank", "--node_rank"))


def _after_trace(out: Path, inside: bool, interrupted: bool) -> None:
    from ddpprof import rundir
    from ddpprof.record.launch import is_first_rank

    if inside:
        if is_first_rank(os.environ):
            say(f"ddpprof: see the run with: ddpprof report {out}", file=sys.stderr)
        return
    attempts = rundir.attempts_in(out) if rundir.is_run(out) else {}
    if not any(rundir.ranks_in(path) for path in attempts.values()):
        say(_NOTHING_RECORDED, file=sys.stderr)
        return
    _print_run(out, summary_only=interrupted)


def _print_run(out: Path, summary_only: bool) -> None:
    from ddpprof.cli.report import shown_sections
    from ddpprof.pipeline.analysis import analysed
    from ddpprof.render.terminal import render_terminal

    with analysed(out) as analysis:
        report = analysis.report
        if not summary_only:
            say()
            render_terminal(shown_sections(report, analysis), sys.stdout)
        _write_for_tensorboard(out, analysis)
    steps = max((len(rank.steps) + len(rank.light_steps) for rank in report.ranks), default=0)
    ranks = len(report.ranks)
    wrote = f"Wrote {out} ({ranks} rank{'s' if ranks != 1 else ''}, {steps} steps)."
    say(f"\n{wrote} See it again with: ddpprof report {out}", flush=True)


def _write_for_tensorboard(out: Path, analysis: Analysis) -> None:
    """So that ``tensorboard --logdir OUT`` shows the run, where there is a TensorBoard."""
    from importlib.util import find_spec

    from ddpprof.cli.log_directory import write_log_directory
    from ddpprof.own_files import make_folder
    from ddpprof.rundir import TENSORBOARD_DIRECTORY

    if find_spec("tensorboard") is None:
        return
    try:
        make_folder(out / TENSORBOARD_DIRECTORY)
        write_log_directory(out / TENSORBOARD_DIRECTORY, analysis.report, analysis.drawings())
    except Exception as error:  # noqa: BLE001 (the report is what was asked for)
        say(f"ddpprof: nothing for TensorBoard: {error}", file=sys.stderr)


def _die_of(number: int) -> NoReturn:
    """End as the job did, so that whoever waits for ddpprof sees the same signal."""
    sys.stdout.flush()
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(number, signal.SIG_DFL) if number not in (signal.SIGKILL, signal.SIGSTOP) else None
    os.kill(os.getpid(), number)
    sys.exit(128 + number)
