"""`with ddpprof.profile(…)` in user code makes the run that `ddpprof trace` makes, and leaves nothing behind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from accelerator import first_recorded
from jobs import QUICK, Run, on_ranks, outside_checkout

Report = Callable[[str], dict[str, Any]]

BEGIN = """
import sys, time, torch, torch.distributed as dist, ddpprof
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.set_num_threads(1)
WINDOW = dict(skip_first=2, cost_steps=4, steps=3)

def build():
    global model, optimizer
    torch.manual_seed(0)
    model = DDP(torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]), bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(num_steps, mark=lambda: None):
    for step in range(num_steps):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        mark()
"""
END = """
sys.stdout.write(f"trained {dist.get_rank()}\\n")  # in one write: the ranks share the stream
sys.stdout.flush()
time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
dist.destroy_process_group()
"""
PLAIN = """
build()
with ddpprof.profile("run", **WINDOW):
    train(20)
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """A script with `body` between `BEGIN` and `END`."""

    def write_script(body: str) -> Path:
        path = tmp_path / "train.py"
        path.write_text(BEGIN + body + END)
        return path

    return write_script


Write = Callable[[str], Path]


def assert_recorded(shown: dict[str, Any]) -> None:
    assert shown["missing"] == []
    assert [rank["rank"] for rank in shown["ranks"]] == [0, 1]
    for rank in shown["ranks"]:
        assert rank["ended"] == "finished"
        assert [step["mode"] for step in rank["light_steps"]] == ["off", "light", "light", "off"]
        assert [step["step"] - first_recorded(2) for step in rank["steps"]] == [5, 6, 7]
        assert all(step["comm_ns"] > 0 and step["compute_ns"] > 0 for step in rank["steps"])


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(PLAIN, id="steps-found"),
        pytest.param(
            "with ddpprof.profile('run', **WINDOW):\n    build()\n    train(20)\n",
            id="ddp-made-inside",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "build()\nwith ddpprof.profile('run', **WINDOW) as prof:\n    train(20, prof.step)\n", id="steps-marked"
        ),
        pytest.param(
            "build()\ntrain(5)\nwith ddpprof.profile('run', **WINDOW):\n    train(20)\ntrain(5)\n",
            id="in-the-middle",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_block_makes_a_run(body: str, write: Write, two_ranks: Run, report: Report) -> None:
    done = two_ranks(write(body))
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"trained \d", done.stdout)) == ["trained 0", "trained 1"]  # torch 2.8 speaks, too
    assert "ddpprof" not in outside_checkout(done.stdout)
    assert "ddpprof" not in outside_checkout(done.stderr)
    assert done.stderr.count("View it with: ddpprof report") == 1, "one rank tells where the run is"
    assert_recorded(report("run"))


@pytest.mark.long
def test_the_run_is_laid_out_as_a_traced_one(write: Write, tmp_path: Path, two_ranks: Run, ddpprof: Run) -> None:
    assert two_ranks(write(PLAIN)).returncode == 0
    bare = write("build()\ntrain(20)\n")
    done = ddpprof("trace", "--quiet", "--out", "traced", *QUICK, *on_ranks(2, bare))
    assert done.returncode == 0, done.stderr
    at_times = {"tensorboard", "board"}  # a short training may end before its ranks have a board
    names = {path.name for path in (tmp_path / "traced").iterdir()} - at_times
    assert names == {
        "run.json",
        "exits.jsonl",
        "slowdowns.json",
        *(f"rank-{rank}.{what}" for rank in (0, 1) for what in ("facts.json", "steps.jsonl", "trace.json.gz")),
        *(f"rank-{rank}.{what}" for rank in (0, 1) for what in ("last_step", "pulse")),
    }
    of_who_started_them = {"exits.jsonl", "slowdowns.json"}
    assert {path.name for path in (tmp_path / "run").iterdir()} - at_times == names - of_who_started_them
    for name in ("run.json", "rank-0.facts.json", "rank-1.facts.json"):
        ours, traced = (json.loads((tmp_path / run / name).read_text()) for run in ("run", "traced"))
        assert ours.keys() == traced.keys()
    ours, traced = (json.loads((tmp_path / run / "run.json").read_text()) for run in ("run", "traced"))
    assert traced["settings"].pop("recorded_with")
    assert ours["settings"] == {**traced["settings"], "recorded_with": []}
    assert [Path(word).name for word in ours["command"]] == ["train.py"]


def test_an_exception_inside_the_block_is_the_scripts(write: Write, two_ranks: Run, report: Report) -> None:
    done = two_ranks(write(PLAIN + "    raise ValueError('of the script')\n"))
    assert done.returncode == 1
    assert "ValueError: of the script" in done.stderr
    assert "ddpprof/" not in outside_checkout(done.stderr)
    for rank in report("run")["ranks"]:
        assert rank["ended"] == "failed: ValueError: of the script"
        assert [step["step"] - first_recorded(2) for step in rank["steps"]] == [5, 6, 7]


@pytest.mark.long
def test_an_exception_in_the_middle_of_a_profiled_step(write: Write, two_ranks: Run, report: Report) -> None:
    """The script catches it outside the block, and goes on training."""
    body = """
build()
try:
    with ddpprof.profile("run", **WINDOW):
        train(9)
        model(torch.randn(8, 64))
        raise ValueError("of the script")
except ValueError:
    pass
train(5)
"""
    done = two_ranks(write(body))
    assert done.returncode == 0, done.stderr
    assert "ddpprof" not in outside_checkout(done.stderr)
    for rank in report("run")["ranks"]:
        assert [step["step"] for step in rank["steps"]] == [7, 8]


def test_an_earlier_run_is_kept_and_training_goes_on(write: Write, tmp_path: Path, two_ranks: Run) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    done = two_ranks(write(PLAIN))
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"trained \d", done.stdout)) == ["trained 0", "trained 1"]  # torch 2.8 speaks, too
    assert "ddpprof" not in outside_checkout(done.stdout)
    said = [line for line in outside_checkout(done.stderr).splitlines() if "ddpprof" in line]
    assert len(said) == 1
    assert "contains an earlier run" in said[0]
    assert "raining continues" in said[0]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.json"]
    assert (tmp_path / "run" / "run.json").read_text() == "{}"


@pytest.mark.long
def test_an_earlier_run_is_replaced_where_the_user_says_so(
    write: Write, tmp_path: Path, two_ranks: Run, report: Report
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    (tmp_path / "run" / "rank-7.facts.json").write_text("{}")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    done = two_ranks(write(PLAIN.replace("**WINDOW", "**WINDOW, force=True")))
    assert done.returncode == 0, done.stderr
    assert_recorded(report("run"))
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


@pytest.mark.long
def test_two_blocks_make_two_runs(write: Write, two_ranks: Run, report: Report) -> None:
    done = two_ranks(
        write(PLAIN + PLAIN.replace('"run"', '"again"') + PLAIN.replace('"run"', '"light", profiler=False'))
    )
    assert done.returncode == 0, done.stderr
    assert "ddpprof" not in outside_checkout(done.stderr)
    assert_recorded(report("run"))
    assert_recorded(report("again"))
    assert [len(rank["steps"]) for rank in report("light")["ranks"]] == [0, 0]


LEFT_BEHIND = """
import torch.optim.optimizer as optimizers
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

def methods():
    return [getattr(DDP, name) for name in ("forward", "_pre_forward", "_post_forward", "_sync_buffers",
            "_ddp_init_helper", "register_comm_hook")] + [DataLoader.__iter__, _BaseDataLoaderIter.__next__, torch.save]

def hooks():
    return len(optimizers._global_optimizer_pre_hooks) + len(optimizers._global_optimizer_post_hooks)

build()
before = methods()
with ddpprof.profile("run", skip_first=2, cost_steps=4, steps=3):
    train(int(sys.argv[1]))
    assert methods() != before
from ddpprof.record.ddp_module import TimingProcessGroup
def allreduce(*arguments):
    raise AssertionError("the reducer still asks ddpprof")
TimingProcessGroup.allreduce = allreduce
train(3)
assert methods() == before, "still wrapped"
assert hooks() == 0, "still hooked"
assert not torch.autograd._profiler_enabled(), "still profiling"
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "num_steps",
    [
        pytest.param(1, id="in-a-skipped-step", marks=pytest.mark.long),
        pytest.param(3, id="in-a-light-step"),
        pytest.param(6, id="while-the-profiler-warms-up", marks=pytest.mark.long),
        pytest.param(8, id="in-a-profiled-step", marks=pytest.mark.long),
        pytest.param(20, id="after-the-last-step", marks=pytest.mark.long),
    ],
)
def test_a_block_that_ends_leaves_nothing_behind(num_steps: int, write: Write, two_ranks: Run) -> None:
    more = first_recorded(2) - 2 if num_steps > 1 else 0
    done = two_ranks(write(LEFT_BEHIND), str(num_steps + more))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained") == 2
    assert outside_checkout(done.stderr).count("ddpprof") == (num_steps == 1), "it says that one step was too few"


@pytest.mark.long
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            "build()\nwith ddpprof.profile('inner'):\n    train(10)\ntrain(10)\n",
            id="ddp-made-before",
            marks=pytest.mark.long,
        ),
        pytest.param("with ddpprof.profile('inner'):\n    build()\n    train(3)\ntrain(17)\n", id="ddp-made-inside"),
        pytest.param(
            "build()\nwith ddpprof.profile('inner') as prof:\n    train(20, prof.step)\n", id="with-marked-steps"
        ),
    ],
)
def test_under_trace_a_block_makes_no_run_of_its_own(
    body: str, write: Write, tmp_path: Path, ddpprof: Run, report: Report
) -> None:
    done = ddpprof("trace", "--quiet", "--out", "run", *QUICK, *on_ranks(2, write(body)))
    assert done.returncode == 0, done.stderr
    assert "ddpprof" not in outside_checkout(done.stderr)
    assert not (tmp_path / "inner").exists()
    assert_recorded(report("run"))


@pytest.mark.long
def test_a_block_without_ddp_records_nothing(write: Write, tmp_path: Path, two_ranks: Run) -> None:
    done = two_ranks(write("with ddpprof.profile('run') as prof:\n    prof.step()\n"))
    assert done.returncode == 0, done.stderr
    assert "ddpprof" not in outside_checkout(done.stderr)
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_timed_steps_come_before_the_profiled_ones_and_only_their_length_is_kept(
    write: Write, two_ranks: Run, report: Report
) -> None:
    done = two_ranks(write("build()\nwith ddpprof.profile('run', **WINDOW, timed_steps=3):\n    train(20)\n"))
    assert done.returncode == 0, done.stderr
    for rank in report("run")["ranks"]:
        timed = rank["light_steps"][4:]
        assert [(step["step"], step["mode"], step["parts"]) for step in timed] == [(n, "off", None) for n in (6, 7, 8)]
        assert [step["step"] for step in rank["steps"]] == [10, 11, 12]


@pytest.mark.long
def test_the_last_steps_may_be_without_communication(two_ranks: Run, write: Write, tmp_path: Path) -> None:
    done = two_ranks(
        write("""
build()
with ddpprof.profile("run", alone_steps=2, **WINDOW):
    train(24)
""")
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "run" / "rank-1.steps.jsonl").read_text().splitlines()
    assert [json.loads(line)["mode"] for line in lines][-3:] == ["profiled", "alone", "alone"]
