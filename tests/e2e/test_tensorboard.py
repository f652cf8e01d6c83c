"""How `ddpprof tensorboard` runs and ends, and what training writes for TensorBoard."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import QUICK, Run, outside_checkout, script
from tensorboards import GLOO_2, NCCL, Server, read, serving

from ddpprof.model.pulse import StepFlag
from ddpprof.model.tables import rows_of
from ddpprof.monitor.pulse_files import read_pulses

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
            if "tensorboard_app" in command and str(folder) in command:
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
    assert line.startswith("ddpprof: TensorBoard ended by itself, with exit code ")
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


LIVE = """
import hashlib, sys, time, torch, torch.distributed as dist, ddpprof
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(dist.get_rank())
model = DDP(torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    for _ in range(60):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()

if sys.argv[1] == "plain":
    train()
else:
    from torch.utils.tensorboard import SummaryWriter

    window = dict(skip_first=2, cost_steps=4, steps=3)
    with SummaryWriter("logs") as writer, ddpprof.profile("run", **window, tensorboard=writer):
        train()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
sys.stdout.write(f"{digest}\\n")
sys.stdout.flush()
time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
dist.destroy_process_group()
"""


@pytest.mark.long
def test_live_scalars_are_of_every_step_and_change_nothing(
    tmp_path: Path, torchrun: Run, report: Callable[[str], dict[str, Any]]
) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (tmp_path / "train.py").write_text(LIVE)
    plain, live = (torchrun("train.py", how) for how in ("plain", "live"))
    assert (plain.returncode, live.returncode) == (0, 0), plain.stderr + live.stderr
    assert len({*plain.stdout.split(), *live.stdout.split()}) == 1, "the same parameters, bit by bit"
    assert "ddpprof" not in outside_checkout(live.stderr)
    reported = {rank["rank"]: rank for rank in report("run")["ranks"]}
    pulses = read_pulses(tmp_path / "run")
    assert sorted(pulses) == [0, 1]
    for rank, pulse in pulses.items():
        events = accumulator.EventAccumulator(str(tmp_path / "logs" / f"ddpprof-rank-{rank}")).Reload()
        found = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
        lengths = dict(zip(pulse.steps.number, pulse.steps.length_ns, strict=True))
        for step in reported[rank]["light_steps"]:  # which do not contain what ddpprof does between steps
            assert 0 < step["duration_ns"] < lengths[step["step"]]
        steps = rows_of(pulse.steps, pulse.steps.flags & StepFlag.RECORDED == 0)
        assert steps.number.tolist() == list(range(60 - len(steps), 60)), "all steps after the recorded ones"
        assert len(steps) > 30
        for name in ("length", "forward", "backward", "optimizer", "wait", "own"):
            values = [float(np.float32(ns / 1e6)) for ns in getattr(steps, f"{name}_ns")]
            tag = f"ddp_live/{'step' if name == 'length' else name}_ms"
            assert found[tag] == list(zip(steps.number, values, strict=True)), tag
