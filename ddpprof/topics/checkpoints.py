"""Detect several ranks that write the same checkpoint file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ddpprof.engine.finding import Finding, only_known
from ddpprof.engine.topic import Topic, View
from ddpprof.words import ranks_in_words

Written = tuple[str, tuple[str, ...]]
"""host of a rank, and the paths of the checkpoints that it wrote"""


def same_checkpoint(written: Mapping[int, Written], _view: View) -> Iterator[Finding]:
    """Report checkpoint files that several ranks write."""
    writers: dict[tuple[str, str], list[int]] = {}
    for rank, (host, paths) in written.items():
        for path in paths:
            writers.setdefault((host, path), []).append(rank)
    shared = {path: ranks for (_, path), ranks in writers.items() if len(ranks) > 1}
    if shared:
        path, ranks = next(iter(shared.items()))
        yield Finding(
            "same-checkpoint",
            f"{len(ranks)} ranks save the same checkpoint",
            f"{ranks_in_words(ranks)} all wrote {path}" + (f" ({len(shared)} such files)" if len(shared) > 1 else ""),
            "Save on one rank only: if dist.get_rank() == 0: torch.save(…). If other ranks read the file, call "
            "dist.barrier() afterwards.",
            None,
            is_correctness=True,
            numbers=only_known(num_ranks=len(ranks), num_files=len(shared)),
        )


CHECKPOINTS: Topic[None, Mapping[int, Written]] = Topic(
    "checkpoints",
    rules=(same_checkpoint,),
    of_run=lambda view: {rank: (record.host, record.checkpoints) for rank, record in view.records.items()},
)
