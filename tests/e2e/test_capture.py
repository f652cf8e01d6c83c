"""Captures of running jobs: all ranks profile the same steps, as often as somebody asks."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hosts import NoHosts, linked_hosts
from jobs import DDPPROF, Run, fingerprint, script
from private_disks import ON_A_DISK_OF_ITS_OWN, own_words
from processes import started, wait_until
from watched_jobs import NEEDS_SHARED_MEMORY, TWO, is_training

from ddpprof import rundir
from ddpprof.cli.capture import ask
from ddpprof.model.json_files import CaptureRequest
from ddpprof.model.pulse import StepFlag
from ddpprof.monitor.pulse_files import read_pulse

Report = Callable[[str], dict[str, Any]]

pytestmark = [pytest.mark.e2e, NEEDS_SHARED_MEMORY]


def steps_of(report: dict[str, Any]) -> list[list[int]]:
    return [[step["step"] for step in rank["steps"]] for rank in report["ranks"]]


def test_all_ranks_capture_the_same_steps(ddpprof: Run, torchrun: Run, report: Report, tmp_path: Path) -> None:
    long = script("long_training.py", "--steps", "900")
    with started(*DDPPROF, "watch", "--quiet", "--out", "run", *TWO, *long, cwd=tmp_path) as job:
        wait_until(lambda: is_training(tmp_path / "run", 10), "the training to begin")
        for number, options in enumerate((["--steps", "3"], ["--steps", "2", "--no-profiler"]), 1):
            asked_at = read_pulse(tmp_path / "run", 0).state.step
            captured = ddpprof("capture", "run", *options)
            assert (captured.returncode, captured.stdout) == (
                0,
                f"Wrote run/capture-{number}. View it with: ddpprof report run/capture-{number}\n",
            )
            first = int(captured.stderr.split("profile steps ")[1].split()[0])
            assert asked_at < first <= asked_at + 2 + 100, "2 steps, and as many as fit into the start of the command"
        out, said = job.communicate(timeout=600)
    assert job.returncode == 0, said
    first, second = (report(f"run/capture-{number}") for number in (1, 2))
    assert steps_of(first)[0] == steps_of(first)[1]
    assert len(steps_of(first)[0]) == 3
    assert first["buckets"]
    light = [[step["step"] for step in rank["light_steps"]] for rank in second["ranks"]]
    assert light[0] == light[1]
    assert len(light[0]) == 2
    watched = read_pulse(tmp_path / "run", 0).steps
    flags = dict(zip(watched.number.tolist(), watched.flags.tolist(), strict=True))
    assert all(flags[step] & StepFlag.RECORDED for step in steps_of(first)[0])
    assert sorted(rundir.captures_in(tmp_path / "run")) == report("run")["whole_run"]["captures"] == [1, 2]
    plain = torchrun(*long, "--sleep-ms", "0")
    assert [line for line in out.splitlines() if line.startswith("params")] == [fingerprint(plain)]


@pytest.mark.long
def test_a_capture_waits_for_a_slow_down(ddpprof: Run, report: Report, tmp_path: Path) -> None:
    long = script("long_training.py", "--steps", "1000000", "--sleep-ms", "40", "--slower-from", "200")
    with started(*DDPPROF, "watch", "--quiet", "--out", "run", *TWO, *long, cwd=tmp_path) as job:
        wait_until(lambda: is_training(tmp_path / "run", 10), "the training to begin")
        captured = ddpprof("capture", "run", "--when", "step>4x", "--steps", "2")
        os.kill(job.pid, signal.SIGTERM)
        job.communicate(timeout=600)
        assert captured.returncode == 0, captured.stderr
    assert min(steps_of(report("run/capture-1"))[0]) > 200


@pytest.mark.long
def test_nobody_takes_requests(ddpprof: Run, tmp_path: Path) -> None:
    fingerprint(ddpprof("watch", "--quiet", "--out", "run", *TWO, *script("torchrun_plain.py")))
    refused = ddpprof("capture", "run")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("ddpprof: the job in run is over.")
    assert ddpprof("capture", "nothing").stderr == (
        "ddpprof: nothing is not a run: it has no run.json. Give the --out directory of ddpprof watch or trace.\n"
    )


@pytest.mark.long
def test_many_captures_in_a_row(report: Report, tmp_path: Path) -> None:
    """Each has the same steps on both ranks, which begin within two steps and a second of the request."""
    number = int(os.environ.get("DDPPROF_CAPTURES", "10"))
    long = script("long_training.py", "--steps", "1000000", "--sleep-ms", "5")
    with started(*DDPPROF, "watch", "--quiet", "--out", "run", *TWO, *long, cwd=tmp_path) as job:
        wait_until(lambda: is_training(tmp_path / "run", 10), "the training to begin")
        wait_until((tmp_path / "run" / "board").exists, "the ranks to find each other")
        time.sleep(1)
        for _ in range(number):
            pulse, asked_ns = read_pulse(tmp_path / "run", 0), time.time_ns()
            *_, last = ask(tmp_path / "run", CaptureRequest(steps=2, profiler=False))
            assert last.folder is not None
            steps = read_pulse(tmp_path / "run", 0).steps
            begun_ns = int(steps.start_ns[steps.number == last.first_step][0])
            usual_ns = int(np.median(pulse.steps.length_ns))
            assert begun_ns - asked_ns < 2 * usual_ns + 1e9
        os.kill(job.pid, signal.SIGTERM)
        job.communicate(timeout=600)
    for one in range(1, number + 1):
        light = [[step["step"] for step in rank["light_steps"]] for rank in report(f"run/capture-{one}")["ranks"]]
        assert light[0] == light[1]
        assert len(light[0]) == 2


@pytest.mark.long
def test_two_hosts_without_a_shared_folder(ddpprof: Run, report: Report, tmp_path: Path) -> None:
    """The request reaches the other host through the job's own store."""
    out = tmp_path / "runs"
    out.mkdir()
    enough, said_last = tmp_path / "enough", tmp_path / "said"
    long = script("long_training.py", "--steps", "1000000", "--sleep-ms", "5", "--until", str(enough))
    watch = " ".join(map(str, [*DDPPROF, "watch", "--quiet", "--out", out / "run", *long]))
    capture = " ".join(map(str, [*DDPPROF, "capture", out / "run", "--steps", "3"]))
    until_it_answers = (
        f"for _ in $(seq 60); do sleep 2; {capture} 2>{said_last} && break; done; cat {said_last} >&2; touch {enough}"
    )
    try:
        with linked_hosts(2, "1gbit") as hosts:
            commands = [["bash", "-c", watch], ["bash", "-c", f"({until_it_answers}) & {watch}; wait"]]
            ranks = [
                hosts.start(
                    host,
                    ["unshare", "-m", "bash", "-c", ON_A_DISK_OF_ITS_OWN, out, f"node{host}", *commands[host == 0]],
                    tmp_path,
                )
                for host in range(2)
            ]
            said = [rank.communicate(timeout=600) for rank in ranks]
    except NoHosts as reason:
        pytest.skip(f"no hosts here: {reason}")
    if any("mount: " in words for _, words in said):
        pytest.skip("no file system can be mounted here")
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert "Wrote " in said[0][0], [own_words(words) for _, words in said]
    done = ddpprof("report", "node0/capture-1", "node1/capture-1", "--format", "json")
    assert done.returncode == 0, done.stderr
    shown = steps_of(json.loads(done.stdout))
    assert shown[0] == shown[1]
    assert len(shown[0]) == 3
