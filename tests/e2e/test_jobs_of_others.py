"""Jobs that nobody of this project wrote: ddpprof changes nothing about them, and what it says of them is true."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from jobs import DDPPROF, Run, environment, without_torch_aborting
from shared import JOBS

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not JOBS.is_dir(), reason=f"the jobs of others are not there: {JOBS}"),
]
Report = Callable[[str], dict[str, Any]]
_RESULT = re.compile(r"rank \d+ final \S+")
"""Ranks share a line at times."""


@dataclass(frozen=True)
class Job:
    """A script, and what must and must not be said of it."""

    words: tuple[str, ...]
    num_micro_steps: int = 1
    passes: tuple[int, ...] = (1,)
    """synchronized backward passes in a step, through each module"""
    advised: frozenset[str] = frozenset()
    """rules, of which one at least must be found, or nothing is asked"""
    never: frozenset[str] = field(default=frozenset({"same-samples", "unused-parameters", "epoch-never-set"}))
    launcher: tuple[str, ...] = ("--nproc-per-node=2", "--standalone")
    """another one stands for it where minutes must do"""


LOOPS = {
    "evaluation": Job(("loops/evalloop.py",)),
    "accumulation": Job(("loops/accum.py",), 4, (4,)),
    "accumulation-of-a-large-model": Job(("loops/accum_big.py",), 4, (4,), frozenset({"reduces-every-pass"})),
    "accumulation-without-sync": Job(("loops/accum.py", "nosync"), 4, (1,)),
    "gan": Job(("loops/gan.py",), 1, (1, 2)),
    "two-modules-in-turn": Job(("loops/gan2.py",), 1, (1, 1)),
    "compiled-around-ddp": Job(("loops/comp.py", "outer")),
    "compiled-inside": Job(("loops/comp.py", "inner")),
}


def traced_beside_plain(job: Job, ddpprof: Run, torchrun: Run) -> None:
    """Run the job without ddpprof and with it; it must do the same."""
    words = [str(JOBS / job.words[0]), *job.words[1:]]
    plain = without_torch_aborting(lambda: torchrun(*words, timeout=600, OMP_NUM_THREADS="1"))
    traced = ddpprof("trace", "--out", "run", *job.launcher, *words, OMP_NUM_THREADS="1")
    assert traced.returncode == plain.returncode == 0, traced.stderr
    assert results(traced) == results(plain) != []


def results(done: subprocess.CompletedProcess[str]) -> list[str]:
    return sorted(_RESULT.findall(done.stdout))


@pytest.mark.parametrize("job", [pytest.param(job, id=name) for name, job in LOOPS.items()])
def test_a_training_loop(job: Job, ddpprof: Run, torchrun: Run, report: Report) -> None:
    traced_beside_plain(job, ddpprof, torchrun)
    said = report("run")
    rules = {finding["rule"] for finding in said["findings"]}
    assert not rules & job.never
    assert not job.advised or rules & job.advised, rules
    assert said["failure"] is None
    assert said["job"]["num_micro_steps"] == job.num_micro_steps
    assert said["job"]["is_compiled"] is (job.words[0] == "loops/comp.py")
    passes = {bucket["module"]: bucket["num_passes"] for bucket in said["buckets"]}
    assert tuple(passes[module] for module in sorted(passes)) == job.passes
    for bucket in said["buckets"]:
        assert bucket["ready_ns"] <= bucket["launched_ns"] <= bucket["started_ns"] < bucket["finished_ns"]
    assert said["outside"] in (None, []), "every all-reduce is a bucket's"
    for rank in said["ranks"]:
        for step in rank["steps"]:
            assert step["parts"]["forward_ns"] > 0
            assert step["parts"]["exposed_comm_ns"] == pytest.approx(step["exposed_ns"], rel=0.02)
    predicted = ddpprof("whatif", "run", "--format", "json")
    assert predicted.returncode == 0, predicted.stderr
    as_recorded = json.loads(predicted.stdout)["outcomes"][0]["prediction"]["bucket_bytes"]
    assert sorted(as_recorded) == sorted(bucket["num_bytes"] for bucket in said["buckets"])


@pytest.mark.parametrize(
    ("num_steps", "options"),
    [
        pytest.param(1, None, id="one-step-is-too-few"),
        pytest.param(2, "--skip-first 1 --cost-steps 0 --warmup 0 --steps 1", id="two"),
        pytest.param(5, "--skip-first 1 --cost-steps 0 --warmup 1 --steps 3", id="five"),
        pytest.param(10, "--skip-first 2 --cost-steps 2 --warmup 1 --steps 5", id="ten"),
    ],
)
def test_a_short_training_ends_in_advice_that_works(
    num_steps: int, options: str | None, ddpprof: Run, report: Report
) -> None:
    words = ["--nproc-per-node=2", "--standalone", str(JOBS / "loops/short.py"), str(num_steps)]
    done = without_torch_aborting(lambda: ddpprof("trace", "--force", "--out", "first", *words))
    assert done.returncode == 0, done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert re.search(rf"[Tt]he training took {num_steps} steps?, (and|but)", said)
    if options is None:
        assert "make it run more" in said
        return
    assert f"ddpprof trace {options}" in said
    again = without_torch_aborting(lambda: ddpprof("trace", "--force", "--out", "again", *options.split(), *words))
    assert again.returncode == 0, again.stderr
    assert all(rank["steps"] for rank in report("again")["ranks"]), "the advice leads to profiled steps"


NANOGPT = (
    "train.py small.py --backend=gloo --device=cpu --dtype=float32 --compile=False --eval_iters=5 --eval_interval=20 "
    "--log_interval=1 --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=30 "
    "--dropout=0.0 --gradient_accumulation_steps=4"
)


def test_nanogpt(report: Report, tmp_path: Path) -> None:
    """It accumulates over two batches a rank, reduces in the last, and evaluates in between."""
    made = subprocess.run([sys.executable, JOBS / "make_inputs.py", tmp_path / "in", "nanogpt"], check=False)
    assert made.returncode == 0
    done = subprocess.run(
        [*DDPPROF, "trace", "--out", str(tmp_path / "run"), "--nproc-per-node=2", "--standalone", *NANOGPT.split()],
        cwd=tmp_path / "in" / "nanoGPT",
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = report("run")
    assert said["job"]["num_micro_steps"] == 2
    assert {bucket["num_passes"] for bucket in said["buckets"]} == {1}
    rules = {finding["rule"] for finding in said["findings"]}
    assert not rules & {"same-samples", "reduces-every-pass", "unused-parameters"}
