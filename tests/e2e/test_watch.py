"""Whole runs watched: training is unchanged, and each rank leaves its pulse, however it ends."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from jobs import DDPPROF, Run, fingerprint, on_ranks, outside_checkout, script, without_torch_aborting
from processes import started, wait_until
from pulses import no_samples
from watched_jobs import NEEDS_SHARED_MEMORY, TWO, is_training, pulses

from ddpprof.model.pulse import Ended, Pulse
from ddpprof.model.tables import rows_of
from ddpprof.model.whole_run import StepPart
from ddpprof.monitor.causes import RankChange, portrait, reason_for
from ddpprof.rundir import pulses_in

pytestmark = [pytest.mark.e2e, NEEDS_SHARED_MEMORY]


def left_in_memory(run: Path) -> list[Path]:
    return [Path(pulse.identity.shared) for pulse in pulses(run) if Path(pulse.identity.shared).exists()]


def test_watching_changes_nothing_and_tells_of_every_step(torchrun: Run, ddpprof: Run, tmp_path: Path) -> None:
    plain = without_torch_aborting(lambda: torchrun(*script("torchrun_plain.py")))
    watched = ddpprof("watch", "--out", "run", *TWO, *script("torchrun_plain.py"))
    assert fingerprint(watched) == fingerprint(plain)
    assert "View it with: ddpprof report run" in watched.stderr
    assert [pulse.state.ended for pulse in pulses(tmp_path / "run")] == [Ended.FINISHED] * 2
    for pulse in pulses(tmp_path / "run"):
        assert pulse.steps.number.tolist() == list(range(3, 30))
        assert (pulse.steps.length_ns > 0).all()
        assert (pulse.steps.wait_ns[1:] >= 0).all()
        parts = (pulse.steps.data_ns, pulse.steps.forward_ns, pulse.steps.backward_ns, pulse.steps.optimizer_ns)
        assert all((part > 0).all() for part in parts)
        assert (sum(parts) <= pulse.steps.length_ns).all()
    assert left_in_memory(tmp_path / "run") == []


def test_a_job_that_swallows_an_error_has_not_ended_well(ddpprof: Run) -> None:
    watched = ddpprof("watch", "--out", "run", *TWO, *script("failing.py", "--how", "swallow"))
    assert watched.returncode == 0, watched.stderr
    said = "raining ended without an error, but rank 1 ran 1 backward pass fewer than rank 0"
    assert said in watched.stderr
    diagnosed = ddpprof("diagnose", "run")
    assert (diagnosed.returncode, said in diagnosed.stderr) == (0, True), diagnosed.stderr


@pytest.mark.long
def test_a_job_that_waits_for_a_rank_that_was_not_started(tmp_path: Path) -> None:
    """Two ranks of three; the launcher speaks after a minute."""
    (path,) = script("torchrun_plain.py")
    ranks = [f"RANK={rank} LOCAL_RANK={rank} {sys.executable} {path} &" for rank in (0, 1)]
    (tmp_path / "launch.sh").write_text("\n".join([*ranks, "wait"]))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "3"}
    with started(*DDPPROF, "watch", "--out", "run", "--", "sh", "launch.sh", cwd=tmp_path, **address) as watching:
        assert watching.stderr is not None
        lines = (line for line in watching.stderr if "no rank has begun to train" in line)
        line = next(lines)
        watching.send_signal(signal.SIGINT)
        watching.communicate()
    assert "WORLD_SIZE is 3, so all of these ranks wait for rank 2: start it" in line
    assert "Started on this host: rank 0 (process " in line


@pytest.mark.long
def test_a_traced_job_is_watched_to_its_end(ddpprof: Run, tmp_path: Path) -> None:
    job = on_ranks(2, *script("torchrun_plain.py"))
    traced = ddpprof("trace", "--quiet", "--no-profiler", "--out", "run", *job)
    fingerprint(traced)
    assert [pulse.state.num_steps for pulse in pulses(tmp_path / "run")] == [30, 30]
    unwatched = ddpprof("trace", "--quiet", "--no-pulse", "--out", "other", *job)
    fingerprint(unwatched)
    assert pulses_in(tmp_path / "other") == []


@pytest.mark.long
def test_a_watched_block(two_ranks: Run, tmp_path: Path) -> None:
    text = Path(*script("torchrun_plain.py")).read_text(encoding="utf-8")
    begin, end = "import torch\n", "    main()\n"
    assert text.count(begin) == text.count(end) == 1
    inside = "    with ddpprof.watch('run'):\n        main()\n"
    (tmp_path / "train.py").write_text(text.replace(begin, f"import ddpprof\n{begin}").replace(end, inside))
    done = two_ranks("train.py")
    fingerprint(done)
    assert "ddpprof" not in outside_checkout(done.stderr)
    assert [pulse.state.num_steps for pulse in pulses(tmp_path / "run")] == [30, 30]


@pytest.mark.parametrize(
    ("phase", "options", "part"),
    [
        pytest.param("other", [], StepPart.OTHER, id="others-wait-in-the-broadcast-of-buffers", marks=pytest.mark.long),
        pytest.param(
            "other",
            ["--averages-loss"],
            StepPart.OTHER,
            id="others-wait-in-a-collective-of-the-script",
            marks=pytest.mark.long,
        ),
        pytest.param("forward", ["--averages-loss"], StepPart.FORWARD, id="others-wait-in-backward"),
    ],
)
@pytest.mark.long
def test_own_time_is_without_waiting_wherever_a_rank_waits(
    phase: str, options: list[str], part: StepPart, ddpprof: Run, tmp_path: Path
) -> None:
    slow = ["--slow", "1", "--phase", phase, "--seconds", "0.1", "--since", "60", "--steps", "100"]
    done = ddpprof("watch", "--out", "run", *on_ranks(2, *script("straggler.py", *slow, *options)))
    assert done.returncode == 0, done.stderr
    changes = {}
    for pulse in pulses(tmp_path / "run"):
        before, after = (portrait(rows_of(pulse.steps, rows), no_samples()) for rows in _before_and_after(pulse, 60))
        assert before is not None
        assert after is not None
        changes[pulse.identity.rank] = RankChange(before, after)
    reason = reason_for(changes)
    assert (reason.ranks, reason.part) == ((1,), part)
    assert changes[1].own_ns == pytest.approx(100e6, rel=0.3)
    assert changes[0].own_ns < 20e6
    assert changes[0].grew("wait_ns") == pytest.approx(100e6, rel=0.3)


def _before_and_after(pulse: Pulse, step: int) -> tuple[Any, Any]:
    return pulse.steps.number < step, pulse.steps.number > step


@pytest.mark.parametrize("whom", ["rank", "everybody"])
@pytest.mark.long
def test_pulses_survive_a_kill(whom: str, ddpprof: Run, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with started(*DDPPROF, "watch", "--out", "run", *TWO, *script("long_training.py"), cwd=tmp_path) as job:
        wait_until(lambda: is_training(run, 20), "the training to begin")
        ranks = [pulse.identity.pid for pulse in pulses(run)]
        for process in ranks[1:] if whom == "rank" else [job.pid, *ranks]:
            os.kill(process, signal.SIGKILL)
        job.communicate(timeout=600)
    before = [pulse.state.num_steps for pulse in pulses(run)]
    assert all(num_steps >= 20 for num_steps in before)
    assert pulses(run)[1].state.ended == Ended.NOT_YET
    if whom == "rank":
        assert left_in_memory(run) == [], "the launcher brings them into the run directory"
    else:
        fingerprint(ddpprof("watch", "--quiet", "--out", "next", *TWO, *script("torchrun_plain.py")))
        assert left_in_memory(run) == [], "the next job does"
    assert [pulse.state.num_steps for pulse in pulses(run)] == before
