"""A reader who types what the documentation shows, in a folder with the files that it speaks of."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml
from documents import CHECKOUT, Block
from jobs import SCRIPTS
from netbenches import netbench
from ports import unused_port

SAMPLES = CHECKOUT / "sample_traces"
CONVNET, TRANSFORMER = SAMPLES / "convnet-gloo-2ranks", SAMPLES / "transformer-gloo-4ranks"
READERS = Path(__file__).parent / "readers"
TIMEOUT_S = 600
_SMALLER = {'"--batch-size", type=int, default=16': 4, '"--width", type=int, default=32': 4}
"""defaults of the demo's training, for short steps"""
_LONGER = {'"--steps", type=int, default=40': 400}
"""for experiments, which end it themselves"""
_SHORTENED = re.compile(r"\bddpprof (overhead|scale|sweep|tune) ")
_SHORT = "--rounds 1 --timed-steps 3 "


def make_folder(folder: Path) -> None:
    """Put the reader's files into a folder."""
    without_pictures = shutil.ignore_patterns("pictures", "*.py")
    shutil.copytree(SAMPLES, folder / "sample_traces", ignore=without_pictures)
    runs = folder / "runs"
    standing_in = {"a": CONVNET, "b": TRANSFORMER, "c": CONVNET, "d": TRANSFORMER}
    for name, run in {**standing_in, "demo-convnet": CONVNET, "demo-transformer": TRANSFORMER}.items():
        shutil.copytree(run, runs / name)
    for name in ("before", "after"):
        for number in range(1, 7):
            shutil.copytree(CONVNET, runs / name / f"run-{number}")
    sizes = [{**size, "cpu_ns": size["cpu_ns"][:2]} for size in netbench()["sizes"]]
    sizes.append({**sizes[-1], "num_bytes": 16_000_000, "longest_ns": [6_000_000], "shortest_ns": [5_900_000]})
    two_ranks = netbench(world_size=2, hosts=["a", "b"], sizes=sizes, concurrent=[])
    for name in ("network.json", "faster.json"):
        (folder / name).write_text(json.dumps(two_ranks))
    (folder / "train.py").write_text(_training(_SMALLER))
    (folder / "base").mkdir()
    (folder / "base" / "train.py").write_text(_training(_SMALLER))


def _training(defaults: Mapping[str, int]) -> str:
    text = (CHECKOUT / "ddpprof" / "demo" / "train_convnet.py").read_text(encoding="utf-8")
    for default, value in defaults.items():
        assert default in text
        text = text.replace(default, f"{default.rpartition('=')[0]}={value}", 1)
    return text


def type_in(block: Block, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the block there, and return what it printed."""
    if _SHORTENED.search(block.text):
        (folder / "train.py").write_text(_training(_SMALLER | _LONGER))
    if script := block.notes.get("train.py"):
        shutil.copy(SCRIPTS / script, folder / "train.py")
    if block.language == "python":
        before = ""
        if given := block.notes.get("with"):
            shutil.copy(READERS / given, folder / given)
            before = f"from {Path(given).stem} import *\n"
        (folder / "example.py").write_text(before + block.text)
        return _run([sys.executable, "example.py"], folder)
    text = block.text if block.language == "sh" else _steps_of_workflow(block.text)
    return _run(["bash", "-euo", "pipefail", "-c", _SHORTENED.sub(rf"\g<0>{_SHORT}", text)], folder)


def _steps_of_workflow(text: str) -> str:
    """Return the commands of a workflow, less those that prepare its machine, with fewer runs of fewer steps."""
    (job,) = yaml.safe_load(text)["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    commands = [command for command in commands if not command.startswith(("pip ", "git "))]
    assert commands
    return re.sub(r"--steps \d+", "--steps 3", re.sub(r"--repeat \d+", "--repeat 2", "\n".join(commands)))


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    tools = folder / ".tools"
    tools.mkdir(exist_ok=True)
    (tools / "ddpprof").write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m ddpprof "$@"\n')
    (tools / "ddpprof").chmod(0o755)
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")},
        "PATH": os.pathsep.join((str(tools), str(Path(sys.executable).parent), os.environ["PATH"])),
        "HOME": str(folder),
        "COLUMNS": "80",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PET_MASTER_PORT": str(unused_port()),  # torchrun's own port may be taken
    }
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
