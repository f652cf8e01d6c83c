"""How `ddpprof tensorboard` runs and ends, and what training writes for TensorBoard."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest
from jobs import QUICK, Run, script
from tensorboards import GLOO_2, NCCL, Server, read, serving

pytest.importorskip("tensorboard", reason="pip install 'ddpprof[tensorboard]'")

pytestmark = pytest.mark.e2e


@contextmanager
def one_run(folder: Path) -> Iterator[Server]:
    with serving(folder, GLOO_2, "--no-plugin", "--logdir", "logs") as server:
        yield server


def processes_of(folder: Path) -> set[int]:
    """TensorBoard's, all that were started for this folder: its session's."""
    found, sessions = {}, set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session = (process / "stat").read_text().rpartition(")")[2].split()[:4]
            command = (process / "cmdline").read_text()
        except OSError:
            continue
        if state != "Z":  # ended, and nobody has asked how
            found[int(process.name)] = int(session)
            if "ddpprof.cli.tensorboard" in command and str(folder) in command:
                sessions.add(int(session))
    return {process for process, session in found.items() if session in sessions}


def running(processes: set[int]) -> set[int]:
    states = {number: Path(f"/proc/{number}/stat") for number in processes}
    return {number for number, path in states.items() if path.exists() and ") Z " not in path.read_text()}


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 0, id="ctrl-c"), pytest.param(signal.SIGTERM, 143, id="sigterm")]
)
def test_it_ends_with_all_its_processes_and_files(tmp_path: Path, number: int, code: int) -> None:
    with serving(tmp_path, NCCL if NCCL.exists() else GLOO_2, "--no-plugin", "--logdir", tmp_path / "logs") as server:
        processes = processes_of(tmp_path)
        assert len(processes) > 1, "TensorBoard and its data server"
        server.process.send_signal(number)
        assert server.process.wait(timeout=600) == code
    assert running(processes) == set()
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def test_it_listens_on_loopback_alone(tmp_path: Path) -> None:
    with one_run(tmp_path) as server:
        assert server.address.startswith("http://127.0.0.1:")
        port = int(server.address.rstrip("/").rpartition(":")[2])
        listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        assert [
            row[1].partition(":")[0] for row in listening if row[1].endswith(f":{port:04X}") and row[3] == "0A"
        ] == ["0100007F"]
        for host, code in {"localhost": 200, f"127.0.0.1:{port}": 200, "a.example": 403}.items():
            asked = HTTPConnection("127.0.0.1", port, timeout=600)
            asked.request("GET", "/data/environment", headers={"Host": host})
            assert asked.getresponse().status == code


@pytest.mark.long
def test_where_tensorboard_ends_early_its_last_words_are_said(tmp_path: Path, ddpprof: Run) -> None:
    with one_run(tmp_path) as server:
        port = server.address.rstrip("/").rpartition(":")[2]
        done = ddpprof("tensorboard", GLOO_2, "--no-plugin", "--logdir", "others", "--port", port)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("ddpprof: TensorBoard ended unexpectedly with exit code ")
    assert port in line


@pytest.mark.long
def test_a_traced_run_is_a_log_directory(tmp_path: Path, ddpprof: Run) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    job = script("torchrun_plain.py")
    done = ddpprof("trace", "--out", "run", *QUICK, "--standalone", "--nproc-per-node=2", *job)
    assert done.returncode == 0, done.stderr
    assert "TensorBoard" not in done.stderr
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard" / "rank-1")).Reload()
    _, report = read(tmp_path / "run")
    found = {event.step: event.value for event in events.Scalars("ddp/step_ms")}
    steps = [*report["ranks"][1]["steps"], *report["ranks"][1]["light_steps"]]
    assert found == {step["step"]: float(np.float32(step["duration_ns"] / 1e6)) for step in steps}
    again = ddpprof(
        "trace", "--force", "--no-profiler", "--out", "run", *QUICK, "--standalone", "--nproc-per-node=2", *job
    )
    assert again.returncode == 0, again.stderr
    assert len(list((tmp_path / "run" / "tensorboard" / "rank-1").iterdir())) == 1
