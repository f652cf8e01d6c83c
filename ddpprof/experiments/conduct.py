"""Run the trials of an experiment one after another, except trials that have already succeeded.

`last_error` returns the line of a failed trial's output that contains the reason for the failure.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ddpprof import own_files, rundir
from ddpprof.errors import CannotRecord, RunExists, writing
from ddpprof.experiments.plan import (
    CHANGES_FILE,
    CHOICE_FILE,
    LOCK_FILE,
    NETWORK_FILE,
    OUTPUT_FILE,
    PROFILE_DIRECTORY,
    Experiment,
    ExperimentKind,
    Trial,
    TrialEnd,
    Variant,
    as_kept,
    is_experiment,
    is_of_this_user,
    read_end,
    read_plan,
    write_end,
    write_plan,
)
from ddpprof.load.record import load_record
from ddpprof.model.ddp_module import Compilation, CompileOrder
from ddpprof.record import launch
from ddpprof.record.settings import Settings
from ddpprof.record.steps import Schedule
from ddpprof.record.torchrun import launcher_variables
from ddpprof.redaction import without_secrets
from ddpprof.rundir import read_world_size
from ddpprof.topics.failure import is_of_a_lost_peer

_COST_STEPS = 6
"""number of steps of a profile run that the profiler does not record; in every second of these steps, ddpprof records
when gradients and buckets are ready
"""
_PROFILED_STEPS = 2
_ALONE_STEPS = 4


def open_experiment(directory: Path, experiment: Experiment, force: bool) -> None:
    """Create `directory`, or continue its experiment if the plan is the same. Raises `RunExists` and `CannotRecord`.

    With `force`, replace an experiment that has a different plan. Folders that are not trials of an experiment are
    kept.
    """
    with writing(directory, CannotRecord):
        if is_experiment(directory):
            if not force:
                begun = read_plan(directory)
                if not is_of_this_user(directory, begun):
                    raise RunExists(
                        f"{directory} was started by another user or on another machine. Choose another --out, or "
                        "use --force to replace the experiment."
                    )
                if _as_asked(begun) != as_kept(experiment):
                    raise RunExists(
                        f"{directory} contains another experiment. Choose another --out, or use --force to replace "
                        "the experiment."
                    )
                return
            _remove(directory)
        elif rundir.is_run(directory):
            raise RunExists(f"{directory} contains a run. Choose another --out.")
        own_files.make_named_folder(directory)
        for folder in _places(directory, experiment):
            if folder.exists():
                raise RunExists(
                    f"{folder} already exists, but the experiment needs this folder for a trial. Choose another --out."
                )
        write_plan(directory, experiment)


def add_rounds(directory: Path, experiment: Experiment, rounds: int) -> Experiment:
    """Extend the experiment to at least `rounds` rounds, write its plan, and return it. Raises `CannotRecord`."""
    if rounds <= experiment.rounds:
        return experiment
    longer = replace(experiment, rounds=rounds, enough_rounds=None, num_looks=experiment.num_looks + 1)
    with writing(directory, CannotRecord):
        write_plan(directory, longer)
    return longer


@contextmanager
def working_on(directory: Path) -> Iterator[None]:
    """Lock the experiment for this process. Raises `CannotRecord` if another process runs its trials."""
    try:
        with own_files.locked(directory / LOCK_FILE):
            yield
    except own_files.LockedError as error:
        raise CannotRecord(
            f"process {error.holder} is using {directory}. Wait until this process has ended."
        ) from error


def _as_asked(experiment: Experiment) -> Experiment:
    """Return the experiment as the user requested it, without the variants that tuning has added to the plan."""
    return (
        replace(experiment, variants=experiment.variants[:1]) if experiment.kind is ExperimentKind.TUNE else experiment
    )


def _places(directory: Path, experiment: Experiment) -> Iterator[Path]:
    """Yield the paths that the experiment may write.

    The plan of a tuning experiment does not name all trials, so existing trial folders are included.
    """
    yield from (directory / trial.name for trial in experiment.trials())
    if experiment.kind is ExperimentKind.TUNE:
        yield from (directory / name for name in (PROFILE_DIRECTORY, CHOICE_FILE, NETWORK_FILE))
        yield from sorted(directory.glob("trial-*"))
    if experiment.kind is ExperimentKind.TRY:
        yield directory / CHANGES_FILE


def _remove(directory: Path) -> None:
    """Remove the trials and files of an earlier experiment, but no other files in the directory."""
    experiment = read_plan(directory)
    for trial in experiment.trials():
        own_files.remove_folder(directory / trial.name)
    if experiment.kind is ExperimentKind.TUNE:
        own_files.remove_folder(directory / PROFILE_DIRECTORY)
        for name in (CHOICE_FILE, NETWORK_FILE):
            own_files.remove_file(directory / name)
    if experiment.kind is ExperimentKind.TRY:
        own_files.remove_file(directory / CHANGES_FILE)


def remaining(directory: Path, experiment: Experiment) -> list[Trial]:
    """Return the trials that have not succeeded, in the order in which they will be run."""
    return [trial for trial in experiment.trials() if _successful_end(directory / trial.name) is None]


def _successful_end(folder: Path) -> TrialEnd | None:
    ended = read_end(folder)
    return ended if ended is not None and ended.problem is None else None


def conduct(
    directory: Path, experiment: Experiment, trials: Iterable[Trial]
) -> Iterator[tuple[Trial, TrialEnd | None]]:
    """Run `trials`, and yield each trial and how it ended.

    If the user interrupts a trial, yield the trial and ``None``, and return. Later rounds skip variants that have
    failed. A trial is ended if it takes `_MUCH_LONGER` times as long as the longest successful trial before it. Raises
    `CannotRecord`.
    """
    failed: set[int] = set()
    seconds = [one.seconds for trial in experiment.trials() if (one := _successful_end(directory / trial.name))]
    for trial in trials:
        if not still_needed(experiment, [trial], failed):
            continue
        folder, variant = directory / trial.name, experiment.variants[trial.variant]
        limit_s = max(_LEAST_LIMIT_S, _MUCH_LONGER * max(seconds)) if seconds else None
        with writing(folder, CannotRecord):
            folder = folder.absolute()
            ended = _run(folder, experiment, variant, trial_settings(folder, experiment, variant), limit_s)
        yield trial, ended
        if ended is None:
            return
        if ended.problem is not None:
            failed.add(trial.variant)
        else:
            seconds.append(ended.seconds)


_MUCH_LONGER = 10
_LEAST_LIMIT_S = 300.0
"""shortest time limit of a trial, in seconds"""


def still_needed(experiment: Experiment, trials: Iterable[Trial], failed: Collection[int]) -> list[Trial]:
    """Return the trials that are still useful after the variants in `failed` have failed.

    `ddpprof try` needs the unchanged job, and at least one change to compare it with.
    """
    left = set(range(len(experiment.variants))).difference(failed)
    if experiment.kind is ExperimentKind.TRY and (0 not in left or left == {0}):
        return []
    return [trial for trial in trials if trial.variant in left]


def run_profile(directory: Path, experiment: Experiment) -> TrialEnd | None:
    """Run the first variant once, recording it as `ddpprof trace` does; ``None`` if interrupted.

    Raises `CannotRecord`.
    """
    folder = (directory / PROFILE_DIRECTORY).absolute()
    with writing(folder, CannotRecord):
        return _run(folder, experiment, experiment.variants[0], profile_settings(folder, experiment), limit_s=None)


def profile_settings(folder: Path, experiment: Experiment) -> Settings:
    settings = trial_settings(folder, experiment, experiment.variants[0])
    return replace(
        settings, timed_steps=0, cost_steps=_COST_STEPS, steps=_PROFILED_STEPS, alone_steps=_ALONE_STEPS, profiler=True
    )


def profile_steps(experiment: Experiment, on_accelerator: bool = False) -> int:
    """Return the number of steps in a profile run."""
    return Schedule(profile_settings(Path(), experiment), on_accelerator).num_steps


def _run(
    folder: Path, experiment: Experiment, variant: Variant, settings: Settings, limit_s: float | None
) -> TrialEnd | None:
    launch.end_jobs_into(folder)
    own_files.remove_folder(folder)
    own_files.make_folder(folder)
    command, variables = job_of(experiment, variant)
    began = time.monotonic()
    with os.fdopen(own_files.create(folder / OUTPUT_FILE), "wb") as output:
        outcome = launch.run_job(
            command,
            settings,
            explain_rank=False,
            variables={**variables, **variant.variables},
            output=output,
            limit_s=limit_s,
        )
    if outcome.interrupted:
        return None
    _refuse_another_number(folder, experiment, variant)
    seconds = time.monotonic() - began
    problem = _problem(folder, experiment, variant, outcome.exit_code)
    if outcome.is_timed_out:
        problem = (
            f"it was ended after {seconds:.0f} s, because it took more than {_MUCH_LONGER} times as long as "
            "the other trials"
        )
    ended = TrialEnd(outcome.exit_code, seconds, problem)
    write_end(folder, ended)
    return ended


def trial_settings(folder: Path, experiment: Experiment, variant: Variant) -> Settings:
    """Return the recording settings of a trial."""
    return Settings(
        out=str(folder),
        command=experiment.command,
        skip_first=experiment.skip_first,
        cost_steps=0,
        timed_steps=0 if variant.ddp_blocks else experiment.timed_steps,
        ddp_blocks=variant.ddp_blocks,
        block_steps=experiment.timed_steps if variant.ddp_blocks else 0,
        steps=variant.profiled_steps,
        profiler=variant.profiled_steps > 0,
        stop_after=True,
        trial=True,
        ddp=variant.ddp,
        comm_hook=variant.comm_hook,
        loader=variant.loader,
        passes_per_reduction=variant.passes_per_reduction,
        optimize_ddp=variant.optimize_ddp,
        compile_order=variant.compile_order,
        switches=variant.switches,
        num_threads=_num_threads(variant),
        losses=experiment.kind in (ExperimentKind.TUNE, ExperimentKind.TRY),
        without_ddp=variant.without_ddp,
    )


def _num_threads(variant: Variant) -> int:
    number = variant.variables.get("OMP_NUM_THREADS", "")
    return int(number) if number.isdecimal() else 0


def steps_of(experiment: Experiment, variant: Variant, on_accelerator: bool = False) -> int:
    """Return the number of training steps that a complete trial needs."""
    return Schedule(trial_settings(Path(), experiment, variant), on_accelerator).num_steps


def job_of(experiment: Experiment, variant: Variant) -> tuple[list[str], dict[str, str]]:
    """Return the command of a trial, and the environment variables that replace a launcher. Raises `CannotRecord`.

    A single process is started without a launcher, so the script may start its own ranks. If a command contains
    ``{nproc}``, which stands for the number of processes, the command starts these processes itself.
    """
    places = {**variant.places, "nproc": str(variant.nproc)}
    words = [_filled(word, places) for word in (*(variant.command or experiment.command), *variant.words)]
    if experiment.is_wrapped:
        return words, {}
    if any("{nproc}" in word for word in experiment.command):
        return launch.script_command(words, experiment.as_module, None), {}
    if experiment.torchrun is not None:
        return launch.script_command(words, experiment.as_module, experiment.torchrun), {}
    if variant.nproc == 1:
        return launch.script_command(words, experiment.as_module, None), launcher_variables()
    torchrun = ["--standalone", f"--nproc-per-node={variant.nproc}"]
    return launch.script_command(words, experiment.as_module, torchrun), {}


def _filled(word: str, places: dict[str, str]) -> str:
    for name, value in places.items():
        word = word.replace("{" + name + "}", value)
    return word


def _refuse_another_number(folder: Path, experiment: Experiment, variant: Variant) -> None:
    """Raise `CannotRecord` if the script did not start the requested number of ranks."""
    started = read_world_size(folder)
    if started is not None and started != variant.nproc and not variant.any_number:
        raise CannotRecord(
            f"{experiment.command[0]} starts {started} ranks itself, but {variant.nproc} were requested. Pass the "
            f"number as {{nproc}}: ddpprof {experiment.kind} … {experiment.command[0]} --its-option {{nproc}}"
        )


def _problem(folder: Path, experiment: Experiment, variant: Variant, exit_code: int) -> str | None:
    if exit_code:
        output = (folder / OUTPUT_FILE).read_text(encoding="utf-8", errors="replace")
        return f"exit code {exit_code}: {without_secrets(last_error(output))}"
    if not rundir.is_run(folder) or not rundir.ranks_in(folder):
        settings = trial_settings(folder, experiment, experiment.variants[0])
        cpu, accelerator = (Schedule(settings, kind).num_skipped + 1 for kind in (False, True))
        return (
            f"nothing was recorded: no DistributedDataParallel module was created, or training took fewer than {cpu} "
            f"steps ({accelerator} on an accelerator). If the script uses DDP, run more steps, or skip fewer steps "
            "(--skip-first)"
        )
    if not any('"off"' in (folder / rundir.steps_file(rank)).read_text() for rank in rundir.ranks_in(folder)):
        return "training ended before any step was timed: run more steps, or skip fewer steps (--skip-first)"
    record = load_record(folder, rundir.ranks_in(folder)[0])
    return compiled_otherwise(None if record is None else record.compilation, variant)


def compiled_otherwise(found: Compilation | None, variant: Variant) -> str | None:
    """Return the reason why the DDP module was not compiled as the variant requires, or ``None`` if it was."""
    if variant.optimize_ddp is None and variant.compile_order is None:
        return None
    if found is None:
        return "the script does not compile its DDP module with torch.compile, so there is nothing to vary"
    if variant.compile_order not in (None, found.order):
        return f"compile_order={variant.compile_order} has no effect: the script compiles {_COMPILED.get(found.order)}"
    if variant.optimize_ddp not in (None, found.optimize_ddp):
        return (
            f"the script sets torch._dynamo.config.optimize_ddp to {found.optimize_ddp!r} after it has constructed "
            "DDP. This overrides the value set by the trial"
        )
    return None


_COMPILED: Mapping[str, str] = {
    CompileOrder.DDP_FIRST: "a function that calls DDP",
    CompileOrder.MODEL_FIRST: "its model after it has constructed DDP",
    CompileOrder.SUBMODULES: "only submodules of its model",
}


_OF_A_RANK = re.compile(r"^\[(?:rank|default)\d+\]:\s?")
"""pattern for the prefix that PyTorch or torchrun adds to the output lines of a rank"""
_OF_TORCHRUN = re.compile(r"[WEIF]\d{4} [\d:.]+ .*torch/distributed/|=+$|\*+$|-+$|Setting OMP_NUM_THREADS environment")
"""pattern for lines of torchrun: its log, separator lines, and messages about threads"""
_ENDED = re.compile(r" failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
"""pattern for the line in torchrun's log about the rank that failed first"""
_ITS_TRACEBACK = re.compile(
    r"^Traceback \(most recent call last\):\n(?:[ \t][^\n]*\n)+"
    r"torch\.distributed\.elastic\.multiprocessing\.errors\.ChildFailedError:.*",
    re.MULTILINE | re.DOTALL,
)
"""pattern for torchrun's own traceback and its table of failed ranks, which do not contain the reason for the
failure
"""
_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Iteration|Warning)\b(?::|$)|[\w.-]+: error: ")
"""pattern for the last line of a traceback, or for an error message of `argparse`"""


def last_error(output: str) -> str:
    """Return the line of the output that contains the reason for the failure: the last error of the script itself.

    Two kinds of errors are ignored: torchrun's traceback about its ranks at the end of the output, and errors of ranks
    that lost their connection to another rank. If the job printed nothing and torchrun reports how the first failed
    rank ended, return torchrun's report.
    """
    lines = [_OF_A_RANK.sub("", line).strip() for line in _ITS_TRACEBACK.sub("", output).splitlines()]
    said = [line for line in lines if line and not _OF_TORCHRUN.match(line)]
    raised = [line for line in said if _RAISED.match(line)]
    causes = [line for line in raised if not is_of_a_lost_peer(line)]
    error = [line for line in said if "Error" in line and not line.startswith(("raise ", "File "))]
    return (causes or raised or error or said or [_how_it_ended(output)])[-1]


def _how_it_ended(output: str) -> str:
    ended = _ENDED.search(output)
    if ended is None:
        return "it printed nothing"
    code, rank = int(ended[1]), ended[2]
    how = f"ended with exit code {code}" if code >= 0 else f"was terminated by signal {-code}"
    return f"rank {rank} {how}, and printed nothing"
