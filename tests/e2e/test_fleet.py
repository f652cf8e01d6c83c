"""Many ranks: real processes, a real Dask cluster, real deaths; the report is always the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleets import make_fleet, make_traces
from jobs import DDPPROF, Run, environment
from ports import unused_port
from processes import children, is_gone, readers, started, wait_until

pytestmark = pytest.mark.e2e
NUM_RANKS = 48


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return make_fleet(tmp_path / "fleet", NUM_RANKS)


def kept_in(tmp_path: Path) -> list[Path]:
    """Entries of ranks that were read."""
    return list((tmp_path / "cache").rglob("*.zip"))


def test_ctrl_c_ends_all_processes_and_keeps_what_is_done(ddpprof: Run, fleet: Path, tmp_path: Path) -> None:
    def entries() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in kept_in(tmp_path)}

    with started(*DDPPROF, "report", fleet, "--jobs", "2", cwd=tmp_path) as process:
        wait_until(lambda: len(entries()) >= 2, "two ranks were read")
        pool = children(process.pid)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    kept = entries()
    said = (
        f"{len(kept)} of {NUM_RANKS} ranks were newly read, and their results are kept. Run the same command again to "
        "read the remaining ranks."
    )
    assert (process.returncode, out, err) == (130, "", f"ddpprof: interrupted. {said}\n")
    wait_until(lambda: all(map(is_gone, pool)), "all processes ended")
    assert 2 <= len(kept) < NUM_RANKS
    assert not list((tmp_path / "cache").rglob(".*.part"))
    assert ddpprof("report", fleet, "--format", "json").returncode == 0
    assert kept.items() <= entries().items(), "what was done is not done again"


@pytest.mark.long
def test_a_rank_whose_process_is_killed_is_read_again(ddpprof: Run, fleet: Path, tmp_path: Path) -> None:
    with started(*DDPPROF, "report", fleet, "--jobs", "2", "--format", "json", cwd=tmp_path) as process:
        wait_until(lambda: bool(kept_in(tmp_path)), "a rank was read")
        wait_until(lambda: bool(readers(process.pid)), "a process reads")
        os.kill(readers(process.pid)[0], signal.SIGKILL)
        out, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (0, "")
    assert out == ddpprof("report", fleet, "--format", "json", "--no-cache").stdout


@pytest.mark.long
def test_chosen_ranks_on_the_command_line(ddpprof: Run, fleet: Path) -> None:
    shown = ddpprof("report", fleet, "--only-ranks", "0-3,20").stdout
    assert f"only 5 of {NUM_RANKS} ranks were read, as requested" in shown
    assert (
        f"only 4 of {NUM_RANKS} ranks were read, as requested, evenly spaced"
        in ddpprof("report", fleet, "--sample", "4").stdout
    )


class Cluster:
    """A scheduler and two workers, each a process of its own, as `dask scheduler` and `dask worker` start them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, []
        self.address = f"tcp://127.0.0.1:{unused_port()}"
        host, port = self.address.removeprefix("tcp://").split(":")
        self.scheduler = self._start("scheduler", "scheduler", "--host", host, "--port", port)
        self.workers = [self.add_worker(f"worker-{number}") for number in range(2)]

    def add_worker(self, name: str) -> subprocess.Popen[bytes]:
        options = ["--nworkers", "1", "--nthreads", "1", "--no-nanny", "--name", name, "--host", "127.0.0.1"]
        worker = self._start(name, "worker", self.address, *options)
        wait_until(lambda: f"name: {name}" in (self.folder / "scheduler.log").read_text(), f"{name} came")
        return worker

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "distributed.cli.dask_" + command[0], *command[1:], "--no-dashboard"],
                cwd=self.folder, env=environment(), stdout=log, stderr=log,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    pytest.importorskip("distributed")
    made = Cluster(tmp_path)
    yield made
    made.stop()


def test_a_cluster_that_loses_a_worker_gives_the_same_report(
    ddpprof: Run, fleet: Path, cluster: Cluster, tmp_path: Path
) -> None:
    expected = ddpprof("report", fleet, "--format", "json", "--no-cache").stdout
    command = ["report", fleet.name, "--format", "json", "--scheduler", cluster.address]
    with started(*DDPPROF, *command, cwd=tmp_path) as process:
        wait_until(lambda: len(kept_in(tmp_path)) >= 8, "a sixth was read")
        cluster.workers[0].kill()
        assert len(kept_in(tmp_path)) < NUM_RANKS, "it was killed too late"
        out, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (0, "")
    assert out == expected
    assert len(kept_in(tmp_path)) == NUM_RANKS
    assert ddpprof(*command).stdout == expected, "what a cluster read is kept, too"


@pytest.mark.long
def test_a_scheduler_that_does_not_answer_is_one_line(ddpprof: Run, fleet: Path) -> None:
    done = ddpprof("report", fleet, "--scheduler", "tcp://127.0.0.1:9")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ddpprof: no Dask scheduler answers at tcp://127.0.0.1:9: ")
    assert done.stderr.count("\n") == 1
    assert "nonsense://x is not the address" in ddpprof("report", fleet, "--scheduler", "nonsense://x").stderr


def report_with_peaks(traces: Path, cwd: Path) -> tuple[str, int, int]:
    """The JSON, and the most memory that the process and any of its readers held, in MB."""
    out = cwd / "report.json"
    command = ["report", traces, "--no-cache", "--jobs", "2", "--out", out]
    own, of_readers = 0, 0
    with started(*DDPPROF, *command, cwd=cwd) as process:
        while process.poll() is None:
            own = max(own, peak_mb(process.pid))
            of_readers = max([of_readers, *map(peak_mb, readers(process.pid))])
            time.sleep(0.05)
    assert process.returncode == 0
    return out.read_text(), own, of_readers


def peak_mb(pid: int) -> int:
    """0 where there is no such process any more."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM:")), 0)


@pytest.mark.long
@pytest.mark.parametrize("num_ranks", [250, 1000])
def test_many_ranks_on_one_machine_and_on_a_cluster_that_loses_a_worker(
    num_ranks: int, cluster: Cluster, tmp_path: Path
) -> None:
    """Whoever reads holds one rank; whoever reports, summaries."""
    many = make_traces(tmp_path / "many", num_ranks)
    _, _, reader_of_few = report_with_peaks(make_traces(tmp_path / "few", 50), tmp_path)
    expected, own, reader = report_with_peaks(many, tmp_path)
    assert reader < 1.2 * reader_of_few
    assert own < 250
    ranks = json.loads(expected)["ranks"]
    assert [rank["rank"] for rank in ranks] == list(range(num_ranks))
    with started(*DDPPROF, "report", many, "--format", "json", "--scheduler", cluster.address, cwd=tmp_path) as one:
        cache = Path(os.environ["XDG_CACHE_HOME"], "ddpprof")
        wait_until(lambda: len(list(cache.rglob("rank-*.zip"))) >= num_ranks // 2, "half were read", 300)
        cluster.workers[0].kill()
        out, err = one.communicate(timeout=600)
    assert (one.returncode, err) == (0, "")
    assert out == expected


@pytest.mark.long
def test_a_scheduler_that_dies_is_one_line(fleet: Path, cluster: Cluster, tmp_path: Path) -> None:
    with started(*DDPPROF, "report", fleet, "--scheduler", cluster.address, cwd=tmp_path) as process:
        wait_until(lambda: bool(kept_in(tmp_path)), "a rank was read")
        cluster.scheduler.kill()
        out, err = process.communicate(timeout=600)
    assert (process.returncode, out) == (2, "")
    assert err.startswith(f"ddpprof: lost the connection to the Dask scheduler at {cluster.address}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.long)])
def test_readers_end_with_whoever_waits_for_them(fleet: Path, tmp_path: Path, number: signal.Signals) -> None:
    with started(*DDPPROF, "report", fleet, "--jobs", "2", cwd=tmp_path) as process:
        wait_until(lambda: bool(kept_in(tmp_path)), "a rank was read")
        pool = readers(process.pid)
        process.send_signal(number)
        assert process.wait(600) == (143 if number == signal.SIGTERM else -9)
    assert len(pool) == 2
    wait_until(lambda: all(map(is_gone, pool)), "all processes ended")


@pytest.mark.long
def test_a_reader_of_the_report_that_goes_is_no_failure(fleet: Path, tmp_path: Path) -> None:
    command = f"{' '.join(DDPPROF)} report {fleet} --format json | head -c 10; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], check=False, cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, '{\n  "forma', "")
