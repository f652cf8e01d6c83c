"""Runs of many ranks: copies of a recorded run's ranks, each with its own number."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "convnet-gloo-2ranks"
_RANK = re.compile(rb'("distributedInfo": \{"backend": "gloo", "rank": )\d+(, "world_size": )\d+')


def make_fleet(folder: Path, num_ranks: int, late: int | None = None) -> Path:
    """Make a run directory. Rank `late` reaches its gradients 10 ms later in every step of light recording."""
    folder.mkdir(parents=True, exist_ok=True)
    about = json.loads((SAMPLE / "run.json").read_text()) | {"world_size": num_ranks}
    (folder / "run.json").write_text(json.dumps(about))
    for rank in range(num_ranks):
        write_rank(folder, rank, num_ranks, late_ns=10_000_000 if rank == late else 0)
    return folder


def make_traces(folder: Path, num_ranks: int) -> Path:
    """Make a folder with the traces alone."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(num_ranks):
        (folder / f"rank-{rank}.json.gz").write_bytes(_trace(rank, num_ranks))
    return folder


def write_rank(folder: Path, rank: int, num_ranks: int, late_ns: int = 0) -> None:
    source = rank % 2
    facts = json.loads((SAMPLE / f"rank-{source}.facts.json").read_text())
    (folder / f"rank-{rank}.facts.json").write_text(json.dumps(facts | {"rank": rank, "world_size": num_ranks}))
    steps = [json.loads(line) for line in (SAMPLE / f"rank-{source}.steps.jsonl").read_text().splitlines()]
    lines = [json.dumps(_later(step, late_ns)) + "\n" for step in steps]
    (folder / f"rank-{rank}.steps.jsonl").write_text("".join(lines))
    (folder / f"rank-{rank}.trace.json.gz").write_bytes(_trace(rank, num_ranks))


def _later(step: dict[str, object], late_ns: int) -> dict[str, object]:
    passes = step.get("passes")
    if not late_ns or step["mode"] != "light" or not isinstance(passes, list):
        return step
    later = [
        [module, origin, [time and time + late_ns for time in times], buckets]
        for module, origin, times, buckets in passes
    ]
    return step | {"passes": later}


_inflated: dict[int, bytes] = {}


def _trace(rank: int, num_ranks: int) -> bytes:
    source = rank % 2
    if source not in _inflated:
        _inflated[source] = gzip.decompress((SAMPLE / f"rank-{source}.trace.json.gz").read_bytes())
    text, count = _RANK.subn(rb"\g<1>%d\g<2>%d" % (rank, num_ranks), _inflated[source])
    assert count == 1
    return gzip.compress(text, compresslevel=1)
