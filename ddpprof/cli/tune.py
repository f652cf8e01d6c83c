"""`ddpprof tune`: profile a job, predict the effect of settings, measure the most promising settings, and report."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from ddpprof.cli.arguments import NPROC, positive
from ddpprof.cli.experiments import (
    add_place_options,
    in_minutes,
    print_result,
    resumed,
    show_at_the_end,
    steps_in_words,
    warn_of_other_work,
)
from ddpprof.cli.job import default_out, split_experiment
from ddpprof.cli.reading import measured_network
from ddpprof.cli.saying import progress, say
from ddpprof.errors import CannotRecord, DdpprofError, writing
from ddpprof.files import Location, location, read_small
from ddpprof.own_files import write_whole

if TYPE_CHECKING:
    from ddpprof.experiments.plan import Experiment, Trial, TrialEnd
    from ddpprof.experiments.tuning import KeptTuning
    from ddpprof.predict.candidates import Shortlist

_LEAST_TRIALS = 2
_QUICK = 3
"""maximum number of settings, and of rounds, with ``--quick``"""


def add_tune_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(*NPROC, type=positive, metavar="N", help="number of processes (default: as many as the script starts)")
    add(
        "--trials",
        type=_trials,
        default=5,
        metavar="N",
        help="number of settings, including the unchanged job (%(default)s)",
    )
    add("--rounds", type=positive, default=5, metavar="N", help="number of runs of each setting (%(default)s)")
    add("--quick", action="store_true", help="use 3 settings and 3 rounds, the minimum for a result")
    add(
        "--skip-first",
        type=positive,
        default=3,
        metavar="N",
        help="number of initial steps to ignore in each trial (%(default)s)",
    )
    add(
        "--timed-steps",
        type=positive,
        default=4,
        metavar="N",
        help="number of steps to time in each trial (%(default)s)",
    )
    add("--network", type=location, metavar="FILE", help="the job's network, as measured by ddpprof netbench -o FILE")
    add(
        "--allow-lossy",
        action="store_true",
        help="also try settings that reduce the precision of gradients in all-reduces, such as PyTorch's fp16 hook "
        "(bf16 for NCCL)",
    )
    add_place_options(parser, "tune", "tuning")
    parser.set_defaults(run_words=run_tune)


def _trials(text: str) -> int:
    if positive(text) < _LEAST_TRIALS:
        raise argparse.ArgumentTypeError("must be at least 2, including the unchanged job")
    return positive(text)


def run_tune(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    own, command, is_wrapped = split_experiment(arguments, parser)
    options = parser.parse_args(own)
    from ddpprof.experiments.conduct import job_of, open_experiment, working_on
    from ddpprof.experiments.plan import is_experiment

    if options.quick:
        options.trials, options.rounds = min(options.trials, _QUICK), min(options.rounds, _QUICK)
    if options.resume is not None:
        experiment, directory = resumed(parser, options, arguments, kind="tune"), options.resume
    elif not command:
        parser.error("nothing to run: give a script, or a command after --")
    else:
        experiment = _plan(options, command, is_wrapped)
        job_of(experiment, experiment.variants[0])  # reports a missing script before anything is created
        measured_network(options.network)  # reports an unreadable network file
        directory = options.out or Path(default_out(command, is_module=options.module, kind="tune"))
        was_begun = is_experiment(directory) and not options.force
        open_experiment(directory, experiment, options.force)
        if was_begun:
            _refuse_other_network(directory, options.network)
        else:
            _keep_network(directory, options.network)
    from ddpprof.experiments.tuning import has_choice

    with working_on(directory):
        if not has_choice(directory) and not _profile(directory, experiment):
            say(
                f"\nStopped before any setting was tried. Start again with: ddpprof tune --resume {directory}",
                flush=True,
            )
            return 130
        tuning, interrupted = _try_all(directory, experiment.command)
    return show_at_the_end(partial(_show_what_there_is, tuning, interrupted), "tune", directory, interrupted)


def _plan(options: argparse.Namespace, command: Sequence[str], is_wrapped: bool) -> Experiment:
    from ddpprof.experiments.plan import EXPERIMENT_FORMAT, Experiment, ExperimentKind, Variant

    return Experiment(
        format=EXPERIMENT_FORMAT,
        kind=ExperimentKind.TUNE,
        command=tuple(command),
        as_module=options.module,
        is_wrapped=is_wrapped,
        variants=(Variant(options.nproc or 1, any_number=options.nproc is None),),
        rounds=options.rounds,
        skip_first=options.skip_first,
        timed_steps=options.timed_steps,
        most_variants=options.trials,
        allow_lossy=options.allow_lossy,
    )


def _refuse_other_network(directory: Path, network: Location | None) -> None:
    """Raise `DdpprofError` if the tuning was started with a different network."""
    from ddpprof.experiments.plan import NETWORK_FILE

    kept = directory / NETWORK_FILE
    if (read_small(network) if network is not None else None) != (read_small(kept) if kept.is_file() else None):
        raise DdpprofError(
            f"{directory} was started with a different --network: use the same network, or start again with --force"
        )


def _keep_network(directory: Path, network: Location | None) -> None:
    """Copy the network file, so that an interrupted tuning can be continued. Raises `CannotRecord`."""
    from ddpprof.experiments.plan import NETWORK_FILE

    with writing(directory, CannotRecord):
        if network is not None:
            write_whole(directory / NETWORK_FILE, read_small(network))


def _profile(directory: Path, experiment: Experiment) -> bool:
    """Profile the job and choose the settings to try. Return False if the user interrupted it.

    Raises `DdpprofError`.
    """
    from ddpprof.experiments.conduct import profile_steps, run_profile, steps_of
    from ddpprof.experiments.plan import PROFILE_DIRECTORY, write_plan
    from ddpprof.experiments.tuning import TuningPlan, write_choice
    from ddpprof.load.record import load_record

    steps = (profile_steps(experiment), profile_steps(experiment, on_accelerator=True))
    progress(_plan_in_words(experiment, steps))
    progress(f"Profiling the job in {directory / PROFILE_DIRECTORY}")
    ended = run_profile(directory, experiment)
    if ended is None:
        return False
    if ended.problem is not None:
        raise DdpprofError(f"the unchanged job cannot be profiled: {ended.problem}")
    listed, unpredicted = _shortlist(directory, experiment)
    if not listed.chosen:
        raise DdpprofError("there is nothing to try: DDP builds the same buckets from these gradients with every cap.")
    record = load_record(directory / PROFILE_DIRECTORY, 0)
    on_accelerator = record is not None and record.device != "cpu"
    choice = TuningPlan(
        candidates=(listed.now, *listed.chosen),
        untried=listed.others,
        promises=listed.promises,
        unpredicted=unpredicted,
        profile_steps=steps[on_accelerator],
        trial_steps=steps_of(experiment, experiment.variants[0], on_accelerator),
    )
    now = experiment.variants[0]
    others = (replace(now, label=one.label, ddp=dict(one.arguments), comm_hook=one.comm_hook) for one in listed.chosen)
    write_plan(directory, replace(experiment, variants=(now, *others)))
    write_choice(directory, choice)
    return True


def _plan_in_words(experiment: Experiment, profile: tuple[int, int]) -> str:
    """Return a message about the planned number of runs and steps, to print before the first run."""
    from ddpprof.experiments.conduct import steps_of

    now, rounds, settings = experiment.variants[0], experiment.rounds, experiment.most_variants
    cpu, accelerator = (steps_of(experiment, now, kind) for kind in (False, True))
    each = steps_in_words(cpu, accelerator)
    steps = (profile[0] + rounds * settings * cpu, profile[1] + rounds * settings * accelerator)
    return (
        f"ddpprof tune starts the job up to {1 + rounds * settings} times: once for a profile of "
        f"{steps_in_words(*profile)}, then {settings} settings in {rounds} rounds of {each}. That is "
        f"{steps_in_words(*steps)} in total; after the profile, ddpprof prints how many more minutes it needs."
    )


def _shortlist(directory: Path, experiment: Experiment) -> tuple[Shortlist, str | None]:
    from ddpprof.experiments.plan import NETWORK_FILE, PROFILE_DIRECTORY
    from ddpprof.experiments.tuning import shortlisted
    from ddpprof.pipeline.analysis import analysed

    network = directory / NETWORK_FILE
    bench = measured_network(network if network.is_file() else None)
    with analysed(directory / PROFILE_DIRECTORY) as analysis:
        return shortlisted(analysis.to_replay(), bench, experiment.most_variants - 1, experiment.allow_lossy)


def _try_all(directory: Path, command: tuple[str, ...]) -> tuple[KeptTuning, bool]:
    """Run all trials. Return their results, and whether the user interrupted them.

    `command`: the command including secrets, which the plan does not store.
    """
    from ddpprof.experiments.conduct import conduct
    from ddpprof.experiments.plan import PROFILE_DIRECTORY, read_end
    from ddpprof.experiments.tuning import read_tuning
    from ddpprof.layout import count as number_of

    kept = read_tuning(directory)
    again = [result for result in kept.results if result.problem is None]  # failed trials are tried again
    tuning = replace(kept, experiment=replace(kept.experiment, command=command), results=again)
    experiment = tuning.experiment

    def in_turn() -> Iterator[Trial]:
        while (trial := tuning.next_trial()) is not None:
            yield trial

    left = experiment.num_trials - len(again)
    profile = read_end(directory / PROFILE_DIRECTORY)
    if left:
        warn_of_other_work()
        settings = number_of(len(experiment.variants), "setting")
        minutes = "" if profile is None else f", at most {in_minutes(profile.seconds * left)}"
        progress(
            f"Measuring {settings} (including the unchanged job) in {number_of(experiment.rounds, 'round')}: "
            f"{number_of(left, 'run')} of the job{minutes}. Press Ctrl-C to stop; measurements so far are kept."
        )
    out = tuning.stopped()
    try:
        for trial, ended in conduct(directory, experiment, in_turn()):
            if ended is None:
                return tuning, True
            tuning = tuning.with_ended(trial)
            _say(tuning, trial, ended)
            stopped = tuning.stopped()
            for variant in sorted(stopped - out):
                _say_stopped(tuning, trial, variant)
            out = stopped
    except KeyboardInterrupt:
        return tuning, True
    return tuning, False


def _say(tuning: KeptTuning, trial: Trial, ended: TrialEnd) -> None:
    said = ended.problem
    if said is None:
        steps_ns = [ns for block in tuning.result(trial).blocks_ns for ns in block]
        said = f"{median(steps_ns) / 1e6:.2f} ms per step" if steps_ns else "no step was timed"
    progress(f"[round {trial.round + 1}/{tuning.experiment.rounds}] {_name(tuning, trial.variant)}: {said}")


def _say_stopped(tuning: KeptTuning, trial: Trial, variant: int) -> None:
    if trial.round + 1 < tuning.experiment.rounds:
        why = "it changes the losses" if variant in tuning.refused() else "it was clearly slower in every run"
        progress(f"{_name(tuning, variant)} is not run again: {why}.")


def _name(tuning: KeptTuning, variant: int) -> str:
    return tuning.choice.candidates[variant].label or "unchanged"


def _show_what_there_is(tuning: KeptTuning, interrupted: bool) -> None:
    from ddpprof.render.sections.experiments import experiment_sections

    report = tuning.report()
    print_result(report, experiment_sections(report))
    if not interrupted:
        progress(f"\nWrote {tuning.directory}. View it again with: ddpprof report {tuning.directory}")
