"""Rules about the training script around DDP: data loading and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

from ddpprof.events import Loader
from ddpprof.findings.finding import Finding, Observed, ms


def _training_loaders(o: Observed) -> Iterator[tuple[int, Loader]]:
    for rank, loaders in o.loaders.items():
        for loader in loaders:
            if loader.num_training_steps:
                yield rank, loader


_UNDIVIDED = ("RandomSampler", "SequentialSampler")


def missing_distributed_sampler(o: Observed) -> Iterator[Finding]:
    """Every rank goes through the whole data set."""
    if (o.world_size or 1) < 2:
        return
    plain = [(rank, loader) for rank, loader in _training_loaders(o) if loader.sampler in _UNDIVIDED]
    sizes = {loader.dataset_size for _, loader in plain}
    if len({rank for rank, _ in plain}) > 1 and len(sizes) == 1:
        _, loader = plain[0]
        same = "in the same order" if loader.sampler == "SequentialSampler" else "each in an order of its own"
        yield Finding(
            "no-distributed-sampler",
            "Training data is not divided among the ranks",
            f"every rank's DataLoader uses {loader.sampler} over {loader.dataset_size} samples, {same}; unless each "
            f"rank was given its own part, an epoch trains on the data {o.world_size} times",
            f"DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle={loader.sampler == 'RandomSampler'}), …),"
            " without the DataLoader's own shuffle.",
            None,
            is_correctness=True,
        )


def epoch_never_set(o: Observed) -> Iterator[Finding]:
    """DistributedSampler shuffles by its epoch: without ``set_epoch`` every epoch has the same order."""
    for _, loader in _training_loaders(o):
        epochs = loader.epochs_set
        if loader.set_epoch_called or not loader.shuffles or epochs is None:
            continue
        if len(epochs) > 1 and len(set(epochs)) == 1:
            yield Finding(
                "set-epoch-never-called",
                "Every epoch has the same order: set_epoch is never called",
                f"{loader.sampler} was iterated {loader.num_iterations} times, always with epoch {epochs[0]}",
                "At the start of each epoch: sampler.set_epoch(epoch).",
                None,
                is_correctness=True,
            )
            return


def same_checkpoint(o: Observed) -> Iterator[Finding]:
    """Several ranks write one file."""
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
            f"ranks {', '.join(map(str, ranks))} all wrote {path}"
            + (f" ({len(shared)} such files)" if len(shared) > 1 else ""),
            "if dist.get_rank() == 0: torch.save(…), then dist.barrier() where others read it.",
            None,
            is_correctness=True,
        )


def idle_for_data(o: Observed) -> Iterator[Finding]:
    """The training thread waits for its batch."""
    if not o.data_ns or not o.step_ns or o.data_ns < 0.05 * o.step_ns:
        return
    workers = max((loader.num_workers for _, loader in _training_loaders(o)), default=0)
    yield Finding(
        "idle-for-data",
        f"Training waits {ms(o.data_ns)} per step for its DataLoader",
        f"{o.data_ns / o.step_ns:.0%} of the step, with num_workers={workers}",
        f"DataLoader(…, num_workers={max(4, 2 * workers)}, persistent_workers=True), or cheaper transforms.",
        o.data_ns,
    )
