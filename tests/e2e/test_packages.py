"""What is published: an sdist and a wheel that the package index takes; the wheel works in an empty environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import ddpprof

CHECKOUT = Path(__file__).parents[2]

pytestmark = pytest.mark.long


def run(*command: str | Path, cwd: Path = CHECKOUT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The sdist, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("packages")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, CHECKOUT)
    return sorted(folder.iterdir())


def test_the_package_index_takes_them(packages: list[Path]) -> None:
    version = ddpprof.__version__
    assert [path.name for path in packages] == [f"ddpprof-{version}-py3-none-any.whl", f"ddpprof-{version}.tar.gz"]
    checked = run(sys.executable, "-m", "twine", "--no-color", "check", "--strict", *packages)
    assert checked.count("PASSED") == 2


def test_the_wheel_works_in_an_empty_environment(packages: list[Path], tmp_path: Path) -> None:
    """Without torch, and with the oldest pip that this Python brings."""
    run(sys.executable, "-m", "venv", tmp_path / "empty")
    python = tmp_path / "empty" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "-c", CHECKOUT / "constraints.txt", packages[0])
    program = tmp_path / "empty" / "bin" / "ddpprof"
    assert run(program, "--version", cwd=tmp_path).split()[-1] == ddpprof.__version__
    screen = run(program, "report", CHECKOUT / "sample_traces" / "convnet-gloo-2ranks", "--no-cache", cwd=tmp_path)
    assert "A step takes" in screen
    skill = next((tmp_path / "empty").rglob("ddpprof/SKILL.md"))
    assert skill.read_text() == (CHECKOUT / "skills" / "ddpprof" / "SKILL.md").read_text()
    assert run(python, "-c", "import importlib.util as u; print(u.find_spec('torch'))", cwd=tmp_path).strip() == "None"
