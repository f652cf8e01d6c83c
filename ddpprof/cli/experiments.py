"""`ddpprof overhead`, `scale` and `sweep`: parse the options, plan and run the trials, and print the results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ddpprof.cli.arguments import NPROC, count, positive
from ddpprof.cli.job import default_out, split_experiment
from ddpprof.cli.output import refuse_unwritable_folder
from ddpprof.cli.saying import CHOICES, add_json_option, note, progress, say, text_stream
from ddpprof.errors import DdpprofError
from ddpprof.files import local

if TYPE_CHECKING:
    from ddpprof.experiments.plan import Experiment, Trial, TrialEnd, Variant
    from ddpprof.layout import Section
    from ddpprof.render.json_documents import Written

_VARY = (
    "a script option (--batch-size=32,64), a DDP argument (bucket_cap_mb=5,25), how torch.compile compiles DDP "
    "(compile_order=ddp_first,model_first or optimize_ddp=ddp_optimizer,no_optimization), sync_batch_norm=True,False, "
    "sparse_embeddings=True,False, detect_anomaly=True,False, comm_hook=True,False, or an environment variable (in "
    "capitals). With several --vary options, all combinations are measured"
)


_LONG_S = 60
"""the remaining time is shown if it is at least this many seconds"""


def add_overhead_options(parser: argparse.ArgumentParser) -> None:
    _add_options(parser, "overhead", rounds=5)


def add_scale_options(parser: argparse.ArgumentParser) -> None:
    _add_options(parser, "scale", rounds=3)


def add_sweep_options(parser: argparse.ArgumentParser) -> None:
    _add_options(parser, "sweep", rounds=3)


def _add_options(parser: argparse.ArgumentParser, kind: str, rounds: int) -> None:
    parser.set_defaults(kind=kind, run_words=run_experiment)
    add = parser.add_argument
    if kind == "overhead":
        add(
            *NPROC,
            type=positive,
            metavar="N",
            help="number of processes; with more than one, the cost of DDP includes communication (default: 1)",
        )
        add(
            "--apart",
            action="store_true",
            help="run separate jobs with and without DDP, instead of alternating blocks of steps in one job; required "
            "for torch.compile",
        )
        add("--blocks", type=positive, default=10, metavar="N", help="pairs of blocks in each round (%(default)s)")
    else:
        add(
            *NPROC,
            type=_numbers,
            metavar="N,N…",
            help=f"process counts (default: {'1,2' if kind == 'scale' else '1, or as many as the script starts'})",
        )
    if kind == "scale":
        add(
            "--strong",
            metavar="OPTION=TOTAL",
            help="also measure strong scaling; give the script's option that sets the total batch size, such as "
            "'--batch-size=256'",
        )
        add(
            "--no-weak",
            action="store_true",
            help="do not measure weak scaling, with a fixed batch size per process",
        )
    if kind == "sweep":
        add("--vary", action="append", metavar="NAME=VALUES", help=_VARY)
        add(
            "--size-is",
            choices=["share", "total"],
            help="treat the first varied option as the amount of work, and fit constant + slope × size to the step "
            "times. 'share': the option sets the work per process, and variants are compared at equal total work "
            "(default if the name contains 'batch'); 'total': the option sets the total work of all processes",
        )
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set this value in all trials; accepts the same names as sweep --vary",
    )
    add("--rounds", type=positive, default=rounds, metavar="N", help="number of runs of each variant (%(default)s)")
    add(
        "--skip-first",
        type=count,
        default=5,
        metavar="N",
        help="number of initial steps to ignore in each trial (%(default)s)",
    )
    timed = "a block (5) or, with --apart, in a trial (20)" if kind == "overhead" else "a trial (20)"
    add("--timed-steps", type=positive, metavar="N", help=f"number of steps to time in {timed}")
    add_place_options(parser, kind, "experiment")


def add_place_options(parser: argparse.ArgumentParser, kind: str, what: str) -> None:
    """Add the options for the folder of the trials, and for continuing an interrupted experiment."""
    add = parser.add_argument
    add("--out", type=local, metavar="DIR", help=f"folder for the trials (default: runs/{kind}-SCRIPT-TIME)")
    add("--force", action="store_true", help="replace an earlier experiment in DIR")
    add("--resume", type=local, metavar="DIR", help=f"continue the {what} in DIR; needs no other arguments")
    add(
        "--trust",
        action="store_true",
        help="with --resume: run the command even if the experiment was started by another user or on another machine",
    )
    add("-m", "--module", action="store_true", help="run a module instead of a script, as python -m does")
    add_json_option(parser)


def resumed(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    arguments: Sequence[str],
    *,
    kind: str = "",
    may_change: Collection[str] = (),
) -> Experiment:
    """Read the plan of the experiment to continue, and print the command that it runs.

    `arguments`: all arguments of the command. `kind`: required kind of experiment; by default, any kind in this module.
    `may_change`: options of the experiment that this command may give, too. Raises `DdpprofError` if the experiment was
    started by another user or with another command.
    """
    from ddpprof.experiments.plan import ExperimentKind, is_of_this_user, read_plan

    own, command, _ = split_experiment(arguments, parser)
    if command or not {word.partition("=")[0] for word in own} <= {*_OF_RESUME, *may_change}:
        parser.error("--resume takes the command and all options from the experiment itself")
    experiment = read_plan(options.resume)
    if not options.trust and not is_of_this_user(options.resume, experiment):
        raise DdpprofError(
            f"{options.resume} was started by another user or on another machine. --resume would run: "
            f"{_what_it_runs(experiment)}. Add --trust if you trust this command."
        )
    if not experiment.is_whole:
        raise DdpprofError(
            f"the command of {options.resume} contained secrets, which are not stored. To continue, give the whole "
            f"command again: ddpprof {experiment.kind} --out {options.resume} …"
        )
    known = {kind} if kind else {ExperimentKind.OVERHEAD, ExperimentKind.SCALE, ExperimentKind.SWEEP}
    if experiment.kind not in known:
        raise DdpprofError(
            f"{options.resume} was created by ddpprof {experiment.kind}. Continue it with: "
            f"ddpprof {experiment.kind} --resume {options.resume}"
        )
    note(f"running {_what_it_runs(experiment)}")
    return experiment


_OF_RESUME = ("--resume", "--trust", "--world-readable", "--json")


def _what_it_runs(experiment: Experiment) -> str:
    """Return the command, with the arguments and environment variables that the variants add to it."""
    import shlex

    words = {shlex.join(variant.words) for variant in experiment.variants}
    places = {f"{name}={value}" for one in experiment.variants for name, value in one.places.items()}
    variables = {f"{name}={value}" for one in experiment.variants for name, value in one.variables.items()}
    added = sorted({*words, *places, *variables} - {""})
    command = shlex.join(experiment.command)
    return f"{command} (with {' or '.join(added)})" if added else command


def _numbers(text: str) -> list[int]:
    return list(dict.fromkeys(positive(word) for word in text.split(",")))


def run_experiment(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    own, command, is_wrapped = split_experiment(arguments, parser)
    options = parser.parse_args(own)
    if options.resume is None and not command:
        parser.error("nothing to run: give a script, or a command after --")
    planned = plan(options, command, is_wrapped) if options.resume is None else None
    from ddpprof.experiments.conduct import job_of, open_experiment, working_on  # slow import

    if planned is None:
        experiment, directory = resumed(parser, options, arguments), options.resume
    else:
        experiment = planned
        for variant in experiment.variants:
            job_of(experiment, variant)  # reports a missing script before anything is created
        _warn_of_options_behind(parser, command)
        _warn_of_words([*options.set, *(getattr(options, "vary", None) or ())], command)
        directory = options.out or Path(default_out(command, is_module=options.module, kind=options.kind))
        refuse_unwritable_folder(directory)
        open_experiment(directory, experiment, options.force)
    with working_on(directory):
        interrupted = run_trials(directory, experiment)
    show = partial(_show_what_there_is, directory, experiment, interrupted)
    return show_at_the_end(show, experiment.kind, directory, interrupted)


_PROFILED_STEPS = 5


def plan(options: argparse.Namespace, command: Sequence[str], is_wrapped: bool) -> Experiment:
    """Plan the experiment. Raises `DdpprofError`."""
    from ddpprof.experiments.plan import EXPERIMENT_FORMAT, Experiment, ExperimentKind

    kind = ExperimentKind(options.kind)
    variants = {ExperimentKind.OVERHEAD: _overhead, ExperimentKind.SCALE: _scale, ExperimentKind.SWEEP: _sweep}[kind](
        options, command
    )
    if is_wrapped and len({v.nproc for v in variants}) > 1 and not any("{nproc}" in word for word in command):
        raise DdpprofError(
            "use {nproc} for the number of processes in the command: ddpprof … -- mpirun -n {nproc} python train.py"
        )
    return Experiment(
        format=EXPERIMENT_FORMAT,
        kind=kind,
        command=tuple(command),
        as_module=options.module,
        is_wrapped=is_wrapped,
        variants=tuple(variants),
        rounds=options.rounds,
        skip_first=options.skip_first,
        timed_steps=options.timed_steps or (5 if kind is ExperimentKind.OVERHEAD and not options.apart else 20),
    )


def _overhead(options: argparse.Namespace, command: Sequence[str]) -> list[Variant]:
    from dataclasses import replace

    from ddpprof.experiments.plan import Variant
    from ddpprof.experiments.vary import with_settings

    plain = Variant(options.nproc or 1, any_number=options.nproc is None, profiled_steps=_PROFILED_STEPS)
    with_ddp = with_settings(plain, options.set, command)
    if not options.apart:
        return [replace(with_ddp, ddp_blocks=options.blocks)]
    return [with_ddp, replace(with_ddp, without_ddp=True, profiled_steps=0)]


def _scale(options: argparse.Namespace, command: Sequence[str]) -> list[Variant]:
    from dataclasses import replace

    from ddpprof.experiments.plan import Variant
    from ddpprof.experiments.vary import shared_by, with_settings

    alone = with_settings(Variant(1, without_ddp=True, profiled_steps=_PROFILED_STEPS), options.set, command)
    several = [replace(alone, nproc=nproc, without_ddp=False) for nproc in options.nproc or [1, 2]]
    weak = [] if options.no_weak else [alone, *several]
    strong = [] if options.strong is None else [shared_by(v, options.strong, command) for v in (alone, *several)]
    if not weak and not strong:
        raise DdpprofError(
            "nothing to measure: --no-weak turns off weak scaling. Add --strong OPTION=TOTAL, or remove --no-weak"
        )
    return [*weak, *strong]


def _sweep(options: argparse.Namespace, command: Sequence[str]) -> list[Variant]:
    from dataclasses import replace

    from ddpprof.experiments.plan import Variant
    from ddpprof.experiments.vary import vary, with_settings

    if not options.vary:
        raise DdpprofError("specify what to vary: --vary '--batch-size=32,64,128' or --vary bucket_cap_mb=5,25")
    plain = [Variant(nproc, any_number=options.nproc is None) for nproc in options.nproc or [1]]
    nprocs = [with_settings(variant, options.set, command) for variant in plain]
    by_nproc = [vary(variant, options.vary, command) for variant in nprocs]
    variants = [variant for of_one_value in zip(*by_nproc, strict=True) for variant in of_one_value]
    is_share = options.size_is == "share" or (options.size_is is None and "batch" in variants[0].varied)
    return [replace(v, is_share=is_share, is_work=is_share or options.size_is is not None) for v in variants]


def show_at_the_end(show: Callable[[], None], kind: str, directory: Path, interrupted: bool) -> int:
    """Show the results so far, print how to continue an interrupted experiment, and return the exit code."""
    try:
        show()
    except DdpprofError as nothing_yet:
        if not interrupted:
            raise
        say(nothing_yet)
    if interrupted:
        say(f"\nStopped. Continue with: ddpprof {kind} --resume {directory}", flush=True)
        return 130
    return 0


def _warn_of_options_behind(parser: argparse.ArgumentParser, command: Sequence[str]) -> None:
    own = parser._option_string_actions  # noqa: SLF001 (argparse has no public list of options)
    for word in command[1:]:
        if word.startswith("--") and word.partition("=")[0] in own:
            note(f"{word} comes after the script, so it is passed to the script")


def _warn_of_words(choices: Sequence[str], command: Sequence[str]) -> None:
    from ddpprof.experiments.vary import passed_on

    for name in passed_on(choices, command):
        note(f"{name}=… is not a DDP argument, so it is passed to the script as an argument")


def steps_in_words(cpu: int, accelerator: int, each: str = "") -> str:
    """Return the numbers of steps on CPU and on an accelerator, as text. A job's device is unknown before it runs."""
    return f"{cpu} steps{each}" + (f" ({accelerator} on an accelerator)" if cpu != accelerator else "")


def in_minutes(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return "a minute" if minutes == 1 else f"{minutes} minutes"


def say_how_long(seconds: float) -> None:
    """Print an estimate of the time that the remaining trials will take."""
    if seconds >= _LONG_S:
        progress(f"About {in_minutes(seconds)} left. Press Ctrl-C to stop; the results so far are kept.")


def run_trials(directory: Path, experiment: Experiment, without: Container[int] = ()) -> bool:
    """Run the trials, except trials of the variants in `without`. Return True if the user interrupted them."""
    from datetime import timedelta
    from statistics import median

    from ddpprof.experiments.conduct import conduct, remaining, steps_of, still_needed
    from ddpprof.experiments.plan import ExperimentKind
    from ddpprof.layout import count as number_of

    trials = [one for one in remaining(directory, experiment) if one.variant not in without]
    if trials:
        warn_of_other_work()
    total, seconds = experiment.num_trials, []
    if trials and experiment.kind is ExperimentKind.TRY:  # which has already printed the number of steps
        progress(f"{number_of(len(trials), 'trial')} in {directory}")
    elif trials:
        cpu, accelerator = (
            max(steps_of(experiment, one, kind) for one in experiment.variants) for kind in (False, True)
        )
        steps = steps_in_words(cpu, accelerator, " each")
        progress(f"{number_of(len(trials), 'trial')} of {steps} in {directory}")
    _announce(experiment, trials[0] if trials else None, total - len(trials), "")
    try:
        failed = set[int]()
        for trial, ended in conduct(directory, experiment, trials):
            if ended is None:
                _wipe()
                return True
            if ended.problem is not None:
                failed.add(trial.variant)
            seconds.append(ended.seconds)
            index = trials.index(trial) + 1
            following = still_needed(experiment, trials[index:], failed)
            left_s = median(seconds) * len(following)
            done = total - len(trials) + index
            _say(f"[{done}/{total}] {_outcome(directory, experiment, trial, ended)}")
            if len(seconds) == 1:
                _refuse_short_job(directory, experiment, trial)
                say_how_long(left_s)
            if following:
                at = total - len(trials) + trials.index(following[0])
                _announce(experiment, following[0], at, f", about {timedelta(seconds=round(left_s))} left")
    except KeyboardInterrupt:
        _wipe()
        return True
    return False


def warn_of_other_work() -> None:
    """Print a note if other processes are using many of this machine's cores."""
    import time

    from ddpprof.layout import count as number_of
    from ddpprof.linux_files import own_cores, ticks_of

    cores = own_cores() or ()
    before = ticks_of(cores)
    if before is None:
        return
    time.sleep(_WATCHED_S)
    after = ticks_of(cores)
    if after is None or after.total <= before.total:
        return
    share = (after.busy - before.busy) / (after.total - before.total)
    if share > _MUCH_OTHER_WORK:
        note(
            f"other processes are using {share * len(cores):.1f} of {number_of(len(cores), 'core')}, so the times will "
            "vary, and more rounds may be needed"
        )


_WATCHED_S = 0.5
_MUCH_OTHER_WORK = 0.25
"""a note is printed if other processes use at least this share of the machine's cores"""


def _refuse_short_job(directory: Path, experiment: Experiment, trial: Trial) -> None:
    """Raise `DdpprofError` after the first trial if the job trains for too few steps."""
    from ddpprof.experiments.trials import read_trial, refuse_short_job
    from ddpprof.load.record import load_record
    from ddpprof.rundir import ranks_in

    folder = directory / trial.name
    records = [record for rank in ranks_in(folder) if (record := load_record(folder, rank)) is not None]
    result = read_trial(directory, trial)
    trained = [record.steps[-1].number + 1 for record in records if record.steps]
    if result is not None and trained and (result.problem is None or "before any step was timed" in result.problem):
        refuse_short_job(experiment, result, min(trained), records[0].device != "cpu")


def _outcome(directory: Path, experiment: Experiment, trial: Trial, ended: TrialEnd) -> str:
    title = experiment.variants[trial.variant].title
    if ended.problem is not None:
        return f"{title}: {ended.problem}"
    return f"{title}: {usual_step_in_words(directory / trial.name, mean=experiment.uses_means)}"


def usual_step_in_words(run: Path, *, mean: bool = False) -> str:
    """Return the mean (if `mean` is true) or median step time of a run that has just been recorded, as text."""
    from statistics import fmean, median

    from ddpprof.experiments.trials import timed_steps
    from ddpprof.layout import in_ms
    from ddpprof.load.record import load_record
    from ddpprof.rundir import ranks_in

    records = [load_record(run, rank) for rank in ranks_in(run)]
    steps = timed_steps([record for record in records if record is not None])
    return f"{in_ms(fmean(steps) if mean else median(steps))} per step" if steps else "no step was timed"


def _announce(experiment: Experiment, trial: Trial | None, done: int, left: str) -> None:
    """If stdout is a terminal, show which trial is running, in a line that the next line overwrites."""
    from ddpprof.layout import clean

    if trial is not None and _redraws():
        title, stream = experiment.variants[trial.variant].title, text_stream()
        print(f"\r\x1b[K[{done + 1}/{experiment.num_trials}] {clean(title)} …{left}", file=stream, end="", flush=True)


def _say(line: str) -> None:
    _wipe()
    progress(line)


def _wipe() -> None:
    if _redraws():
        print("\r\x1b[K", file=text_stream(), end="")


def _redraws() -> bool:
    """Return True if a line of output can be overwritten by the next line."""
    return text_stream().isatty() and not CHOICES.is_quiet


def print_result(result: Written, sections: Iterable[Section]) -> None:
    """Print a result as JSON or as text. `sections`: the result as text."""
    if CHOICES.prints_json:
        from ddpprof.render.json import render_json

        sys.stdout.write(render_json(result))
        return
    from ddpprof.render.terminal import render_terminal

    progress()
    render_terminal(sections, sys.stdout)


def _show_what_there_is(directory: Path, experiment: Experiment, interrupted: bool) -> None:
    from ddpprof.experiments.results import read_experiment
    from ddpprof.layout import count as number_of
    from ddpprof.render.sections.experiments import experiment_sections

    report = read_experiment(directory)
    print_result(report, experiment_sections(report))
    if not interrupted and not CHOICES.is_quiet:
        written = f"{directory} ({number_of(experiment.num_trials, 'trial')})"
        say(f"\nWrote {written}. View it again with: ddpprof report {directory}")
