"""Rules about the training script around DDP: data loading, random numbers and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

from ddpprof.findings.change import Change, loader_change
from ddpprof.findings.finding import Finding, Observed, in_ms
from ddpprof.findings.framework_words import divide_data, reshuffle, seed_ranks
from ddpprof.model import Loader
from ddpprof.words import ranks_in_words


def _training_loaders(o: Observed) -> Iterator[tuple[int, Loader]]:
    for rank, loaders in o.loaders.items():
        for loader in loaders:
            if loader.feeds_training:
                yield rank, loader


def same_samples(o: Observed) -> Iterator[Finding]:
    """Report ranks that train on the same samples, as their batches show."""
    same = o.same_samples
    if same is None or (o.world_size or 1) < 2 or o.group_size != o.world_size:
        return  # ranks that do not average gradients with each other may need the same samples
    ranks = "both ranks" if len(same.ranks) == 2 else f"all {len(same.ranks)} ranks that were compared"
    drawn = "an IterableDataset yields them" if same.loader.is_iterable else f"{same.loader.sampler} draws them"
    if same.same_batches:
        title = "Every rank trains on the same batches"
        evidence = f"{same.num_batches} of {same.num_batches} compared batches were the same on {ranks}; {drawn}"
    else:
        title = "Training data is not divided among the ranks"
        evidence = (
            f"within one pass over the DataLoader, {same.num_samples} of {same.num_compared} compared samples of one "
            f"rank also went to another rank; {drawn}"
        )
    yield Finding("same-samples", title, evidence, divide_data(o.framework, same.loader), None, is_correctness=True)


def same_random_numbers(o: Observed) -> Iterator[Finding]:
    """Report ranks that draw the same random numbers, since they were given the same seed."""
    same = o.same_random_numbers
    if same is None or len(same.ranks) != o.world_size or o.group_size != o.world_size:
        return  # ranks that do not average gradients with each other may need the same numbers
    ranks = "both ranks" if len(same.ranks) == 2 else f"all {len(same.ranks)} ranks"
    generators = [_GENERATORS.get(one, "torch's accelerator generator") for one in same.generators]
    were, used = ("were", "were used") if len(generators) > 1 else ("was", "was used")
    yield Finding(
        "same-random-numbers",
        f"{ranks.capitalize()} draw the same random numbers",
        f"{' and '.join(generators)} {were} in the same state on {ranks} at the start of each of {same.num_steps} "
        f"recorded steps, and {used} in every step",
        f"{seed_ranks(o.framework, same.generators)} As it is, whatever is random in the training, such as dropout "
        "masks, noise or augmentation, is identical on every rank. For anything that the ranks must agree on, such as "
        "the order of samples that they divide, use a separate torch.Generator with the same seed on all ranks.",
        None,
        is_correctness=True,
    )


_GENERATORS = {"cpu": "torch's CPU generator", "numpy": "NumPy's generator", "random": "Python's random module"}


def same_worker_seeds(o: Observed) -> Iterator[Finding]:
    """Report loaders that give the same seeds to their workers on all ranks, if the workers draw random numbers."""
    loader = o.same_worker_seeds
    if loader is None or (o.world_size or 1) < 2 or o.group_size != o.world_size:
        return
    ranks = "both ranks" if o.world_size == 2 else f"all {o.world_size} ranks"
    own = "its own generator has" if loader.has_generator else "torch's CPU generator, from which they come, has"
    yield Finding(
        "same-worker-seeds",
        f"The DataLoader workers of {ranks} draw the same random numbers",
        f"the loader gives the same seeds to its workers ({loader.num_workers}) on {ranks}, because {own} the same "
        "state there, and the code of its dataset draws random numbers",
        f"{_seed_workers(o.framework, loader.num_workers)} Samples are now augmented alike on every rank.",
        None,
        is_correctness=True,
    )


def _seed_workers(framework: str | None, num_workers: int) -> str:
    """Return how to seed the workers alone: the loader's generator may also order the samples that ranks divide."""
    if framework in ("lightning", "fabric"):
        return "Call seed_everything(seed, workers=True): it adds the rank to the seeds of the workers."
    more = "rank" if num_workers == 1 else f"{num_workers} * rank"
    return (
        f"Add {more} to torch.initial_seed() in a worker_init_fn of the loader, and pass the sum to "
        "torch.manual_seed, random.seed and, modulo 2**32, np.random.seed. Give the rank to the function with "
        "functools.partial. This changes the workers only: another seed for the loader's generator may also change the "
        "order of the samples, which must be the same on all ranks if they divide the samples among them."
    )


def epoch_never_set(o: Observed) -> Iterator[Finding]:
    """Report a DistributedSampler without ``set_epoch`` calls, so that every epoch has the same order."""
    for _, loader in _training_loaders(o):
        epochs = loader.epochs_set
        if loader.set_epoch_called or not loader.shuffles or epochs is None:
            continue
        if len(epochs) > 1 and len(set(epochs)) == 1:
            yield Finding(
                "set-epoch-never-called",
                "Every epoch has the same order: set_epoch is never called",
                f"{len(epochs)} epochs began, and {loader.sampler} shuffled each of them as epoch {epochs[0]}",
                reshuffle(o.framework),
                None,
                is_correctness=True,
            )
            return


def same_checkpoint(o: Observed) -> Iterator[Finding]:
    """Report several ranks that write the same file."""
    writers: dict[tuple[str, str], list[int]] = {}
    for rank, (host, paths) in o.checkpoints.items():
        for path in paths:
            writers.setdefault((host, path), []).append(rank)
    shared = {path: ranks for (_, path), ranks in writers.items() if len(ranks) > 1}
    if shared:
        path, ranks = next(iter(shared.items()))
        yield Finding(
            "same-checkpoint",
            f"{len(ranks)} ranks save the same checkpoint",
            f"{ranks_in_words(ranks)} all wrote {path}" + (f" ({len(shared)} such files)" if len(shared) > 1 else ""),
            "Use: if dist.get_rank() == 0: torch.save(…), and then dist.barrier() if other ranks read it.",
            None,
            is_correctness=True,
        )


def idle_for_data(o: Observed) -> Iterator[Finding]:
    """Report a training thread that waits for its batches."""
    if not o.data_ns or not o.step_ns or o.data_ns < 0.05 * o.step_ns:
        return
    slowest = max((one for _, one in _training_loaders(o)), key=lambda one: one.waited_ns or 0, default=None)
    workers = "" if slowest is None else f", with num_workers={slowest.num_workers}"
    advice, change = (_CHEAPER, None) if slowest is None else _more_workers(o, slowest)
    yield Finding(
        "idle-for-data",
        "Training waits for its DataLoader",
        f"{in_ms(o.data_ns)} per step, {o.data_ns / o.step_ns:.0%} of the step{workers}",
        advice,
        o.data_ns,
        change=change,
    )


_CHEAPER = "Make loading cheaper: use fewer transforms, or store the data in the form that training reads."


def _more_workers(o: Observed, loader: Loader) -> tuple[str, Change | None]:
    """Return advice on adding workers, as far as the host has cores for them, and the change."""
    wanted, again = max(4, 2 * loader.num_workers), loader.num_iterations > 1 and not loader.persistent_workers
    more = loader_change(o.framework, wanted, again)
    if o.cores_per_rank is None:
        return f"{more.code}, if the host has cores for them, or use cheaper transforms.", more
    possible = min(wanted, int(o.cores_per_rank) - 1)  # one core trains
    if possible > loader.num_workers:
        more = loader_change(o.framework, possible, again)
        return f"{more.code}, or use cheaper transforms.", more
    cores = f"{o.cores_per_rank:.3g} core{'' if o.cores_per_rank == 1 else 's'} for each rank"
    if loader.num_workers == 0:
        one = loader_change(o.framework, 1, again)
        helps = f"{one.code} helps if loading waits for storage; for computation, the host has only {cores}."
        return f"{_CHEAPER} {helps}", one
    return f"{_CHEAPER} The host has {cores}, and none left for more workers.", None
