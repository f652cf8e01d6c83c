"""Writer of TensorBoard's event files that does not use tensorflow, even if it is installed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from ddpprof import own_files
from ddpprof.errors import DdpprofError, how_to_install

HOW_TO_INSTALL = how_to_install("tensorboard")


class EventFile:
    """One file of one TensorBoard run, in `directory`; a context manager. Raises ``OSError`` and `DdpprofError`."""

    def __init__(self, directory: Path) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.summary.writer.record_writer import RecordWriter
        except (ImportError, AttributeError) as error:  # an old TensorBoard uses features that numpy no longer has
            raise DdpprofError(f"TensorBoard cannot be used ({error}). {HOW_TO_INSTALL}") from error
        own_files.make_folder(directory)
        self._event = Event
        self._wall_time = time.time()
        path = directory / f"events.out.tfevents.{int(self._wall_time):010}.ddpprof"
        self._records = RecordWriter(os.fdopen(own_files.overwrite(path), "wb"))
        self._records.write(Event(wall_time=self._wall_time, file_version="brain.Event:2").SerializeToString())

    def add(self, summary: Any, step: int = 0) -> None:
        event = self._event(wall_time=self._wall_time, step=step, summary=summary)
        self._records.write(event.SerializeToString())

    def __enter__(self) -> EventFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._records.close()


def summary(tag: str, metadata: Any, **value: Any) -> Any:
    """Return a summary of one value, given by the fields of its protocol buffer."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary(value=[Summary.Value(tag=tag, metadata=metadata, **value)])


def text_tensor(*texts: str | bytes) -> Any:
    """Return a scalar tensor of one text, or a 1-d tensor of several."""
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING

    dimensions = [TensorShapeProto.Dim(size=len(texts))] if len(texts) > 1 else []
    values = [text.encode() if isinstance(text, str) else text for text in texts]
    return TensorProto(dtype=DT_STRING, tensor_shape=TensorShapeProto(dim=dimensions), string_val=values)
