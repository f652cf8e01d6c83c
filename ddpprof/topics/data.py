"""Detect training that waits for its DataLoader, ranks that train on the same samples or random numbers, and padding.

Each rank records digests of some samples in the batches from its DataLoader. Two cases are reported:

    same batches   all ranks have the same batch at every position that all of them recorded
    same samples   within one pass over the loader, a rank has samples that another rank also has

Different digests do not prove that samples differ, because random augmentation changes a sample each time. Shared
samples may be intended if all batches of a rank are the same, or if a rank gets a sample twice in one pass. In these
cases, nothing is reported.

Each rank also records a digest of the state of each random generator at the beginning of its recorded steps. Ranks draw
the same numbers if their digests are equal in every step. A generator was used in every step if all its digests differ.

The ``attention_mask`` of a batch shows how far its sequences are padded beyond the longest of them:

    removable = (padded length - longest sequence) / padded length, minimum over the ranks, median over the batches

Computation takes time at least in proportion to the padded length, so the gain is this share of both passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

import numpy as np

from ddpprof.engine.finding import Change, Finding, loader_change, only_known
from ddpprof.engine.frameworks import divide_data, pad_to_longest, reshuffle, seed_ranks
from ddpprof.engine.topic import Topic, View
from ddpprof.intervals import union_of
from ddpprof.layout import in_ms
from ddpprof.model import Batch, DdpModule, Loader, Phase, Rank, RecordedStep, Trace
from ddpprof.topics.script_code import slowest_line_of_data

_FEWEST_BATCHES = 3
_FEWEST_SAMPLES = 8
"""a rank is compared only if at least this many different samples are known for it"""
_FEWEST_SHARED = 16
_SHARED = 0.25
"""data counts as not sharded if other ranks also read at least this share of a rank's samples"""

_MOST_OF_A_SHARD = 0.75
"""a dataset counts as sharded if a rank reads less than this share of it"""


@dataclass(frozen=True, slots=True)
class SameSamples:
    loader: Loader
    """the loader, as recorded on the first rank"""
    ranks: tuple[int, ...]
    num_batches: int
    """number of batches that are the same on all ranks; 0 if the ranks share samples but no whole batches"""
    num_samples: int
    """number of samples in one pass that a rank shares with other ranks; maximum over all ranks"""
    num_compared: int
    """number of samples of the same rank in the same pass that were compared"""

    @property
    def same_batches(self) -> bool:
        return self.num_batches > 0

    @property
    def is_sharded(self) -> bool:
        """Whether a DistributedSampler shards the dataset.

        If so, ranks can get the same samples only if they draw the same random numbers.
        """
        one = self.loader
        num_samples = (one.batches_per_pass or 0) * (one.batch_size or 0)
        return one.sampler == "DistributedSampler" and 0 < num_samples < _MOST_OF_A_SHARD * (one.dataset_size or 0)


def find_same_samples(loaders: Mapping[int, Sequence[Loader]]) -> SameSamples | None:
    """Return the samples that the ranks are known to share; ``None`` if there are none.

    `loaders`: the loaders of each rank. If a rank has several training loaders, the data of all of them must be shared.
    """
    feeding = {rank: [one for one in of_rank if one.feeds_training] for rank, of_rank in loaders.items()}
    counts = {len(of_rank) for of_rank in feeding.values()}
    if len(feeding) < 2 or len(counts) > 1 or counts == {0}:
        return None
    found = [_shared(dict(zip(feeding, position, strict=True))) for position in zip(*feeding.values(), strict=True)]
    known = [one for one in found if one is not None]
    return min(known, key=lambda one: one.num_batches) if len(known) == len(found) else None


def _shared(loaders: Mapping[int, Loader]) -> SameSamples | None:
    if any(2 * (one.num_passed_on or 0) < len(one.batches) for one in loaders.values()):
        return None  # each rank may pass a different part of the batch to the model
    if len({one.num_iterations for one in loaders.values()}) > 1:
        return None  # the ranks may be in different epochs
    first, ranks = next(iter(loaders.values())), tuple(sorted(loaders))
    by_place = [{(batch.iteration, batch.place): batch.samples for batch in one.batches} for one in loaders.values()]
    places = set.intersection(*map(set, by_place))
    if places and all(len({batches[place] for batches in by_place}) == 1 for place in places):
        contents = {by_place[0][place] for place in places}
        samples = {sample for content in contents for sample in content}
        if len(contents) < _FEWEST_BATCHES or len(samples) < _FEWEST_SAMPLES:
            return None
        return SameSamples(first, ranks, len(places), len(samples), len(samples))
    return _shared_in_a_pass(first, ranks, {rank: one.batches for rank, one in loaders.items()})


def _shared_in_a_pass(
    first: Loader, ranks: tuple[int, ...], batches: Mapping[int, Sequence[Batch]]
) -> SameSamples | None:
    most: SameSamples | None = None
    for iteration in sorted({batch.iteration for of_rank in batches.values() for batch in of_rank}):
        samples = {
            rank: [sample for batch in of_rank if batch.iteration == iteration for sample in batch.samples]
            for rank, of_rank in batches.items()
        }
        if any(len(set(of_rank)) < len(of_rank) for of_rank in samples.values()):
            continue  # sampling with replacement: ranks may also share samples
        for rank, of_rank in samples.items():
            others = {sample for other in samples if other != rank for sample in samples[other]}
            shared = len(others.intersection(of_rank))
            enough = shared >= max(_FEWEST_SHARED, _SHARED * len(of_rank))
            if enough and (most is None or shared > most.num_samples):
                most = SameSamples(first, ranks, 0, shared, len(of_rank))
    return most


def find_same_worker_seeds(loaders: Mapping[int, Sequence[Loader]]) -> Loader | None:
    """Return a loader whose workers draw random numbers from the same seeds on all ranks; ``None`` if there is none.

    `loaders`: the loaders of each rank.
    """
    if len(loaders) < 2:
        return None
    seeds = [{seed for one in of_rank for seed in one.worker_seeds} for of_rank in loaders.values()]
    common = set.intersection(*seeds)
    of_first = next(iter(loaders.values()))
    drawing = (one for one in of_first if one.feeds_training and one.draws_in_workers)
    return next((one for one in drawing if one.worker_seeds and common.issuperset(one.worker_seeds[:1])), None)


@dataclass(frozen=True, slots=True)
class DataLoading:
    """How the ranks get their data."""

    loaders: Mapping[int, Sequence[Loader]] = field(default_factory=dict)
    """rank → its data loaders"""
    same_samples: SameSamples | None = None
    same_worker_seeds: Loader | None = None
    """DataLoader whose workers draw the same random numbers on all ranks, if there is one"""


def _data_loading(view: View) -> DataLoading:
    loaders = {rank: record.loaders for rank, record in view.records.items()}
    return DataLoading(loaders, find_same_samples(loaders), find_same_worker_seeds(loaders))


def training_loaders(of_ranks: Iterable[Sequence[Loader]]) -> Iterator[Loader]:
    """Yield all loaders that provide training batches, rank by rank."""
    return (loader for loaders in of_ranks for loader in loaders if loader.feeds_training)


def same_samples(data: DataLoading, view: View) -> Iterator[Finding]:
    """Report ranks that train on the same batches or samples."""
    same = data.same_samples
    if same is None or (view.world_size or 1) < 2 or not view.is_one_group:
        return  # ranks that do not average gradients with each other may need the same samples
    if same.is_sharded and data.same_worker_seeds is not None:
        return  # the workers draw the samples, so `same_worker_seeds` reports the cause
    ranks = "both ranks" if len(same.ranks) == 2 else f"all {len(same.ranks)} ranks that were compared"
    drawn = "an IterableDataset yields them" if same.loader.is_iterable else f"{same.loader.sampler} draws them"
    if same.same_batches:
        title = "Every rank trains on the same batches"
        evidence = f"{same.num_batches} of {same.num_batches} compared batches were the same on {ranks}; {drawn}"
    else:
        title = "The training data is not sharded across the ranks"
        evidence = (
            f"in one pass over the DataLoader, {same.num_samples} of {same.num_compared} compared samples of one "
            f"rank were also used by another rank; {drawn}"
        )
    yield Finding(
        "same-samples",
        title,
        evidence,
        _SEED_RANKS if same.is_sharded else divide_data(view.framework, same.loader),
        None,
        is_correctness=True,
        comes_first=True,
        numbers=only_known(
            num_ranks=len(same.ranks),
            num_batches=same.num_batches,
            num_samples=same.num_samples,
            num_compared=same.num_compared,
        ),
    )


_SEED_RANKS = (
    "The DistributedSampler shards the dataset, but the ranks still get the same samples. If the dataset generates "
    "samples at random, give torch, NumPy and random a different seed on each rank after building the model: "
    "torch.manual_seed(seed + dist.get_rank())."
)


def same_worker_seeds(data: DataLoading, view: View) -> Iterator[Finding]:
    """Report a loader that gives its workers the same seeds on all ranks, if the workers draw random numbers."""
    loader = data.same_worker_seeds
    if loader is None or (view.world_size or 1) < 2 or not view.is_one_group:
        return
    ranks = "both ranks" if view.world_size == 2 else f"all {view.world_size} ranks"
    same = data.same_samples
    are_equal = same is not None and same.is_sharded
    the_workers = "Every rank trains on the same samples: the" if are_equal else "The"
    own = "its own generator has" if loader.has_generator else "torch's CPU generator, which provides the seeds, has"
    yield Finding(
        "same-worker-seeds",
        f"{the_workers} DataLoader workers of {ranks} draw the same random numbers",
        f"the loader passes the same seeds to its workers ({loader.num_workers}) on {ranks}, because {own} the same "
        f"state on each of them, and the dataset's code draws random numbers",
        f"{_seed_workers(view.framework, loader.num_workers)} Until this is fixed, every rank applies the same "
        f"random augmentations.",
        None,
        is_correctness=True,
        comes_first=are_equal,
        numbers=only_known(num_workers=loader.num_workers),
    )


def _seed_workers(framework: str | None, num_workers: int) -> str:
    """Return advice on seeding only the workers, because the loader's generator may also determine the sample order."""
    if framework in ("lightning", "fabric"):
        return "Call seed_everything(seed, workers=True): it adds the rank to the seeds of the workers."
    more = "rank" if num_workers == 1 else f"{num_workers} * rank"
    return (
        f"Add {more} to torch.initial_seed() in a worker_init_fn of the loader, and pass the sum to "
        "torch.manual_seed, random.seed and, modulo 2**32, np.random.seed. Pass the rank to the function with "
        "functools.partial. This affects only the workers. Seeding the loader's generator differently may also "
        "change the order of the samples, which must be the same on all ranks if the samples are sharded across them."
    )


def epoch_never_set(data: DataLoading, view: View) -> Iterator[Finding]:
    """Report a DistributedSampler whose ``set_epoch`` is never called: every epoch has the same order."""
    for loader in training_loaders(data.loaders.values()):
        epochs = loader.epochs_set
        if loader.set_epoch_called or not loader.shuffles or epochs is None:
            continue
        if len(epochs) > 1 and len(set(epochs)) == 1:
            yield Finding(
                "set-epoch-never-called",
                "Every epoch uses the same order: set_epoch is never called",
                f"{len(epochs)} epochs began, and {loader.sampler} shuffled each of them with the seed of epoch "
                f"{epochs[0]}",
                reshuffle(view.framework),
                None,
                is_correctness=True,
                numbers=only_known(num_epochs=len(epochs)),
            )
            return


def idle_for_data(data: DataLoading, view: View) -> Iterator[Finding]:
    """Report training that waits for its DataLoader."""
    if not view.data_ns or not view.step_ns or view.data_ns < 0.05 * view.step_ns:
        return
    slowest = _slowest_of(training_loaders(data.loaders.values()))
    workers = "" if slowest is None else f", with num_workers={slowest.num_workers}"
    line = slowest_line_of_data(view)
    mostly = "" if line is None or line.data_ns < view.data_ns / 2 else f"; mostly at {line.short}"
    advice, change = (_MORE_OR_CHEAPER, None) if slowest is None else _more_workers(view, slowest)
    yield Finding(
        "idle-for-data",
        "Training waits for its DataLoader",
        f"{in_ms(view.data_ns)} per step, {view.data_ns / view.step_ns:.0%} of the step{workers}{mostly}",
        advice,
        _gain_ns(view.data_ns, view.step_ns, slowest, change),
        change=change,
        numbers=only_known(data_ns=view.data_ns, step_ns=view.step_ns),
    )


def _gain_ns(data_ns: int, step_ns: int, loader: Loader | None, change: Change | None) -> int:
    """Return an upper bound on the gain from the advised number of workers, in ns per step.

    With that many workers, a step takes as long as training or loading, whichever is longer. Loading a batch takes
    `data_ns` if there are no workers, and `step_ns` times the number of workers if they cannot keep up.
    """
    if loader is None or change is None:
        return data_ns
    batch_ns = data_ns if loader.num_workers == 0 else step_ns * loader.num_workers
    return min(data_ns, max(0, step_ns - round(batch_ns / int(str(change.values["num_workers"])))))


_MORE_OR_CHEAPER = (
    "Load batches in DataLoader workers, or use more workers (num_workers), if the host has free cores. Otherwise, "
    "make loading cheaper: use fewer transforms, or store preprocessed data."
)
_CHEAPER = "Make loading cheaper: use fewer transforms, or store preprocessed data."


def load_in_advance(view: View) -> tuple[str, Change | None]:
    """Return advice for training that waits for batches in some steps, and the change if there is one."""
    slowest = _slowest_of(training_loaders(one.loaders for one in view.records.values()))
    return (_MORE_OR_CHEAPER, None) if slowest is None else _more_workers(view, slowest)


def _slowest_of(loaders: Iterable[Loader]) -> Loader | None:
    return max(loaders, key=lambda one: one.waited_ns or 0, default=None)


def _more_workers(view: View, loader: Loader) -> tuple[str, Change | None]:
    """Return advice on adding workers, limited by the host's number of cores, and the change."""
    wanted, again = max(4, 2 * loader.num_workers), loader.num_iterations > 1 and not loader.persistent_workers
    more = loader_change(view.framework, wanted, again)
    if view.cores_per_rank is None:
        return f"{more.code}, if the host has enough cores, or use cheaper transforms.", more
    possible = min(wanted, int(view.cores_per_rank) - 1)  # the training thread needs one core
    if possible > loader.num_workers:
        more = loader_change(view.framework, possible, again)
        return f"{more.code}, or use cheaper transforms.", more
    cores = f"{view.cores_per_rank:.3g} core{'' if view.cores_per_rank == 1 else 's'} for each rank"
    if loader.num_workers == 0:
        one = loader_change(view.framework, 1, again)
        helps = (
            f"{one.code} helps if loading is limited by storage. If it is limited by computation, note that the host "
            f"has only {cores}."
        )
        return f"{_CHEAPER} {helps}", one
    return f"{_CHEAPER} The host has {cores}, and none is free for more workers.", None


DATA: Topic[None, DataLoading] = Topic(
    "data", rules=(same_samples, same_worker_seeds, epoch_never_set, idle_for_data), of_run=_data_loading
)


_FEWEST_STEPS = 4
"""ranks are compared only over at least this many steps, because an evaluation may draw random numbers in one or two
steps
"""

GeneratorStates = Mapping[str, Mapping[int, int]]
"""device type of a random number generator → step number → digest of the generator's state at the start of the step"""


@dataclass(frozen=True, slots=True)
class SameRandomNumbers:
    generators: tuple[str, ...]
    """generators that have the same state on all ranks: device type as in PyTorch, ``"numpy"`` or ``"random"``"""
    ranks: tuple[int, ...]
    """ranks that were compared"""
    num_steps: int
    """number of steps that were compared"""


def states_of_generators(steps: Sequence[RecordedStep]) -> GeneratorStates:
    """Return the states recorded by one rank."""
    kinds = sorted({kind for step in steps for kind in step.random_states})
    return {
        kind: {step.number: step.random_states[kind] for step in steps if kind in step.random_states} for kind in kinds
    }


def find_same_random_numbers(states: Mapping[int, GeneratorStates]) -> SameRandomNumbers | None:
    """Return the generators from which all ranks draw the same numbers in every step; ``None`` if there is none.

    `states`: the states of the generators, by rank.
    """
    ranks = tuple(sorted(states))
    kinds = set[str]().union(*states.values())
    known = {kind: [states[rank].get(kind, {}) for rank in ranks] for kind in sorted(kinds)}
    num_steps = {kind: _num_steps_alike(of_ranks) for kind, of_ranks in known.items()}
    same = tuple(kind for kind, number in num_steps.items() if number)
    if len(ranks) < 2 or not same:
        return None
    return SameRandomNumbers(same, ranks, min(num_steps[kind] for kind in same))


def _num_steps_alike(states: Sequence[Mapping[int, int]]) -> int:
    """Return the number of common steps if the states are equal on all ranks in every common step; otherwise 0."""
    first, *others = states
    steps = sorted(set(first).intersection(*others))
    if len(steps) < _FEWEST_STEPS or len({first[step] for step in steps}) < len(steps):
        return 0
    return len(steps) if all(other[step] == first[step] for other in others for step in steps) else 0


def same_random_numbers(same: SameRandomNumbers, view: View) -> Iterator[Finding]:
    """Report ranks that draw the same random numbers because they use the same seed."""
    if len(same.ranks) != view.world_size or not view.is_one_group:
        return  # ranks that do not average gradients with each other may need the same numbers
    ranks = "both ranks" if len(same.ranks) == 2 else f"all {len(same.ranks)} ranks"
    generators = [_GENERATORS.get(one, "torch's accelerator generator") for one in same.generators]
    were, used = ("were", "were used") if len(generators) > 1 else ("was", "was used")
    may_be_meant = view.framework in _SEED_ALL_RANKS_ALIKE
    by_default = ". Frameworks give all ranks the same seed by default" if may_be_meant else ""
    yield Finding(
        "same-random-numbers",
        f"{ranks.capitalize()} draw the same random numbers",
        f"{' and '.join(generators)} {were} in the same state on {ranks} at the start of each of {same.num_steps} "
        f"recorded steps, and {used} in every step{by_default}",
        f"{seed_ranks(view.framework, same.generators)} Until this is fixed, everything random in the training, such "
        "as dropout masks, noise or augmentation, is identical on every rank. For random numbers that must be the "
        "same on all ranks, for example to determine the order of samples, use a separate torch.Generator with the "
        "same seed on all ranks.",
        None,
        is_correctness=True,
        may_be_meant=may_be_meant,
        numbers=only_known(num_ranks=len(same.ranks), num_steps=same.num_steps),
    )


_SEED_ALL_RANKS_ALIKE = ("transformers", "accelerate", "lightning", "fabric")
"""frameworks whose seeding functions give all ranks the same seed by default; most users keep this default"""
_GENERATORS = {"cpu": "torch's CPU generator", "numpy": "NumPy's generator", "random": "Python's random module"}


@dataclass(frozen=True, slots=True)
class RankGenerators:
    """States of the random generators of one rank."""

    rank: int
    states: GeneratorStates


def _generators_of_rank(rank: Rank, _steps: Sequence[int], _modules: Sequence[DdpModule]) -> RankGenerators | None:
    return None if rank.record is None else RankGenerators(rank.rank, states_of_generators(rank.record.steps))


RANDOM_NUMBERS: Topic[RankGenerators, SameRandomNumbers] = Topic(
    "random_numbers",
    rules=(same_random_numbers,),
    of_rank=_generators_of_rank,
    rank_type=RankGenerators,
    of_ranks=lambda ranks: find_same_random_numbers({one.rank: one.states for one in ranks}),
)


@dataclass(frozen=True, slots=True)
class RankInputs:
    """Sizes of the inputs of one rank."""

    numel_of_step: Mapping[int, int]
    """step number → `RecordedStep.input_numel`"""


def unevenness(ranks: Sequence[RankInputs]) -> float | None:
    """Return by how much the largest input of a step exceeds the mean input of the ranks, as a fraction of the mean.

    The result is the mean over the steps that all ranks recorded; ``None`` if there is no such step, or only one rank.
    """
    common = set.intersection(*({step for step, numel in one.numel_of_step.items() if numel} for one in ranks))
    if len(ranks) < 2 or not common:
        return None
    sizes = [[one.numel_of_step[step] for one in ranks] for step in common]
    return fmean(max(of_step) / fmean(of_step) - 1 for of_step in sizes)


def _inputs_of_rank(rank: Rank, _steps: Sequence[int], _modules: Sequence[DdpModule]) -> RankInputs | None:
    return None if rank.record is None else RankInputs({one.number: one.input_numel for one in rank.record.steps})


INPUT_SIZES: Topic[RankInputs, float] = Topic(
    "input_sizes", of_rank=_inputs_of_rank, rank_type=RankInputs, of_ranks=unevenness
)
"""how much the sizes of the inputs differ between ranks: see `unevenness`"""


_MUCH_PADDING = 0.05
"""padding is reported if it takes at least this share of the step"""


@dataclass(frozen=True, slots=True)
class RankPadding:
    """The recorded training batches of one rank that have an attention mask."""

    lengths: Mapping[tuple[int, int, int], tuple[int, int]]
    """(index of the loader, `Batch.iteration`, `Batch.place`) → `Batch.longest` and `Batch.width`"""
    compute_ns: int
    """computation time of the forward and backward passes per step; median over steps"""


@dataclass(frozen=True, slots=True)
class Padding:
    """Padding that no sequence of a batch needs."""

    num_batches: int
    """number of places in the training at which every rank has a batch of known length"""
    width: float
    longest: float
    """padded length, and length of the longest sequence on any rank; medians over the batches"""
    removable: float
    """fraction of the padded length that no sequence uses on any rank; median over the batches"""
    compute_ns: int
    """computation time of the forward and backward passes per step, on the rank where it is shortest"""


def padding_of_rank(rank: Rank, steps: Sequence[int], _modules: Sequence[DdpModule]) -> RankPadding | None:
    loaders = rank.record.loaders if rank.record is not None else ()
    lengths = {
        (index, batch.iteration, batch.place): (batch.longest, batch.width)
        for index, loader in enumerate(loaders)
        if loader.feeds_training
        for batch in loader.batches
        if batch.longest is not None and batch.width is not None and 0 <= batch.longest <= batch.width > 0
    }
    if not lengths or rank.trace is None or not steps:
        return None
    return RankPadding(lengths, round(median(_passes_ns(rank.trace, step) for step in steps)))


def _passes_ns(trace: Trace, step: int) -> int:
    compute = trace.compute
    in_passes = np.isin(compute.phase, (Phase.FORWARD, Phase.BACKWARD))
    return union_of(compute, np.flatnonzero((compute.step == step) & in_passes)).total_ns


def padding_of_ranks(ranks: Sequence[RankPadding]) -> Padding | None:
    """Combine the ranks. At each place in the training, the rank with the longest sequence determines the time."""
    common = set.intersection(*(set(one.lengths) for one in ranks))
    if len(common) < _FEWEST_BATCHES:
        return None
    fullest = [max((one.lengths[place] for one in ranks), key=lambda both: both[0] / both[1]) for place in common]
    return Padding(
        len(common),
        median(width for _, width in fullest),
        median(longest for longest, _ in fullest),
        median(1 - longest / width for longest, width in fullest),
        min(one.compute_ns for one in ranks),
    )


def padded_batches(padding: Padding, view: View) -> Iterator[Finding]:
    """Report batches that are padded further than their longest sequence. A compiled model may need equal lengths."""
    gain_ns = round(padding.removable * padding.compute_ns)
    if view.is_compiled or not view.step_ns or gain_ns < _MUCH_PADDING * view.step_ns:
        return
    yield Finding(
        "padded-batches",
        f"Batches are padded to {padding.width:g} positions, but their longest sequence has {padding.longest:g}",
        f"medians over {padding.num_batches} batches, according to their attention_mask; {padding.removable:.0%} of "
        "the positions are padding in every sequence",
        pad_to_longest(view.framework),
        view.without_profiler(gain_ns),
        numbers=only_known(
            num_positions=padding.width,
            num_used=padding.longest,
            removable_share=padding.removable,
            num_batches=padding.num_batches,
        ),
    )


PADDING: Topic[RankPadding, Padding] = Topic(
    "padding",
    rules=(padded_batches,),
    of_rank=padding_of_rank,
    rank_type=RankPadding,
    of_ranks=padding_of_ranks,
)
