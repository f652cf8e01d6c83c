"""However a job is launched, every rank of it is recorded."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import DDPPROF, QUICK, TORCHRUN, Run, environment, outside_checkout, script

Report = Callable[[str], dict[str, Any]]


def assert_recorded(report: dict[str, Any], ranks: int = 2) -> None:
    assert report["missing"] == []
    assert [rank["rank"] for rank in report["ranks"]] == list(range(ranks))
    for rank in report["ranks"]:
        assert [step["step"] for step in rank["steps"]] == [7, 8, 9]
        assert len(rank["light_steps"]) == 4
        assert all(step["comm_ns"] > 0 and step["compute_ns"] > 0 for step in rank["steps"])


@pytest.mark.parametrize("name", ["spawn_env_inside.py", "multiprocessing_fork.py"])
def test_scripts_that_start_their_own_ranks(name: str, ddpprof: Run, report: Report) -> None:
    done = ddpprof("trace", "--out", "run", *QUICK, *script(name))
    assert done.returncode == 0, done.stderr
    assert "ddpprof: " not in outside_checkout(done.stderr)
    assert_recorded(report("run"))


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.long), 2])
def test_scripts_that_expect_torchrun(ranks: int, ddpprof: Run, report: Report) -> None:
    options = ["--nproc-per-node", str(ranks), "--standalone"]
    done = ddpprof("trace", "--out", "run", *QUICK, *options, *script("torchrun_plain.py"))
    assert done.returncode == 0, done.stderr
    assert_recorded(report("run"), ranks)


@pytest.mark.parametrize(
    "how", ["torchrun", *(pytest.param(how, marks=pytest.mark.long) for how in ("module", "bash"))]
)
def test_any_other_command(how: str, tmp_path: Path, ddpprof: Run, report: Report) -> None:
    (tmp_path / "job.sh").write_text('exec "$@"\n')
    (tmp_path / "pkg.py").write_text(Path(script("spawn_env_inside.py")[0]).read_text())
    torchrun = [*TORCHRUN, "--standalone", "--nproc-per-node=2", *script("torchrun_plain.py")]
    command = {
        "torchrun": torchrun,
        "module": [sys.executable, "-m", "pkg"],
        "bash": ["bash", "job.sh", *torchrun],
    }[how]
    done = ddpprof("trace", "--out", "run", *QUICK, "--", *command)
    assert done.returncode == 0, done.stderr
    assert_recorded(report("run"))


@pytest.mark.long
@pytest.mark.parametrize(("options", "is_kept"), [([], True), (["--no-command"], False)])
def test_no_word_of_the_command_is_kept_unless_wanted(
    options: list[str], is_kept: bool, tmp_path: Path, ddpprof: Run, report: Report
) -> None:
    torchrun = [*TORCHRUN, "--standalone", "--nproc-per-node=2", *script("torchrun_plain.py")]
    done = ddpprof("trace", "--out", "run", *QUICK, *options, "--", "env", "OF_OURS=xyzzy", *torchrun)
    assert done.returncode == 0, done.stderr
    assert_recorded(report("run"))
    kept = [
        gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content for content in contents(tmp_path / "run")
    ]
    assert any(b"xyzzy" in content and b"--standalone" in content for content in kept) is is_kept
    assert any(b"xyzzy" in content or b"--standalone" in content for content in kept) is is_kept


def contents(run: Path) -> list[bytes]:
    return [path.read_bytes() for path in run.rglob("*") if path.is_file()]


def test_inside_a_job_it_only_instruments(tmp_path: Path, report: Report) -> None:
    inner = [*DDPPROF, "trace", "--out", "run", *QUICK, *script("torchrun_plain.py")]
    done = subprocess.run(
        [*TORCHRUN, "--standalone", "--nproc-per-node=2", "--no-python", *inner],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Findings" not in done.stdout + done.stderr
    assert done.stderr.count("ddpprof report run") == 1
    assert_recorded(report("run"))


@pytest.mark.parametrize("name", ["torchrun_plain.py", pytest.param("gan.py", marks=pytest.mark.long)])
def test_a_script_without_its_launcher_gets_one_line(name: str, ddpprof: Run) -> None:
    done = ddpprof("trace", "--out", "run", *script(name, "--steps", "5"))
    said = [line for line in done.stderr.splitlines() if line]
    assert done.returncode == 1
    assert len(said) == 1
    assert "RANK is not set" in said[0]
    assert said[0].endswith(f"ddpprof trace --nproc-per-node 2 {script(name)[0]} --steps 5")


def test_a_script_that_is_not_there(ddpprof: Run) -> None:
    done = ddpprof("trace", "nowhere.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "ddpprof: there is no script nowhere.py. To run a command, write -- before the command: -- nowhere.py …\n"
    )
