"""Scripts that others published, in packages and tutorials: ddpprof changes nothing, and says nothing false of them."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
from jobs import DDPPROF, SCRIPTS, TORCHRUN, environment, without_torch_aborting
from processes import wait_until
from shared import JOBS

pytestmark = pytest.mark.long
Report = Callable[[str], dict[str, Any]]
OFFLINE = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
TWO_RANKS = ["--standalone", "--nproc-per-node=2"]
FALSE_OF_ALL = {"same-samples", "set-epoch-never-called", "reduces-every-pass", "copies-differ", "same-checkpoint"}


@dataclass(frozen=True)
class Published:
    needs: tuple[str, ...]
    """packages"""
    words: str
    """the script and its arguments"""
    results: str
    """matches what it prints of its training"""
    prepare: str | None = None
    """of `make_inputs.py`; ``"model"``: of `make_language_model.py`"""
    folder: str = "."
    """where it runs, below the inputs"""
    launches_itself: bool = False
    num_micro_steps: int = 1
    num_tries: int = 1
    """more than one if it hangs at its end at times, with ddpprof and without"""


SFT = (
    "-m trl.scripts.sft --model_name_or_path model --dataset_name data --output_dir out --use_cpu --bf16 False "
    "--per_device_train_batch_size 4 --max_steps 25 --report_to none --save_strategy no --logging_steps 5 "
    "--gradient_checkpointing False --max_length 64 --disable_tqdm True"
)
FIT = (
    f"{SCRIPTS / 'lightning_cli.py'} fit --trainer.accelerator cpu --trainer.devices 2 --trainer.strategy ddp "
    "--trainer.max_steps 40 --trainer.logger false --trainer.enable_progress_bar false "
    "--trainer.enable_checkpointing false --trainer.enable_model_summary false"
)
MINGPT = (
    "main.py data_config.path=input.txt data_config.truncate=0.01 data_config.block_size=32 gpt_config.n_layer=2 "
    "gpt_config.n_head=4 gpt_config.n_embd=64 trainer_config.max_epochs=1 trainer_config.batch_size=32 "
    "trainer_config.data_loader_workers=1 trainer_config.use_amp=False trainer_config.save_every=1"
)
TRAINED = {
    "trl-sft": Published(("trl", "datasets"), SFT, r"'loss': '?[\d.]+", "model", num_tries=4),
    "lightning-cli": Published(("lightning", "jsonargparse"), FIT, r"params-sha256 \w+", launches_itself=True),
    "accelerate-nlp-example": Published(
        ("accelerate", "datasets", "evaluate"), "nlp_example.py --cpu", r"epoch \d: .*", "accelerate", "accelerate"
    ),
    "accelerate-gradient-accumulation": Published(
        ("accelerate", "datasets", "evaluate"),
        "gradient_accumulation.py --cpu --gradient_accumulation_steps 2",
        r"epoch \d: .*",
        "accelerate",
        "accelerate",
        num_micro_steps=2,
    ),
    "mingpt": Published(("hydra", "boto3"), MINGPT, r"number of parameters: .*", "mingpt", "minGPT-ddp"),
    "pytorch-tutorial": Published(
        (), f"{JOBS}/public/ddp-tutorial-series/multigpu.py 3 2 --batch_size 64",
        r"\[GPU\d\] Epoch \d+ \| Batchsize: \d+ \| Steps: \d+", launches_itself=True,
    ),
}  # fmt: skip
STDOUT_OF_RANK_0 = ("--redirects", "1:1")
"""what rank 1 prints goes to a file: torchrun starts ranks unbuffered, and lines in pieces would mix in one pipe"""
OF_ACCELERATE = ["test_sync", "test_script"]


def run(command: list[str], folder: Path, timeout: float = 150) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environment(**OFFLINE), capture_output=True, text=True, timeout=timeout, check=False
    )


def run_until_it_ends(command: list[str], folder: Path, num_tries: int) -> subprocess.CompletedProcess[str]:
    """Run a script again if it hangs after it has trained.

    Rank 1 of TRL's script destroys its process group while gloo's thread waits for the interpreter's lock to release
    what its last all-gather returned, and the destructor waits for that thread while it holds the lock.
    """
    for _ in range(num_tries - 1):
        done = run_unless_it_hangs(command, folder)
        if done is not None:
            return done
    return run(command, folder, timeout=600)


def run_unless_it_hangs(command: list[str], folder: Path) -> subprocess.CompletedProcess[str] | None:
    """Run a script; ``None`` if it has not ended half a minute after it has trained."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        at_once = environment(**OFFLINE, PYTHONUNBUFFERED="1")  # it may be killed with lines in its buffer
        job = subprocess.Popen(command, cwd=folder, env=at_once, stdout=out, stderr=err, start_new_session=True)
        try:
            wait_until(lambda: job.poll() is not None or "Training completed" in written(out), "trained", 400)
            job.wait(600)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.wait()
        return subprocess.CompletedProcess(command, job.returncode, written(out), written(err))


def written(file: IO[str]) -> str:
    return os.pread(file.fileno(), 1 << 24, 0).decode(errors="replace")


def with_and_without(job: Published, folders: list[Path], out: Path) -> list[str]:
    """Return what the script prints, without ddpprof and with it. `folders`: where; it may leave files there."""
    words, ranks = job.words.split(), [] if job.launches_itself else [*TWO_RANKS, *STDOUT_OF_RANK_0]
    plain = [sys.executable] if job.launches_itself else [*TORCHRUN, *ranks]
    traced = [*DDPPROF, "trace", "--quiet", "--force", "--out", str(out), *ranks]
    printed = []
    for done in (
        without_torch_aborting(lambda: run_until_it_ends([*plain, *words], folders[0], job.num_tries)),
        run_until_it_ends([*traced, *words], folders[1], job.num_tries),
    ):
        assert done.returncode == 0, done.stderr
        assert "Recording" not in done.stderr
        printed.append(done.stdout)
    return printed


def prepared(job: Published, folder: Path) -> list[Path]:
    """Two folders with the same inputs."""
    inputs, same = folder / "in", folder / "same"
    inputs.mkdir()
    if job.prepare is not None:
        own = job.prepare == "model"
        maker = [SCRIPTS / "make_language_model.py", inputs] if own else [JOBS / "make_inputs.py", inputs, job.prepare]
        made = run([sys.executable, *map(str, maker)], inputs)
        assert made.returncode == 0, made.stderr
    shutil.copytree(inputs, same)
    return [inputs / job.folder, same / job.folder]


@pytest.mark.parametrize("job", [pytest.param(job, id=name) for name, job in TRAINED.items()])
def test_a_training(job: Published, tmp_path: Path, report: Report) -> None:
    missing = [name for name in job.needs if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    if (job.prepare not in (None, "model") or str(JOBS) in job.words) and not JOBS.is_dir():
        pytest.skip(f"the jobs of others are not there: {JOBS}")
    printed = with_and_without(job, prepared(job, tmp_path), tmp_path / "run")
    plain, traced = (sorted(re.findall(job.results, text)) for text in printed)
    assert plain == traced != []
    said = report("run")
    assert said["failure"] is None
    assert said["job"]["num_micro_steps"] == job.num_micro_steps
    assert not FALSE_OF_ALL & {finding["rule"] for finding in said["findings"]}
    for bucket in said["buckets"]:
        assert bucket["num_passes"] == 1
        assert bucket["ready_ns"] <= bucket["launched_ns"] <= bucket["started_ns"] < bucket["finished_ns"]
    assert all(step["parts"]["forward_ns"] > 0 for rank in said["ranks"] for step in rank["steps"])


@pytest.mark.parametrize("name", OF_ACCELERATE)
def test_accelerates_own_tests_pass_under_ddpprof(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed: pip install 'ddpprof[frameworks]'")
    module = ["-m", f"accelerate.test_utils.scripts.{name}"]
    done = run([*DDPPROF, "trace", "--quiet", "--out", str(tmp_path / "run"), *TWO_RANKS, *module], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Recording" not in done.stderr
