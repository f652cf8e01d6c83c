"""`ddpprof try`: run a job with and without the changes that its findings suggest, and report the time saved."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ddpprof.cli.arguments import count, positive
from ddpprof.cli.experiments import in_minutes, print_result, resumed, run_trials, show_at_the_end
from ddpprof.cli.job import default_out, parse_trace_words
from ddpprof.cli.output import refuse_unwritable_folder
from ddpprof.cli.reading import finding_of, refuse_missing
from ddpprof.cli.saying import add_json_option, progress
from ddpprof.errors import CannotRecord, DdpprofError
from ddpprof.files import local

if TYPE_CHECKING:
    from ddpprof.engine.finding import Finding
    from ddpprof.experiments.plan import Experiment, Variant
    from ddpprof.experiments.trying import Promise
    from ddpprof.report import Report

_ROUNDS = 5
_TIMED_STEPS = 10
_MOST_TIMED_STEPS = 100
_MOST_LONG_STEPS = 4
"""number of long steps that each trial should contain if a finding is about long steps"""
_TIMED_S = 1.0
"""minimum total duration of a trial's timed steps, in seconds. If steps are short, more than `_TIMED_STEPS` of them are
timed, because short steps vary more
"""
_START_S = 5.0
"""typical time from the start of a job to its first step, in seconds"""


def add_try_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", type=local, nargs="?", metavar="RUN", help="a run recorded by ddpprof trace; its command is run again")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--finding",
        type=positive,
        action="append",
        metavar="N",
        help=("try the change that this finding in the report suggests"),
    )
    which.add_argument(
        "--rule",
        metavar="NAME",
        help=("try the changes suggested by the findings of this rule, such as trailing-communication"),
    )
    which.add_argument("--all", action="store_true", help="try all changes that ddpprof can make automatically")
    add(
        "--script",
        metavar="[OLD=]NEW",
        help="run this changed copy of your script instead; OLD is needed if the command has several scripts. Use "
        "--finding to name the finding that the change addresses",
    )
    add(
        "--allow-lossy",
        action="store_true",
        help="also try changes that alter the results of training, such as gradients of lower precision",
    )
    add(
        "--rounds",
        type=positive,
        metavar="N",
        help=f"number of runs of each change and of the unchanged script ({_ROUNDS}); doubled if the results are not "
        "conclusive. With --resume: total number of runs to reach",
    )
    add(
        "--skip-first",
        type=count,
        default=3,
        metavar="N",
        help="number of initial steps to ignore in each run (%(default)s)",
    )
    add(
        "--timed-steps",
        type=positive,
        metavar="N",
        help=f"number of steps to time in each run (at least {_TIMED_STEPS}, and more if steps are short)",
    )
    add("--out", type=local, metavar="DIR", help="folder for the trials (default: runs/try-SCRIPT-TIME)")
    add("--force", action="store_true", help="replace an earlier experiment in DIR")
    add("--resume", type=local, metavar="DIR", help="continue the trials in DIR; needs no other arguments")
    add("--trust", action="store_true", help="run the command even if another user recorded RUN or created DIR")
    add_json_option(parser)
    parser.usage = "ddpprof try [options] RUN"
    parser.set_defaults(run_words=run_try)


def run_try(parser: argparse.ArgumentParser, arguments: list[str]) -> int:
    options = parser.parse_args(arguments)
    if options.script is not None and (options.rule or options.all or len(options.finding or ()) > 1):
        parser.error("--script can be combined with only one --finding")
    from ddpprof.experiments.conduct import add_rounds, job_of, open_experiment, working_on

    if options.resume is not None:
        directory = options.resume
        experiment = resumed(parser, options, arguments, kind="try", may_change=["--rounds"])
    elif options.path is None:
        parser.error("nothing to try: give a run recorded by ddpprof trace")
    else:
        experiment, promises = _planned(options)
        try:
            for variant in experiment.variants:
                job_of(experiment, variant)
        except CannotRecord as error:  # before anything is created
            where = f"Run ddpprof try in the folder in which {options.path} was recorded"
            raise DdpprofError(f"{str(error).partition('. ')[0]} here. {where}.") from error
        directory = options.out or Path(default_out(experiment.command, is_module=experiment.as_module, kind="try"))
        refuse_unwritable_folder(directory)
        open_experiment(directory, experiment, options.force)
        _write_changes(directory, options.path, promises)
    with working_on(directory):
        if options.resume is not None and options.rounds is not None:
            experiment = add_rounds(directory, experiment, options.rounds)
        interrupted = _run_until_decided(directory, experiment)
    return show_at_the_end(partial(_show_what_there_is, directory, interrupted), "try", directory, interrupted)


def _run_until_decided(directory: Path, experiment: Experiment) -> bool:
    """Run the trials. Run further rounds only if the results of the first rounds are not conclusive.

    Returns True if the user interrupted them.
    """
    from dataclasses import replace

    from ddpprof.experiments.trying import NOW, read_trying

    first = experiment.enough_rounds
    if first is not None:
        if run_trials(directory, replace(experiment, rounds=first)):
            return True
        so_far = read_trying(directory)
        if so_far.is_decided or NOW in so_far.failed:
            return False
        progress(f"{first} rounds are not enough to decide: running {experiment.rounds - first} more.")
        return run_trials(directory, experiment, without=so_far.failed)
    return run_trials(directory, experiment)


def _planned(options: argparse.Namespace) -> tuple[Experiment, list[Promise]]:
    """Return the experiment, and the expected effect of each variant after the first. Raises `DdpprofError`."""
    from ddpprof.experiments.trying import promise_of, variant_with

    report, path = _report(options.path), options.path
    experiment = _as_it_is(options, report)
    now = experiment.variants[0]
    about: Sequence[Finding]
    if options.script is not None:
        promises, variants = _other_script(experiment, now, options, report)
        about = report.findings if options.finding is None else [finding_of(report, path, options.finding[0])]
        if options.finding is not None and about[0].is_left_out_of_trials:
            raise DdpprofError(
                f"trials do not save files, so they cannot measure the gain of finding {options.finding[0]}. Record "
                "the job before and after the change, with ddpprof trace --repeat 6, and use ddpprof compare."
            )
    else:
        promises, variants, chosen = [], [], _chosen(report, options)
        about = [finding for _, finding in chosen]
        for number, finding in chosen:
            change = finding.change
            assert change is not None
            promises.append(promise_of(number, finding, change, report.job.world_size))
            variants.append(variant_with(now, change))
    from dataclasses import replace

    if options.timed_steps is None:
        experiment = _with_enough_steps(experiment, report, about)
    _say_plan(experiment, report, promises, path)
    return replace(experiment, variants=(now, *variants)), promises


def _report(path: Path) -> Report:
    from ddpprof.pipeline.analysis import analysed

    refuse_missing(path)
    with analysed(path) as analysis:
        return analysis.report


def _as_it_is(options: argparse.Namespace, report: Report) -> Experiment:
    """Return the experiment with the run's own command as its only variant. Raises `DdpprofError`."""
    from ddpprof.experiments.plan import EXPERIMENT_FORMAT, Experiment, ExperimentKind, Variant
    from ddpprof.redaction import HIDDEN

    words = list(report.job.recorded_with)
    if not words:
        raise DdpprofError(
            f"{options.path} does not contain the command of its job, so the job cannot be run again. Record it with: "
            "ddpprof trace train.py"
        )
    if any(HIDDEN in word for word in words):
        raise DdpprofError(
            f"the command of {options.path} contained secrets, which are not stored. Use ddpprof sweep to compare "
            "settings."
        )
    _refuse_others_run(options)
    job = parse_trace_words(words, "try")
    if not job.is_one_node or not report.job.one_command_starts_it:
        raise DdpprofError("the job was started on several nodes, but ddpprof try can start it only on this node.")
    torchrun = job.options.torchrun
    return Experiment(
        format=EXPERIMENT_FORMAT,
        kind=ExperimentKind.TRY,
        command=job.words,
        as_module=bool(job.options.module),
        is_wrapped=job.is_wrapped,
        variants=(Variant(1, label="unchanged", any_number=True),),
        rounds=2 * (options.rounds or _ROUNDS),
        enough_rounds=options.rounds or _ROUNDS,
        skip_first=options.skip_first,
        timed_steps=options.timed_steps or _TIMED_STEPS,
        torchrun=None if torchrun is None else tuple(torchrun),
    )


def _with_enough_steps(experiment: Experiment, report: Report, about: Sequence[Finding]) -> Experiment:
    """Return the experiment with more timed steps if steps are short, or if findings are about a few long steps.

    There are never more timed steps than training steps in the job.
    """
    from dataclasses import replace
    from math import ceil

    from ddpprof.experiments.conduct import steps_of
    from ddpprof.model.backends import is_accelerator

    if not report.step_ns or report.job.num_steps is None:
        return experiment
    wanted = min(_MOST_TIMED_STEPS, ceil(_TIMED_S * 1e9 / report.step_ns))
    apart = max((one.numbers["num_steps_apart"] for one in about if one.is_in_few_steps), default=0)
    wanted = max(wanted, ceil(_MOST_LONG_STEPS * apart))
    others = steps_of(experiment, experiment.variants[0], is_accelerator(report.job.device)) - experiment.timed_steps
    timed_steps = max(_TIMED_STEPS, min(wanted, report.job.num_steps - others))
    return replace(experiment, timed_steps=timed_steps, uses_means=apart > 0)


def _refuse_others_run(options: argparse.Namespace) -> None:
    from ddpprof.own_files import is_of_this_user
    from ddpprof.rundir import RUN_FILE

    if not options.trust and not is_of_this_user((options.path / RUN_FILE).stat()):
        raise DdpprofError(
            f"{options.path} was recorded by another user, and ddpprof try would run that user's command. Add "
            f"--trust if you trust this user."
        )


def _chosen(report: Report, options: argparse.Namespace) -> list[tuple[int, Finding]]:
    """Return the findings to try, with their numbers. Raises `DdpprofError`."""
    numbered = list(enumerate(report.findings, 1))
    if options.finding is not None:
        chosen = [(number, finding_of(report, options.path, number)) for number in sorted(set(options.finding))]
    elif options.rule is not None:
        chosen = [(number, one) for number, one in numbered if one.rule == options.rule]
        if not chosen:
            found = ", ".join(dict.fromkeys(one.rule for _, one in numbered))
            raise DdpprofError(
                f"{options.path} has no finding of the rule {options.rule}. Its findings are of these rules: "
                f"{found or 'none'}."
            )
    else:
        known = [(number, one) for number, one in numbered if one.change is not None and not one.is_noise]
        known = known or [(number, one) for number, one in numbered if one.is_worth_trying]
        lossless = [(number, one) for number, one in known if options.allow_lossy or not one.is_lossy]
        first = sorted(lossless, key=lambda one: one[1].expected_ns is None)[
            :1
        ]  # a finding with an expected gain, if there is one
        chosen = lossless if options.all else first
        if not chosen:
            raise DdpprofError(_nothing_to_try(options.path, numbered, bool(known)))
    for number, finding in chosen:
        _refuse_what_cannot_be_tried(options, number, finding)
    return chosen


def _nothing_to_try(path: Path, numbered: list[tuple[int, Finding]], is_lossy: bool) -> str:
    if is_lossy:
        return (
            f"{path} suggests only changes that alter the results of training. Try them with: ddpprof try {path} "
            "--allow-lossy"
        )
    beyond = [number for number, one in numbered if not one.is_noise]
    if not beyond:
        return f"{path} has no findings that exceed the noise, so there is nothing to try."
    return (
        f"{path} suggests no change that ddpprof can make automatically. Make a change in a copy of your script, and "
        f"compare: ddpprof try {path} --script changed.py"
    )


def _refuse_what_cannot_be_tried(options: argparse.Namespace, number: int, finding: Finding) -> None:
    if finding.change is None:
        raise DdpprofError(
            f"ddpprof cannot apply the change that finding {number} recommends: {finding.advice} Make the change in a "
            f"copy of your script, and compare: ddpprof try {options.path} --finding {number} --script changed.py"
        )
    if finding.change.is_lossy and not options.allow_lossy:
        raise DdpprofError(
            f"the change that finding {number} recommends alters the results of training, for example by rounding "
            "gradients. Add --allow-lossy to try it."
        )


def _other_script(
    experiment: Experiment, now: Variant, options: argparse.Namespace, report: Report
) -> tuple[list[Promise], list[Variant]]:
    from dataclasses import replace

    from ddpprof.experiments.trying import promise_of_script

    old, _, script = options.script.rpartition("=")
    words = experiment.command
    found = [at for at, word in enumerate(words) if word == old or (not old and word.endswith(".py"))]
    if not found or experiment.as_module:
        raise DdpprofError(f"the job's command has no script {old or 'that can be replaced'}.")
    if len(found) > 1:
        several = ", ".join(words[at] for at in found)
        raise DdpprofError(
            f"the job's command has several scripts ({several}). Name the script to replace: --script "
            f"{words[found[-1]]}={script}"
        )
    if not Path(script).is_file():
        raise DdpprofError(f"{script} does not exist.")
    changed = (*words[: found[0]], script, *words[found[0] + 1 :])
    number = options.finding[0] if options.finding is not None else None
    finding = None if number is None else finding_of(report, options.path, number)
    promise = promise_of_script(script, f"{script} instead of {words[found[0]]}", number, finding)
    return [promise], [replace(now, label=script, command=changed)]


def _say_plan(experiment: Experiment, report: Report, promises: list[Promise], path: Path) -> None:
    """Print the planned runs, and an estimate of the time that they will take."""
    import shlex

    from ddpprof.experiments.conduct import steps_of
    from ddpprof.layout import count as number_of
    from ddpprof.model.backends import is_accelerator

    starts = (experiment.enough_rounds or experiment.rounds) * (1 + len(promises))
    now = experiment.variants[0]
    steps = steps_of(experiment, now, is_accelerator(report.job.device))
    seconds = starts * (_START_S + steps * (report.step_ns or 0) / 1e9)
    long = f"{seconds:.0f} s" if seconds < 100 else in_minutes(seconds)
    progress(
        f"Trying {number_of(len(promises), 'change')} to the job recorded in {path}. This starts "
        f"`{shlex.join(experiment.command)}` {number_of(starts, 'time')} for {steps} steps each, and takes about "
        f"{long}. If the results are not conclusive, the number of runs is doubled."
    )


def _write_changes(directory: Path, run: Path, promises: list[Promise]) -> None:
    from ddpprof.experiments.trying import TryPlan, write_changes

    write_changes(directory, TryPlan(str(run.absolute()), tuple(promises)))


def _show_what_there_is(directory: Path, interrupted: bool) -> None:
    from ddpprof.experiments.trying import keep_in_run, read_trying
    from ddpprof.render.sections.experiments import experiment_sections

    report = read_trying(directory).report()
    print_result(report, experiment_sections(report))
    if interrupted:
        return
    more = max((one.more_rounds or 0 for one in report.tried), default=0)
    if more:
        progress(f"\nFor a verdict, run more rounds: ddpprof try --resume {directory} --rounds {report.rounds + more}")
    kept = keep_in_run(report)
    where = "" if kept is None else f" The report on {report.run} now includes this result."
    progress(f"\nWrote {directory}. View it again with: ddpprof report {directory}.{where}")
