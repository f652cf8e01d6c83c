"""Rules about memory: a place that holds more than the others, and processes on devices where they do not train."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from ddpprof.findings.finding import Finding, Observed
from ddpprof.measures.ranks.memory import DeviceUse, Holder, RankMemory, devices_of_job, processes_of_job
from ddpprof.words import ranks_in_words

_MUCH_BYTES = 256 * 2**20
_MUCH = 0.25
"""excess over the others, as a fraction"""


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.2f} GB"


def memory_of_others(o: Observed) -> Iterator[Finding]:
    """Report ranks with memory, or only a context, on a device on which they do not train: usually the first."""
    strangers: dict[tuple[str, str | int], list[tuple[RankMemory, DeviceUse]]] = {}
    for rank in o.memory:
        for use in rank.devices:
            if not use.is_own:
                device = use.uuid if use.uuid is not None else use.index
                strangers.setdefault((rank.host, device), []).append((rank, use))
    for (host, _), held in strangers.items():
        index, reserved = held[0][1].index, sum(use.reserved_bytes for _, use in held)
        who = ranks_in_words([rank.rank for rank, _ in held]).capitalize()
        yield Finding(
            "memory-of-others",
            f"{who} hold{'' if len(held) > 1 else 's'} a context on GPU {index}, "
            f"where {'they do' if len(held) > 1 else 'it does'} not train",
            f"{_gb(reserved)} are reserved there for tensors, on {host}; each context takes some hundred MB more",
            "Call torch.cuda.set_device(local_rank) before anything touches a GPU, and load checkpoints with "
            "torch.load(path, map_location=f'cuda:{local_rank}'). A plain torch.load goes to the GPU that the "
            "checkpoint was saved from, and .cuda() to the first one.",
            None,
        )


def memory_imbalance(o: Observed) -> Iterator[Finding]:
    """Report an accelerator, or a process on its host, that holds much more memory than the others."""
    devices = devices_of_job(o.memory)
    outliers = _outliers(devices) or _outliers(processes_of_job(o.memory))
    for holder, usual in outliers[:1]:
        on_device = holder.device is not None
        what = f"GPU {holder.device}" if on_device else f"Rank {holder.ranks[0]}"
        yield Finding(
            "memory-imbalance",
            f"{what} holds {_gb(holder.num_bytes - usual)} more than the others",
            f"{_gb(holder.num_bytes)}{' of the GPU' if on_device else ' of the host'}'s memory; the others hold "
            f"{_gb(usual)} (median); {ranks_in_words(holder.ranks)} on {holder.host}",
            _advice(holder),
            None,
        )


def _outliers(holders: Sequence[Holder]) -> list[tuple[Holder, float]]:
    """Return those that hold much more than the median of the others, largest excess first."""
    found = []
    for index, holder in enumerate(holders):
        others = [other.num_bytes for position, other in enumerate(holders) if position != index]
        usual = median(others) if others else None
        if usual is not None and holder.num_bytes - usual >= max(_MUCH_BYTES, _MUCH * usual):
            found.append((holder, usual))
    return sorted(found, key=lambda one: one[0].num_bytes - one[1], reverse=True)


def _advice(holder: Holder) -> str:
    if holder.device is not None and len(holder.ranks) > 1:
        return "Use one device per rank: call torch.cuda.set_device(local_rank) before anything touches a GPU."
    return (
        "Look for what only this rank keeps: losses collected with their graph (use loss.item() or .detach()), a "
        "second copy of the model (EMA, evaluation), gathered predictions, a cached dataset."
    )
