"""One large trace: two processes read it, and end together whatever happens to one of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from jobs import DDPPROF, environment
from memory import peak_bytes
from processes import children, is_gone, started, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

_EVENT = (
    '{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": %d, "dur": 4,'
    ' "args": {"External id": %d, "cbid": 211, "correlation": %d}},\n'
    '{"ph": "X", "cat": "kernel", "name": "gemm_%d", "pid": 0, "tid": 7, "ts": %d, "dur": 8,'
    ' "args": {"stream": 7, "correlation": %d, "grid": [16, 1, 1], "block": [128, 1, 1], "registers per thread": 32}}'
)
_STEP = (
    ',\n{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#%d", "pid": 1, "tid": 1, "ts": %d, "dur": 500000}'
)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 MB of JSON."""
    path = tmp_path_factory.mktemp("large") / "rank-0.json"
    with path.open("w") as file:
        file.write('{"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": [\n')
        for step in range(6):
            for kernel in range(step * 50_000, (step + 1) * 50_000):
                file.write(",\n" if kernel else "")
                file.write(_EVENT % (10 * kernel, kernel, kernel + 1, kernel % 9, 10 * kernel + 5, kernel + 1))
            file.write(_STEP % (step, step * 500_000))
        file.write("]}")
    return path


@pytest.fixture(scope="module")
def by_one(trace: Path) -> str:
    command = [*DDPPROF, "report", str(trace), "--jobs", "1", "--no-cache", "--format", "json"]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stdout


def test_two_processes_report_what_one_does(trace: Path, by_one: str) -> None:
    with started(*DDPPROF, "report", trace, "--jobs", "2", "--no-cache", "--format", "json", cwd=trace.parent) as two:
        wait_until(lambda: helper_at_work(two.pid, trace) is not None, "another process read")
        out, err = two.communicate(timeout=600)
    assert (two.returncode, err, out) == (0, "", by_one)


def test_where_one_is_killed_the_other_reads_all(trace: Path, by_one: str) -> None:
    with started(*DDPPROF, "report", trace, "--jobs", "2", "--no-cache", "--format", "json", cwd=trace.parent) as two:
        wait_until(lambda: helper_at_work(two.pid, trace) is not None, "another process read")
        os.kill(children(two.pid)[0], signal.SIGKILL)
        out, err = two.communicate(timeout=600)
    assert (two.returncode, err, out) == (0, "", by_one)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_other_is_started_is_not_lost(trace: Path, number: signal.Signals) -> None:
    with started(*DDPPROF, "report", trace, "--jobs", "2", "--no-cache", cwd=trace.parent) as two:
        wait_until(lambda: bool(children(two.pid)), "another process was started")
        two.send_signal(number)
        assert (two.wait(timeout=600), two.communicate()) == (128 + number, ("", ""))


def test_two_hold_little_more_than_one_does(trace: Path) -> None:
    """What they share counts once."""

    def peak(num_processes: int) -> int:
        imports = "from pathlib import Path; from ddpprof.load.rank import load_trace"
        load = f"load_trace(Path({str(trace)!r}), num_processes={num_processes})"
        return peak_bytes([sys.executable, "-c", f"{imports}; {load}"])

    # Where the machine is busy, samples may miss the peak of one process.
    assert peak(2) < 1.2 * max(peak(1), peak(1))


def helper_at_work(pid: int, trace: Path) -> int | None:
    """The process that the one with that id started, once it has opened the trace."""
    for helper in children(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            if trace in [file.readlink() for file in Path(f"/proc/{helper}/fd").iterdir()]:
                return helper
    return None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_none_outlives_the_other(trace: Path, number: signal.Signals) -> None:
    with started(*DDPPROF, "report", trace, "--jobs", "2", "--no-cache", cwd=trace.parent) as two:
        wait_until(lambda: helper_at_work(two.pid, trace) is not None, "another process read")
        all_of_it = children(two.pid)
        two.send_signal(number)
        two.wait(timeout=600)
    assert two.returncode in (130, 143, -signal.SIGKILL)
    wait_until(lambda: all(map(is_gone, all_of_it)), "all processes ended")
