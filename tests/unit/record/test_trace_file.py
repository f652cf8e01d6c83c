"""A trace on its way into the run directory."""

from __future__ import annotations

import gzip
import json
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpprof import own_files
from ddpprof.record import trace_file
from ddpprof.record.trace_file import TraceFile

OTHER_DISK = Path("/dev/shm")


class Recorded:
    """Stands for what the profiler recorded."""

    def __init__(self, before: Callable[[], object] = lambda: None, fails: bool = False) -> None:
        self.before = before
        self.fails = fails
        self.path = Path()

    def export_chrome_trace(self, path: str) -> None:
        self.path = Path(path).resolve()
        self.before()
        if not self.fails:
            self.path.write_text(json.dumps({"traceEvents": []}))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_trace_is_written_while_training_goes_on(tmp_path: Path) -> None:
    goes_on = threading.Event()
    trace = TraceFile(tmp_path, 3)
    trace.write(Recorded(lambda: goes_on.wait(10)))  # type: ignore[arg-type]
    assert files(tmp_path) == []
    goes_on.set()
    trace.finish(1.0, [])
    assert files(tmp_path) == ["rank-3.trace.json.gz"]
    assert json.loads(gzip.decompress((tmp_path / "rank-3.trace.json.gz").read_bytes())) == {"traceEvents": []}


@pytest.mark.skipif(not OTHER_DISK.is_dir(), reason="there is no second file system")
def test_where_the_run_lies_elsewhere_this_nodes_disk_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if OTHER_DISK.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    monkeypatch.setattr(trace_file, "_LOCAL_DISK_BYTES", 1 << 20)
    with tempfile.TemporaryDirectory(dir=OTHER_DISK) as local:
        monkeypatch.setattr(tempfile, "tempdir", local)
        Path(local, own_files.part_name("ddpprof")).mkdir()  # as a process that was killed leaves it
        recorded, trace = Recorded(), TraceFile(tmp_path, 0)
        trace.write(recorded)  # type: ignore[arg-type]
        trace.finish(1.0, [])
        assert recorded.path.is_relative_to(local)
        assert files(Path(local)) == []
    assert files(tmp_path) == ["rank-0.trace.json.gz"]


def test_a_job_that_is_asked_to_end_does_not_wait_for_long(tmp_path: Path) -> None:
    goes_on = threading.Event()
    trace = TraceFile(tmp_path, 0)
    trace.write(Recorded(lambda: goes_on.wait(20)))  # type: ignore[arg-type]
    began = time.monotonic()
    trace.finish(0.2, [15])
    assert time.monotonic() - began < 5
    goes_on.set()


@pytest.mark.parametrize("fails", ["writes-nothing", "raises"])
def test_what_goes_wrong_is_raised_at_the_end_and_leaves_nothing(fails: str, tmp_path: Path) -> None:
    def full() -> Any:
        raise OSError(28, "No space left on device")

    trace = TraceFile(tmp_path, 0)
    trace.write(Recorded(full if fails == "raises" else lambda: None, fails=True))  # type: ignore[arg-type]
    with pytest.raises(OSError, match=r"No space left|could not write"):
        trace.finish(1.0, [])
    assert files(tmp_path) == []
