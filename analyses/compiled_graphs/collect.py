"""Record what a report advises for four compiled models on a slow link; then run all settings and the advised in turn.

python analyses/compiled_graphs/collect.py [--only MODEL …]

It needs root, for `ip`, a C++ compiler, and twelve minutes on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import RECORDINGS, end_recording, write_json

if TYPE_CHECKING:
    from hosts import Hosts

HERE = Path(__file__).resolve().parent
MODELS = ("mlp", "transformer", "convnet", "embeddings")
GBIT, BURST = 2, "128kb"
ORDERS, MODES, CAPS_MB = ("ddp_first", "model_first"), ("ddp_optimizer", "no_optimization"), (5, 25, 100)
DEFAULT = {"order": "ddp_first", "optimize_ddp": "ddp_optimizer", "ddp": {}}
"""what a user writes first: ``torch.compile(DistributedDataParallel(model))``"""
GIVEN_CAP = {"order": "model_first", "optimize_ddp": "ddp_optimizer", "ddp": {"bucket_cap_mb": 25}}
"""the same cap as the default, but given, so that DDP's first bucket is as large as the others"""
MOST_CHANGES = 2
"""number of changes that a user makes one after the other"""
SETTLE, TIMED = 2, 3
"""steps in a visit: those that do not count, and those that do"""
ROUNDS = 5
"""visits of every setting"""
FASTEST, MEETINGS = 2, 12
"""the number of fastest settings that meet the advised ones and the default, and rounds in which they do"""
KEPT = ("rule", "title", "gain_ns", "predicted", "is_noise", "change")


def advised(hosts: Hosts, model: str, setting: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Record the job and make the change of its first finding about compilation, and so on with the changed job."""
    launcher = [sys.executable, str(HERE.parent / "on_hosts.py"), ",".join(hosts.namespaces)]
    findings: list[dict[str, Any]] = []
    for number in range(MOST_CHANGES + 1):
        run = folder / f"run-{number}"
        job = [*launcher, str(HERE / "train.py"), model, json.dumps(setting)]
        _ddpprof(["trace", "--stop-after", "--out", str(run), "--", *job])
        report = json.loads(_ddpprof(["report", str(run), "--format", "json"]))
        first = next((one for one in report["findings"] if one["rule"] == "compiled-graphs"), None)
        findings.append(
            {
                "setting": setting,
                "graphs": report["compiled_graphs"]["num_graphs"],
                "found": None if first is None else {name: first[name] for name in KEPT},
            }
        )
        if first is None or first["is_noise"] or first["change"] is None:
            break
        setting = with_change(setting, first["change"]["values"])
    return {"findings": findings, "setting": setting}


def with_change(setting: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return the setting with the values of a change."""
    if "optimize_ddp" in values:
        return {**setting, "optimize_ddp": values["optimize_ddp"]}
    if "compile_order" in values:
        return {**setting, "order": values["compile_order"]}
    return {**setting, "ddp": values}


def _ddpprof(words: Sequence[str]) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "ddpprof", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"ddpprof {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def try_all(model: str, made: Path) -> None:
    """Run one rank of the job that visits every setting, and lets the fastest meet the advised ones and the default."""
    import torch
    import torch.distributed as dist
    from interleaved import join, leave, median_step, pin
    from train import Training

    pin()
    torch._dynamo.config.recompile_limit = 64
    asked = json.loads(made.read_text(encoding="utf-8"))
    settings = asked["settings"]
    join()
    began = time.monotonic()
    trainings = [Training(model, setting) for setting in settings]
    for setting, training in zip(settings, trainings, strict=True):
        torch._dynamo.config.optimize_ddp = setting["optimize_ddp"]
        for _ in range(SETTLE):
            training.step()  # compiles
    compiled_s = time.monotonic() - began
    visits = visit_all(trainings, range(len(settings)), ROUNDS)
    ranked = sorted(range(len(settings)), key=lambda one: median_step(visits, one))
    meeting = sorted({asked["default"], *asked["advised"], *ranked[:FASTEST]})
    meetings = visit_all(trainings, meeting, MEETINGS)
    if dist.get_rank() == 0:
        write_json(made, {**asked, "fastest": ranked[0], "visits": visits, "meetings": meetings})
        print(f"{model}: compiled in {compiled_s:.0f} s, all in {time.monotonic() - began:.0f} s", flush=True)
    leave()


def visit_all(trainings: Sequence[Any], which: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Visit the settings in another order in every round, which is the same on every rank."""
    return [
        {"round": number, "setting": setting, "step_ns": visit(trainings[setting])}
        for number in range(rounds)
        for setting in random.Random(number).sample(list(which), len(which))
    ]


def visit(training: Any) -> list[int]:
    """Visit one setting; return the steps of the slower rank, in ns."""
    from interleaved import steps_of_slowest

    training.step()
    return steps_of_slowest(training, TIMED)


def main() -> None:
    from hosts import linked_hosts

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / RECORDINGS)
    parser.add_argument("--only", nargs="+", metavar="MODEL", default=MODELS)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    swept = [
        {"order": order, "optimize_ddp": mode, "ddp": {"bucket_cap_mb": cap}}
        for order, mode, cap in product(ORDERS, MODES, CAPS_MB)
    ]
    for model in arguments.only:
        began = time.monotonic()
        with linked_hosts(2, f"{GBIT}gbit", BURST) as hosts, tempfile.TemporaryDirectory() as folder:
            chains = [advised(hosts, model, one, Path(folder) / name)
                      for name, one in (("default", DEFAULT), ("given", GIVEN_CAP))]  # fmt: skip
            settings = [*swept, DEFAULT]
            settings += [one["setting"] for one in chains if one["setting"] not in settings]
            asked = {
                "chains": chains,
                "settings": settings,
                "default": settings.index(DEFAULT),
                "advised": [settings.index(one["setting"]) for one in chains],
            }
            made = Path(folder) / "asked.json"
            write_json(made, asked)
            advised_s = time.monotonic() - began
            hosts.run_job([sys.executable, Path(__file__).name, model], HERE, MADE=str(made))
            (arguments.out.resolve() / f"{model}.json").write_bytes(made.read_bytes())
        print(f"{model}: advised in {advised_s:.0f} s, in all {time.monotonic() - began:.0f} s", flush=True)
    if arguments.out == HERE / RECORDINGS:
        end_recording(HERE, cores=os.cpu_count(), gbit=GBIT)


if __name__ == "__main__":
    try_all(sys.argv[1], Path(os.environ["MADE"])) if "RANK" in os.environ else main()
