"""The plan of an experiment, which is stored as ``experiment.json`` in the experiment's directory.

    experiment.json        the plan; `ddpprof tune` adds the settings that it chooses, `ddpprof try` may add rounds
    trial-0-2/             run directory of variant 0 in round 2
    trial-0-2/output.txt   output of the job
    trial-0-2/trial.json   how the trial ended
    profile/               `ddpprof tune`: recording of the unchanged job
    choice.json            `ddpprof tune`: predictions for each variant, based on the profile
    .lock                  lock of the process that is running trials
    network.json           `ddpprof tune`: copy of the file given with --network
    changes.json           `ddpprof try`: the change of each variant, and the gain that its finding predicts

Each round runs every variant once, so that a slow period of the machine affects all variants. Rounds alternate between
forward and reverse order (A B C, C B A), so that a steady change of the machine's speed does not favor a variant. With
an odd number of rounds, part of the effect of this change remains.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ddpprof import rundir
from ddpprof.errors import CannotRecord, NotARun, refuse_newer, writing
from ddpprof.files import Location, RemotePath, read_small
from ddpprof.own_files import is_seal_of, seal_of, user_key
from ddpprof.redaction import HIDDEN, is_secret, words_without_secrets

_T = TypeVar("_T")

EXPERIMENT_FORMAT = 1
EXPERIMENT_FILE = "experiment.json"
TRIAL_FILE = "trial.json"
OUTPUT_FILE = "output.txt"
PROFILE_DIRECTORY = "profile"
CHOICE_FILE = "choice.json"
NETWORK_FILE = "network.json"
CHANGES_FILE = "changes.json"
LOCK_FILE = ".lock"


class ExperimentKind(StrEnum):
    OVERHEAD = "overhead"
    SCALE = "scale"
    SWEEP = "sweep"
    TUNE = "tune"
    TRY = "try"


@dataclass(frozen=True, slots=True)
class Variant:
    """One variant of the job."""

    nproc: int
    label: str = ""
    """how the variant differs from the unchanged job, such as ``--batch-size=64``; does not contain the number of
    processes or secrets
    """
    size: float | None = None
    """value of the first varied setting, if it is a number above 0"""
    is_share: bool = False
    """True if `size` is the share of one process; the total is then `size` times the number of processes"""
    is_work: bool = False
    """True if `size` is an amount of work, such as a batch size, and work per second is therefore meaningful"""
    varied: str = ""
    """name of the first varied setting"""
    configuration: str = ""
    """label without the first varied setting"""
    words: tuple[str, ...] = ()
    """arguments to append to the script's own arguments"""
    places: Mapping[str, str] = field(default_factory=dict)
    """name → text that replaces ``{name}`` in the command"""
    variables: Mapping[str, str] = field(default_factory=dict)
    """environment variables to set for the job"""
    ddp: Mapping[str, Any] = field(default_factory=dict)
    """arguments of DDP's constructor that replace the script's arguments"""
    without_ddp: bool = False
    profiled_steps: int = 0
    """number of steps to profile"""
    ddp_blocks: int = 0
    """number of pairs of blocks: one block with DDP, and one without DDP. Each block has
    `Experiment.timed_steps` steps
    """
    any_number: bool = False
    """True if the user gave no number of processes; the job may then start any number of processes"""
    comm_hook: str | None = None
    """name of a comm hook in PyTorch's ``default_hooks``"""
    loader: Mapping[str, Any] = field(default_factory=dict)
    """arguments of every DataLoader's constructor that replace the script's arguments"""
    passes_per_reduction: int = 0
    """if not 0, number of backward passes per step, of which only the last reduces gradients"""
    optimize_ddp: str | None = None
    """value of ``torch._dynamo.config.optimize_ddp``"""
    compile_order: str | None = None
    """order in which DDP and torch.compile wrap the model: ``"ddp_first"`` or ``"model_first"``"""
    switches: Mapping[str, bool] = field(default_factory=dict)
    """``sync_batch_norm: False``, ``sparse_embeddings: True``, ``detect_anomaly: False`` or ``comm_hook: False``"""
    command: tuple[str, ...] = ()
    """command that this variant runs instead of the experiment's command"""

    def compiled(self, name: str, value: str) -> Variant:
        """Return the variant with a different ``optimize_ddp`` or ``compile_order``."""
        changed: dict[str, Any] = {name: value}
        return replace(self, **changed)

    @property
    def total_size(self) -> float | None:
        """Size of the work per step, summed over all processes."""
        return self.size * self.nproc if self.size is not None and self.is_share else self.size

    @property
    def processes(self) -> str:
        """Number of processes as text."""
        return "1 process" if self.nproc == 1 else f"{self.nproc} processes"

    @property
    def title(self) -> str:
        words = (self.label, "without DDP" if self.without_ddp else "", "" if self.any_number else self.processes)
        return ", ".join(filter(None, words)) or "with DDP"


@dataclass(frozen=True, slots=True)
class Experiment:
    format: int
    kind: ExperimentKind
    command: tuple[str, ...]
    """script and its arguments; if `is_wrapped`, any command"""
    as_module: bool
    is_wrapped: bool
    variants: tuple[Variant, ...]
    rounds: int
    """number of rounds to run; if `enough_rounds` is set, the maximum number"""
    skip_first: int
    timed_steps: int
    """number of timed steps in each trial or, if the trial has blocks, in each block"""
    enough_rounds: int | None = None
    """for `ddpprof try`: the experiment stops after this number of rounds if every change then has a verdict"""
    num_looks: int = 2
    """for `ddpprof try`: how often verdicts are computed (after `enough_rounds`, after all rounds, and whenever rounds
    are added). The error probability of 5 % is divided equally among the computations
    """
    most_variants: int = 0
    """for `ddpprof tune`: the maximum number of variants to choose"""
    allow_lossy: bool = False
    """for `ddpprof tune`: whether to try comm hooks that round gradients"""
    uses_means: bool = False
    """for `ddpprof try`: whether trials are compared by their mean step instead of their median step, so that long
    steps count
    """
    torchrun: tuple[str, ...] | None = None
    """options for torchrun; ``None`` if torchrun needs only the number of processes in `Variant.nproc`"""
    is_whole: bool = True
    """False if the command contains secrets; secrets are not stored, so the user must give the command again"""

    @property
    def num_trials(self) -> int:
        return self.rounds * len(self.variants)

    def trials(self) -> Iterator[Trial]:
        """Yield the trials in the order in which they will be run."""
        for number in range(self.rounds):
            forwards = range(len(self.variants))
            for variant in reversed(forwards) if number % 2 else forwards:
                yield Trial(variant, number)


@dataclass(frozen=True, slots=True)
class Trial:
    variant: int
    round: int

    @property
    def name(self) -> str:
        """Name of the trial's directory inside the experiment's directory."""
        return f"trial-{self.variant}-{self.round}"


@dataclass(frozen=True, slots=True)
class TrialEnd:
    exit_code: int
    seconds: float
    problem: str | None
    """why the trial has no step times; ``None`` if it has step times"""


def is_experiment(directory: Location) -> bool:
    if isinstance(directory, RemotePath):
        return directory.holds(EXPERIMENT_FILE)
    return os.path.isfile(directory / EXPERIMENT_FILE)  # noqa: PTH113 (Path.is_file raises for a name that is too long)


def as_kept(experiment: Experiment) -> Experiment:
    """Return the experiment without secrets in its command and variants."""
    kept = replace(
        experiment,
        command=tuple(words_without_secrets(experiment.command)),
        variants=tuple(map(_variant_as_kept, experiment.variants)),
    )
    return kept if kept == experiment else replace(kept, is_whole=False)


def _variant_as_kept(variant: Variant) -> Variant:
    return replace(
        variant,
        words=tuple(words_without_secrets(variant.words)),
        places=_values_as_kept(variant.places),
        command=tuple(words_without_secrets(variant.command)),
        variables=_values_as_kept(variant.variables),
    )


def _values_as_kept(values: Mapping[str, str]) -> dict[str, str]:
    return {name: HIDDEN if is_secret(name, value) else value for name, value in values.items()}


def write_plan(directory: Path, experiment: Experiment) -> None:
    """Write the plan with this user's seal and without secrets. Raises ``OSError``."""
    experiment = as_kept(experiment)
    key = user_key()
    seal = None if key is None else seal_of(_sealed(experiment), key)
    rundir.write_json(directory / EXPERIMENT_FILE, {**msgspec.to_builtins(experiment), "seal": seal})


def is_of_this_user(directory: Path, experiment: Experiment) -> bool:
    """Return True if this user wrote the plan. Other plans are not run, because they could contain any command."""
    key, found = user_key(), rundir.read_json(directory / EXPERIMENT_FILE, _Seal)
    if key is None or found is None or found.seal is None:
        return False
    return is_seal_of(found.seal, _sealed(experiment), key)


class _Seal(msgspec.Struct):
    seal: str | None = None


def _sealed(experiment: Experiment) -> bytes:
    return msgspec.json.encode(experiment, order="deterministic")


def read_beside_plan(path: Location, content: type[_T], if_absent: str | None = None) -> _T:
    """Read a file of the experiment. Raises `NotARun`. `if_absent`: message if the file does not exist."""
    try:
        return msgspec.json.decode(read_small(path), type=content)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        is_absent = isinstance(error, FileNotFoundError) and if_absent is not None
        raise NotARun(if_absent if is_absent else f"{path} cannot be read ({error}).") from error


def write_beside_plan(path: Path, content: object) -> None:
    """Write a file of the experiment. Raises `CannotRecord`."""
    with writing(path.parent, CannotRecord):
        rundir.write_json(path, msgspec.to_builtins(content))


def read_plan(directory: Location) -> Experiment:
    """Read the plan. Raises `NotARun`."""
    path = directory / EXPERIMENT_FILE
    try:
        text = read_small(path)
        refuse_newer(directory, msgspec.json.decode(text, type=dict[str, Any]).get("format"), EXPERIMENT_FORMAT)
        experiment = msgspec.json.decode(text, type=Experiment)
        if (wrong := _what_is_wrong(experiment)) is not None:
            raise NotARun(f"{path} was not written by ddpprof ({wrong}).")
        return experiment
    except FileNotFoundError as error:
        raise NotARun(f"{directory} is not an experiment: it has no {EXPERIMENT_FILE}.") from error
    except OSError as error:
        raise NotARun(f"{path} cannot be read: {error.strerror}.") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotARun(f"{path} was not written by ddpprof ({error}).") from error


def _what_is_wrong(experiment: Experiment) -> str | None:
    if not experiment.variants:
        return "it has no variants"
    if not 0 <= experiment.rounds * len(experiment.variants) <= _MOST_TRIALS:
        return f"it has {experiment.rounds} rounds of {len(experiment.variants)} variants"
    steps = (experiment.skip_first, experiment.timed_steps)
    numbers = [number for one in experiment.variants for number in (one.nproc, one.profiled_steps, one.ddp_blocks)]
    is_in_range = all(0 <= number <= _LARGEST_NUMBER for number in (*steps, *numbers))
    if not is_in_range or not all(one.nproc for one in experiment.variants):
        return "it contains a number of steps or processes that is out of range"
    return None


_MOST_TRIALS = 100_000
_LARGEST_NUMBER = 10**9


def write_end(folder: Path, ended: TrialEnd) -> None:
    """Write how the trial ended. Raises ``OSError``."""
    rundir.write_json(folder / TRIAL_FILE, msgspec.to_builtins(ended))


def read_end(folder: Location) -> TrialEnd | None:
    """Return how the trial ended; ``None`` if it was not completed."""
    return rundir.read_json(folder / TRIAL_FILE, TrialEnd)
