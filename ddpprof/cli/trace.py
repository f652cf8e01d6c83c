"""`ddpprof trace`: start the job with recording switched on, then report."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ddpprof.cli.arguments import count, positive
from ddpprof.location import local

if TYPE_CHECKING:
    from ddpprof.fleet.analysis import Analysis


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    from ddpprof.record.settings import Settings

    add = parser.add_argument
    add("--out", type=local, metavar="DIR", help="the run directory (default: runs/SCRIPT-TIME)")
    add("--force", action="store_true", help="replace an earlier run in DIR")
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
        "--baseline-steps",
        type=count,
        default=Settings.baseline_steps,
        metavar="N",
        help="then N profiled steps without gradient communication, and N not profiled, to tell how much it slows "
        "computation, and to predict better; they spoil the training, so the job ends with them, with exit code 0, and "
        "torch.save writes nothing in them (%(default)s)",
    )
    add("--stop-after", action="store_true", help="end the job, with exit code 0, once the steps are recorded")
    add("--no-profiler", action="store_true", help="light recording only")
    add("--record-shapes", action="store_true", help="as in torch.profiler")
    add("--with-stack", action="store_true", help="as in torch.profiler")
    add("--profile-memory", action="store_true", help="as in torch.profiler")
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
    from ddpprof.record import launch
    from ddpprof.record.attempts import agent_of_this_process
    from ddpprof.record.settings import Settings

    wrapped = command[:1] == ["--"]
    words = command[1:] if wrapped else command
    if not words:
        parser.error("nothing to trace: give a script, or a command after --")
    if wrapped and options.torchrun:
        parser.error("torchrun's options go to torchrun itself here: ddpprof trace -- torchrun … train.py")
    if options.baseline_steps and options.no_profiler:
        parser.error("--baseline-steps needs the profiler: leave --no-profiler out")
    out = options.out or default_out(words)
    settings = Settings(
        out=str(Path(out).absolute()),
        command=tuple(words),
        skip_first=options.skip_first,
        cost_steps=options.cost_steps,
        warmup=options.warmup,
        steps=options.steps,
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
    if outcome.needs_rank:
        instead = (
            "-- torchrun --nproc-per-node 2 train.py" if wrapped else f"--nproc-per-node 2 {_shown(options, words)}"
        )
        print(
            f"ddpprof: {words[0]} expects a launcher: {outcome.needs_rank} is not set. Run: ddpprof trace {instead}",
            file=sys.stderr,
        )
    elif not options.quiet:
        sys.stdout.flush()
        try:
            _after_trace(Path(out), inside, interrupted=outcome.signal is not None)
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 (the job's exit code is what counts)
            print(f"ddpprof: no report: {error}. The run is in {out}.", file=sys.stderr)
    if outcome.signal is not None:
        _die_of(outcome.signal)
    return outcome.exit_code


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
            print(f"ddpprof: see the run with: ddpprof report {out}", file=sys.stderr)
        return
    attempts = rundir.attempts_in(out) if rundir.is_run(out) else {}
    if not any(rundir.ranks_in(path) for path in attempts.values()):
        print(
            "ddpprof: nothing was recorded: no DistributedDataParallel module finished a training step.",
            file=sys.stderr,
        )
        return
    _print_run(out, summary_only=interrupted)


def _print_run(out: Path, summary_only: bool) -> None:
    from ddpprof.cli.show import shown_sections
    from ddpprof.fleet.analysis import analysed
    from ddpprof.render.terminal import render_terminal

    with analysed(out) as analysis:
        report = analysis.report
        if not summary_only:
            print()
            render_terminal(shown_sections(report, analysis), sys.stdout)
        _write_for_tensorboard(out, analysis)
    steps = max((len(rank.steps) + len(rank.light_steps) for rank in report.ranks), default=0)
    ranks = len(report.ranks)
    wrote = f"Wrote {out} ({ranks} rank{'s' if ranks != 1 else ''}, {steps} steps)."
    print(f"\n{wrote} See it again with: ddpprof report {out}", flush=True)


def _write_for_tensorboard(out: Path, analysis: Analysis) -> None:
    """So that ``tensorboard --logdir OUT`` shows the run, where there is a TensorBoard."""
    from importlib.util import find_spec

    from ddpprof.cli.log_directory import write_log_directory
    from ddpprof.rundir import TENSORBOARD_DIRECTORY

    if find_spec("tensorboard") is None:
        return
    try:
        write_log_directory(out / TENSORBOARD_DIRECTORY, analysis.report, analysis.drawings())
    except Exception as error:  # noqa: BLE001 (the report is what was asked for)
        print(f"ddpprof: nothing for TensorBoard: {error}", file=sys.stderr)


def _die_of(number: int) -> NoReturn:
    """End as the job did, so that whoever waits for ddpprof sees the same signal."""
    sys.stdout.flush()
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(number, signal.SIG_DFL) if number not in (signal.SIGKILL, signal.SIGSTOP) else None
    os.kill(os.getpid(), number)
    sys.exit(128 + number)
