"""DDP taken away, for a whole training or by turns: the script sees no difference, and one process trains the same."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from jobs import Run, script

import ddpprof.record
from ddpprof.load.record import load_record
from ddpprof.record.settings import Settings

BLOCKS = {"skip_first": 2, "cost_steps": 0, "steps": 3, "warmup": 1, "ddp_blocks": 3, "block_steps": 4}
WHOLE = {"skip_first": 2, "cost_steps": 0, "steps": 0, "profiler": False, "timed_steps": 20}
INJECT = str(Path(ddpprof.record.__file__).parent / "inject")
WAYS = {"by-turns": BLOCKS, "for-good": {**WHOLE, "without_ddp": True}}


def trained(output: str) -> str:
    found = re.search(r"trained ([0-9a-f]{64})", output)
    assert found, output
    return found.group(1)


@pytest.fixture
def run_with(start: Run, tmp_path: Path) -> Any:
    """One process of a script under settings of ddpprof, which let it train to its end."""

    def run(settings: dict[str, Any], *arguments: str) -> str:
        variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        if settings:
            variables |= Settings(str(tmp_path / "run"), force=True, **settings).to_environment()
            variables["PYTHONPATH"] = os.pathsep.join([INJECT, os.environ.get("PYTHONPATH", "")])
        ended = start(sys.executable, *script("uses_ddp.py", *arguments), **variables)
        assert ended.returncode == 0, ended.stderr
        assert "Recording" not in ended.stderr
        return trained(ended.stdout)

    return run


@pytest.mark.parametrize("way", ["by-turns", pytest.param("for-good", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param([], id="plain"),
        pytest.param(["--comm-hook"], id="comm-hook", marks=pytest.mark.long),
        pytest.param(["--static-graph"], id="static-graph", marks=pytest.mark.long),
    ],
)
def test_parameters_are_those_of_training_without_any_ddp(
    run_with: Any, tmp_path: Path, way: str, arguments: list[str]
) -> None:
    without = ["--without-ddp"] + [argument for argument in arguments if argument == "--static-graph"]
    assert run_with(WAYS[way], *arguments) == run_with({}, *without)
    record = load_record(tmp_path / "run", 0)
    assert record is not None
    modes = [step.mode for step in record.steps]
    if way == "by-turns":
        assert modes == ["profiled"] * 3 + (["off"] * 4 + ["without_ddp"] * 4) * 3
    else:
        assert modes == ["off"] * 20
        assert json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["without_ddp"] is True


@pytest.mark.long
def test_without_ddp_no_gradient_is_communicated(run_with: Any, tmp_path: Path) -> None:
    run_with({**WHOLE, "without_ddp": True, "timed_steps": 2, "profiler": True, "steps": 3})
    from ddpprof.load.run import load_run

    trace = load_run(tmp_path / "run").ranks[0].trace
    assert trace is not None
    assert len(trace.steps) == 3
    assert len(trace.compute) > 0
    assert len(trace.collectives) == 0


@pytest.mark.long
def test_arguments_of_ddp_are_replaced_however_the_script_gives_them(run_with: Any, tmp_path: Path) -> None:
    run_with({**WHOLE, "ddp": {"static_graph": True, "bucket_cap_mb": 3, "gradient_as_bucket_view": True}})
    record = load_record(tmp_path / "run", 0)
    assert record is not None
    settings = record.modules[0].settings
    assert (settings["bucket_cap_mb"], settings["gradient_as_bucket_view"]) == (3.0, True)


@pytest.mark.long
def test_after_the_last_block_ddp_is_back(two_ranks: Run, tmp_path: Path) -> None:
    """Two ranks on different data: their parameters are the same again only if gradients were averaged to the end."""
    train = """
import sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(dist.get_rank())
model = DDP(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(40):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    if step == 39:
        gradients = [torch.empty_like(model.module.weight.grad) for _ in range(2)]
        dist.all_gather(gradients, model.module.weight.grad)
        print("averaged\\n" if torch.equal(*gradients) else "apart\\n", end="", flush=True)  # in one write
    optimizer.step()
time.sleep(0.2)
dist.destroy_process_group()
"""
    (tmp_path / "train.py").write_text(train)
    settings = Settings(str(tmp_path / "run"), profiler=False, **{**BLOCKS, "steps": 0, "block_steps": 2})
    variables = {**settings.to_environment(), "PYTHONPATH": os.pathsep.join([INJECT, os.environ.get("PYTHONPATH", "")])}
    ended = two_ranks("train.py", **variables)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["averaged", "averaged"]
    record = load_record(tmp_path / "run", 0)
    assert record is not None
    assert [step.mode for step in record.steps].count("without_ddp") == 6
