"""Real traces of others, against numbers that an independent script computed from them, to the nanosecond."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared import REFERENCE, TRACES

from ddpprof.intervals import intersect, subtract, union
from ddpprof.load.rank import load_trace
from ddpprof.model import Phase, Trace

REFERENCES = sorted((REFERENCE).glob("*.json"))
STEPS = [(path, step) for path in REFERENCES for step in json.loads(path.read_text())["steps"]]

pytestmark = pytest.mark.skipif(not REFERENCES, reason="the traces of others are not part of the project: no ../shared")


@functools.cache
def load(path: Path) -> tuple[Trace, dict[str, Any]]:
    reference = json.loads(path.read_text())
    return load_trace(TRACES / reference["trace"]), reference


def device_sums(trace: Trace, step: int | None) -> dict[str, int]:
    def rows(table: Any) -> Any:
        return slice(None) if step is None else table.step == step

    def spans(table: Any) -> Any:
        return union(table.start_ns[rows(table)], table.end_ns[rows(table)])

    if trace.device == "cpu":
        return dict.fromkeys(
            ("num_kernels", "num_comm_kernels", "comm_ns", "compute_ns", "overlap_ns", "exposed_ns", "copy_ns"), 0
        )
    comm, compute = spans(trace.collectives), spans(trace.compute)
    tables = (trace.collectives, trace.compute, trace.copies)
    return {
        "num_kernels": sum(len(table.start_ns[rows(table)]) for table in tables),
        "num_comm_kernels": len(trace.collectives.start_ns[rows(trace.collectives)]),
        "comm_ns": comm.total_ns,
        "compute_ns": compute.total_ns,
        "overlap_ns": intersect(comm, compute).total_ns,
        "exposed_ns": subtract(comm, compute).total_ns,
        "copy_ns": spans(trace.copies).total_ns,
    }


@pytest.mark.parametrize("path", REFERENCES, ids=lambda path: path.stem)
def test_the_whole_file_sums_up_as_the_reference_says(path: Path) -> None:
    trace, reference = load(path)
    assert device_sums(trace, None) == reference["whole"]


@pytest.mark.parametrize("path", REFERENCES, ids=lambda path: path.stem)
def test_rank_and_world_are_those_of_the_file(path: Path) -> None:
    trace, reference = load(path)
    distributed = reference["distributed"] or {"backend": None, "rank": None, "world_size": None}
    assert {"backend": trace.backend, "rank": trace.rank, "world_size": trace.world_size} == distributed


@pytest.mark.parametrize(("path", "name"), STEPS, ids=lambda value: getattr(value, "stem", value))
def test_a_step_sums_up_as_the_reference_says(path: Path, name: str) -> None:
    trace, reference = load(path)
    expected = reference["steps"][name]
    step = [s.number for s in trace.steps].index(int(name.partition("#")[2]))
    sums = device_sums(trace, step)
    assert sums == {key: expected[key] for key in sums}

    backward = trace.compute.end_ns[(trace.compute.step == step) & (trace.compute.phase == Phase.BACKWARD)]
    end = int(backward.max()) if len(backward) else None
    assert end == expected.get("backward_compute_end_ns")

    collectives = trace.collectives
    rows = np.flatnonzero(collectives.step == step)
    found = [
        (int(collectives.start_ns[row]), int(collectives.end_ns[row] - collectives.start_ns[row]), phase_name(phase))
        for row, phase in zip(rows, collectives.phase[rows], strict=True)
    ]
    assert found == [(c["start_ns"], c["dur_ns"], c["phase"]) for c in expected["collectives"]]


def phase_name(phase: int) -> str | None:
    """The reference knows no finalisation; it has nothing to say where neither mark holds the launch."""
    names = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward", Phase.OPTIMIZER: "optimizer"}
    return names.get(Phase(phase))
