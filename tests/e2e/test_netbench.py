"""`ddpprof netbench` on real ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from statistics import median

import pytest
from jobs import DDPPROF, TORCHRUN, Run, environment
from processes import children, started, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

QUICK = ["--sizes", "4K,64K,1M", "--seconds", "0.1"]


def rows(printed: str) -> list[list[str]]:
    return [line.split() for line in printed.splitlines() if line.strip()[:1].isdigit()]


def test_two_ranks_of_its_own(ddpprof: Run, tmp_path: Path) -> None:
    done = ddpprof("netbench", "--nproc-per-node", "2", *QUICK, "-o", "network.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("all-reduce · float32 · 2 ranks · 1 host · gloo · cpu") == 1
    assert "Wrote network.json." in done.stdout
    bench = json.loads((tmp_path / "network.json").read_text())
    assert [entry["num_bytes"] for entry in bench["sizes"]] == [1 << 12, 1 << 16, 1 << 20]
    assert [entry["num_bytes"] for entry in bench["concurrent"]] == [1 << 20]
    assert len(bench["hosts"]) == bench["world_size"] == 2
    (beside,) = bench["beside"]
    assert beside["num_bytes"] == 1 << 20
    assert len(beside["taken_ns"]) == len(beside["lasted_ns"]) > 1
    assert min(beside["taken_ns"]) >= 0 < min(beside["lasted_ns"])
    for row, entry in zip(rows(done.stdout), bench["sizes"], strict=False):  # those of the first table
        assert all(s <= most for s, most in zip(entry["shortest_ns"], entry["longest_ns"], strict=True))
        assert len(entry["cpu_ns"]) == 2
        assert min(entry["cpu_ns"]) > 0
        assert row[:2] == [str(entry["num_bytes"]), str(len(entry["longest_ns"]))]
        bytes_per_ns = entry["num_bytes"] / median(entry["longest_ns"])  # of two ranks' all-reduce, also on the bus
        assert [float(row[5]), float(row[6])] == [pytest.approx(bytes_per_ns, rel=0.01)] * 2


@pytest.mark.parametrize(
    "collective",
    ["all_gather", "reduce_scatter", "broadcast"],
)
def test_inside_a_job(collective: str, tmp_path: Path) -> None:
    own = [*DDPPROF, "netbench", *QUICK, "--collective", collective, "--out", "network.json"]
    done = subprocess.run(
        [*TORCHRUN, "--standalone", "--nproc-per-node=3", "--no-python", *own],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ddpprof: " not in done.stderr
    assert done.stdout.count(f"{collective.replace('_', '-')} · float32 · 3 ranks") == 1
    bench = json.loads((tmp_path / "network.json").read_text())
    whole = {"broadcast": [1 << 12, 1 << 16, 1 << 20]}.get(collective, [4092, 65532, 1048572])
    assert [entry["num_bytes"] for entry in bench["sizes"]] == whole
    factor = 1 if collective == "broadcast" else 2 / 3
    for row in rows(done.stdout):
        assert float(row[6]) == pytest.approx(float(row[5]) * factor, rel=0.01)


def test_the_first_size_that_takes_too_long_is_the_last(ddpprof: Run, tmp_path: Path) -> None:
    options = ["--sizes", "4M-64M", "--seconds", "0.0001", "--out", "network.json"]
    done = ddpprof("netbench", "--nproc-per-node", "2", *options)
    assert (done.returncode, done.stderr) == (0, "")
    bench = json.loads((tmp_path / "network.json").read_text())
    assert [len(entry["longest_ns"]) for entry in bench["sizes"]] == [1]
    assert bench["left_out"] == [8 << 20, 16 << 20, 32 << 20, 64 << 20]
    assert "Left out because 4194304 bytes took too long: 8388608 bytes and more." in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--nproc-per-node", "2", "--backend", "smoke"], "this torch build has no backend smoke. Available backends:"),
        (
            ["--nproc-per-node", "1"],
            "there is only one rank, so there is no communication to measure. Start at least two ranks.",
        ),
        (
            ["--nproc-per-node", "many"],
            "argument --nproc-per-node/--nproc_per_node/--nproc: many is neither a number of ranks",
        ),
    ],
)
def test_what_cannot_be_measured_is_one_line(options: list[str], said: str, ddpprof: Run) -> None:
    done = ddpprof("netbench", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"ddpprof: {said}")
    assert done.stderr.count("\n") == 1


def listening(processes: list[int]) -> set[str]:
    """The addresses, in hexadecimal, on which they accept connections."""
    try:
        files = [file.readlink() for process in processes for file in Path(f"/proc/{process}/fd").iterdir()]
    except (FileNotFoundError, ProcessLookupError):  # a file was closed, or a process has just ended
        return set()
    inodes = {file.name.removeprefix("socket:[").removesuffix("]") for file in files}
    lines = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    return {line[1].split(":")[0] for line in lines if line[3] == "0A" and line[9] in inodes}


def test_a_rank_that_dies_and_nobody_else_can_reach_the_ranks(tmp_path: Path) -> None:
    options = ["netbench", "--nproc-per-node", "2", "--sizes", "1M", "--seconds", "300"]
    with started(*DDPPROF, *options, cwd=tmp_path) as job:
        wait_until(lambda: listening(children(job.pid)) == {"0100007F"}, "listened on the loopback alone")
        *_, rank_1 = (one for one in children(job.pid) if Path(f"/proc/{one}/comm").read_text() != "cat\n")
        os.kill(rank_1, signal.SIGKILL)  # and not the child that only shows whether a signal was sent to the group
        _, said = job.communicate(timeout=600)
    assert (job.returncode, said) == (2, "ddpprof: rank 1 was terminated by SIGKILL.\n")
