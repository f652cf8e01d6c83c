"""Durations of the collectives of each step: one histogram per kind of collective, step and rank."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ddpprof.model import CollectiveKind
from ddpprof.render.tensorboard.event_file import EventFile, summary
from ddpprof.render.tensorboard.scalars import NS_PER_MS
from ddpprof.report.timeline import Drawing

TAG = "ddp_collective_ms/"
_BUCKETS = 30


def write_histograms(file: EventFile, drawing: Drawing) -> None:
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_DOUBLE
    from tensorboard.plugins.histogram.metadata import create_summary_metadata

    for kind, step, durations_ns in _collective_times(drawing):
        table = _buckets_of(durations_ns / NS_PER_MS)
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in table.shape])
        tensor = TensorProto(dtype=DT_DOUBLE, tensor_shape=shape, tensor_content=table.tobytes())
        metadata = create_summary_metadata("", f"durations of {kind} in a step, including waits for other ranks")
        file.add(summary(f"{TAG}{kind}", metadata, tensor=tensor), step)


def _collective_times(drawing: Drawing) -> Iterator[tuple[str, int, NDArray[np.int64]]]:
    """Yield the kind, the number of the step, and the durations in ns."""
    for index in drawing.about.measured:
        step = drawing.draw(index)
        comm = step.collectives
        for kind in np.unique(comm.kind).tolist():
            yield CollectiveKind(kind).name.lower(), step.step, (comm.end_ns - comm.start_ns)[comm.kind == kind]


def _buckets_of(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return [n, 3]: left edge, right edge, count. The outer edges are the smallest and the largest value."""
    if values.min() == values.max():
        return np.array([[values[0], values[0], len(values)]], np.float64)
    counts, edges = np.histogram(values, bins=_BUCKETS)
    return np.stack((edges[:-1], edges[1:], counts.astype(np.float64)), axis=1)
