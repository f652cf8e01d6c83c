"""Things that users do around DDP go on working under ddpprof, and are not mistaken for something else."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import QUICK, Run, on_ranks, script

Report = Callable[[str], dict[str, Any]]

TRAINING = """
import gc, os, pickle, sys, threading, time, weakref, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
torch.set_num_threads(1)
rank = dist.get_rank()

def wrap(size=64):
    return DDP(nn.Linear(size, size))

def train(model, steps, optimizer=None, step=lambda index, loss: None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1e-3)
    for index in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 64)).sum()
        loss = loss + (step(index, loss) or 0)
        loss.backward()
        optimizer.step()
"""

CASES = {
    "a-second-module-joins-late": """
first, second = wrap(), wrap()
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=1e-3)
for start in (2, 3, 4, 5):
    train(first, 1, optimizer)
    train(first, 12, optimizer, lambda i, loss: second(torch.randn(8, 64)).sum() if i >= start else 0)
""",
    "another-global-optimizer-hook": """
from torch.optim.optimizer import register_optimizer_step_post_hook
register_optimizer_step_post_hook(lambda *_: None)
train(wrap(), 20)
""",
    "models-are-freed": """
gone = []
for _ in range(6):
    model = wrap()
    train(model, 6)
    gone.append(weakref.ref(model))
    del model
    gc.collect()
assert [ref() is None for ref in gone[3:-1]] == [True, True], gone
""",
    "a-hooked-model-is-freed": """
def plain(state, bucket):
    return dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future().then(lambda f: f.value()[0])
train(wrap(), 25)
model = wrap()
model.register_comm_hook(None, plain)
train(model, 3)
ref = weakref.ref(model)
del model
gc.collect()
assert ref() is None
""",
    "torch.save-is-pickled": """
train(wrap(), 20)
assert pickle.loads(pickle.dumps(torch.save)) is torch.save
""",
    "the-working-folder-changes": """
os.makedirs("elsewhere", exist_ok=True)
os.chdir("elsewhere")
train(wrap(), 20)
""",
    "stderr-is-closed": """
train(wrap(), 3)
sys.stderr = None
os.rename("run", "moved")
train(wrap(), 20)
""",
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.long] * (case != "a-second-module-joins-late")) for case in CASES]
)
def test_training_goes_on(case: str, tmp_path: Path, ddpprof: Run) -> None:
    (tmp_path / "train.py").write_text(f"{TRAINING}{CASES[case]}\nprint('trained')\ntime.sleep(0.2)\n")
    ranks = 2 if case == "a-second-module-joins-late" else 1
    options = ["--out", "run", *QUICK]
    done = ddpprof("trace", *options, *on_ranks(ranks, "train.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained") == ranks
    if case != "stderr-is-closed":
        assert "ddpprof: rank" not in done.stderr
        assert "3 profiled steps" in done.stderr
        assert "ddpprof" not in done.stdout


def test_a_recorder_that_cannot_be_imported_lets_training_go_on(tmp_path: Path, ddpprof: Run) -> None:
    (tmp_path / "train.py").write_text(
        f"{TRAINING}\nsys.modules['ddpprof.record.session'] = None\ntrain(wrap(), 20)\nprint('trained')\n"
        "time.sleep(0.2)\n"
    )
    done = ddpprof("trace", "--out", "run", *QUICK, "--nproc-per-node=1", "train.py")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "ddpprof: cannot record: import of ddpprof.record.session halted" in done.stderr


def test_a_script_may_end_right_after_its_last_step(ddpprof: Run) -> None:
    """Without the pause of `_destroy`, one job in three hung: PyTorch held the GIL, and gloo waited for it."""
    done = ddpprof("watch", "--out", "run", "--kill-after", "4", "--nproc-per-node=2", *script("ends_at_once.py"))
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_a_profiler_of_one_rank_keeps_all_from_profiling(tmp_path: Path, ddpprof: Run, report: Report) -> None:
    (tmp_path / "train.py").write_text(
        f"""{TRAINING}
from torch.profiler import profile
own = profile() if rank == 0 else None
if own:
    own.start()
train(wrap(), 20)
if own:
    own.stop()
    assert len(own.events()) > 100
time.sleep(0.2)
"""
    )
    done = ddpprof("trace", "--out", "run", *QUICK, *on_ranks(2, "train.py"))
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^ddpprof: rank \d", done.stderr, re.MULTILINE) == ["ddpprof: rank 0"]
    ranks = report("run")["ranks"]
    assert [len(rank["steps"]) for rank in ranks] == [0, 0]
    assert all(len(rank["light_steps"]) >= 7 for rank in ranks)


@pytest.mark.parametrize(
    "wait",
    [
        pytest.param(4, id="begins-before", marks=pytest.mark.long),
        pytest.param(5, id="warms-up-before"),
        pytest.param(6, id="warms-up-after", marks=pytest.mark.long),
        pytest.param(8, id="begins-after", marks=pytest.mark.long),
    ],
)
def test_the_scripts_own_profiler_wins_and_the_rest_is_recorded(
    wait: int, tmp_path: Path, ddpprof: Run, report: Report
) -> None:
    (tmp_path / "train.py").write_text(
        f"""{TRAINING}
from torch.profiler import ProfilerActivity, profile, schedule
numbers_of_events = []
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait={wait}, warmup=1, active=2, repeat=2),
             on_trace_ready=lambda own: numbers_of_events.append(len(own.events()))) as own:
    train(wrap(), 30, step=lambda index, loss: own.step() or loss * 0)
assert len(numbers_of_events) == 2 and min(numbers_of_events) > 50, numbers_of_events
time.sleep(0.2)
"""
    )
    done = ddpprof("trace", "--out", "run", *QUICK, *on_ranks(2, "train.py"))
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^ddpprof: (.*?)[:;]", done.stderr, re.MULTILINE) == ["rank 0"]
    assert "no active profiling session" not in done.stderr
    found = report("run")
    assert found["whole_run"]["num_steps"] == 30
    assert all(len(rank["light_steps"]) >= 2 for rank in found["ranks"])


@pytest.mark.long
@pytest.mark.parametrize("other", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_rank_that_only_generates_does_not_keep_the_others_from_recording(
    other: int, tmp_path: Path, ddpprof: Run, report: Report
) -> None:
    """As in reinforcement learning, where ranks send what they have generated to those that train."""
    (tmp_path / "train.py").write_text(
        f"""{TRAINING}
trains = [one for one in range(3) if one != {other}]
group, made = dist.new_group(trains), torch.zeros(8, 64)
if rank in trains:
    train(DDP(nn.Linear(64, 64), process_group=group), 30, step=lambda *_: dist.broadcast(made, {other}) and 0)
else:
    for _ in range(30):
        dist.broadcast(made.normal_(), {other})
dist.barrier()
time.sleep(0.2)
"""
    )
    done = ddpprof("trace", "--out", "run", *QUICK, *on_ranks(3, "train.py"))
    assert done.returncode == 0, done.stderr
    assert "ddpprof: rank" not in done.stderr
    found = report("run")
    assert {rank["rank"]: len(rank["steps"]) for rank in found["ranks"]} == {one: 3 for one in range(3) if one != other}
    assert found["whole_run"]["num_steps"] == 30


@pytest.mark.long
@pytest.mark.parametrize(
    ("body", "rule"),
    [
        pytest.param(
            """
data = TensorDataset(torch.randn(160, 64))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler)
next(iter(loader))
sampler.set_epoch(0)
batches = iter(loader)
train(wrap(), 20, step=lambda index, loss: next(batches)[0].sum() * 0)
""",
            "set-epoch-never-called",
            id="a-look-at-a-batch-is-no-epoch",
        ),
        pytest.param(
            """
import queue
ready = queue.Queue(2)
loader = DataLoader(TensorDataset(torch.randn(400, 64)), batch_size=4, sampler=DistributedSampler(range(400)),
                    collate_fn=lambda rows: time.sleep(0.005) or torch.stack([row[0] for row in rows]))
threading.Thread(target=lambda: [ready.put(batch) for batch in loader], daemon=True).start()
train(wrap(), 20, step=lambda index, loss: time.sleep(0.015) or ready.get().sum() * 0)
""",
            "idle-for-data",
            id="a-thread-that-prefetches-is-not-training",
        ),
        pytest.param(
            """
metrics = torch.zeros(4_000_000)
optimizer = torch.optim.SGD((model := wrap()).parameters(), lr=1e-3)
for _ in range(20):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    dist.all_reduce(metrics)
    optimizer.step()
""",
            "trailing-communication",
            id="a-collective-of-the-users-own-does-not-trail",
        ),
    ],
)
def test_nothing_false_is_said(body: str, rule: str, tmp_path: Path, ddpprof: Run, report: Report) -> None:
    (tmp_path / "train.py").write_text(f"{TRAINING}{body}\ntime.sleep(0.2)\n")
    done = ddpprof("trace", "--out", "run", *QUICK, *on_ranks(2, "train.py"))
    assert done.returncode == 0, done.stderr
    assert rule not in {finding["rule"] for finding in report("run")["findings"]}


@pytest.mark.long
def test_another_ones_trace_is_not_deleted(tmp_path: Path, ddpprof: Run) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rank-0.trace.json").write_text("mine")
    (tmp_path / "train.py").write_text(f"{TRAINING}\ntrain(wrap(), 20)")
    done = ddpprof("trace", "--out", "run", *QUICK, "--nproc-per-node=1", "train.py")
    assert done.returncode == 2
    assert (tmp_path / "run" / "rank-0.trace.json").read_text() == "mine"


def test_an_analysis_that_fails_leaves_the_jobs_exit_code(tmp_path: Path, ddpprof: Run) -> None:
    (tmp_path / "train.py").write_text(
        f"{TRAINING}\ntrain(wrap(), 20)\nopen('run/run.json', 'w').write('torn')\ntime.sleep(0.2)"
    )
    done = ddpprof("trace", "--out", "run", *QUICK, "--nproc-per-node=1", "train.py")
    assert done.returncode == 0
    assert "ddpprof: cannot report on run: " in done.stderr


def test_signals_for_a_checkpoint_reach_the_script(tmp_path: Path, ddpprof: Run) -> None:
    (tmp_path / "train.py").write_text(
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: (print('saved'), sys.exit(0)))\n"
        "os.kill(os.getppid(), signal.SIGUSR1)\n"
        "time.sleep(20)\n"
    )
    done = ddpprof("trace", "--out", "run", "train.py")
    assert (done.returncode, done.stdout) == (0, "saved\n")


FAILS_WHILE_THE_DEVICE_IS_STUCK = """
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import ProfilerActivity

stuck = False
switch = torch._C._autograd._toggle_collection_dynamic

def toggle(on, activities):  # as Kineto does since torch 2.9, which waits for the device
    if stuck and ProfilerActivity.CUDA in activities:
        time.sleep(600)
    return switch(on, activities)

dist.init_process_group("gloo")
torch.accelerator.is_available = lambda: True
torch.accelerator.synchronize = lambda *_: time.sleep(600) if stuck else None
torch._C._autograd._toggle_collection_dynamic = toggle
model = DDP(torch.nn.Linear(16, 16))
model.device_type = "cuda"
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    model(torch.randn(8, 16)).sum().backward()
    optimizer.step()
stuck = True
raise ValueError("bad batch")
"""


def test_a_job_that_fails_does_not_wait_for_a_stuck_device(tmp_path: Path, ddpprof: Run) -> None:
    (tmp_path / "train.py").write_text(FAILS_WHILE_THE_DEVICE_IS_STUCK)
    window = ["--skip-first", "11", "--cost-steps", "0", "--steps", "1000"]
    done = ddpprof("trace", "--quiet", "--out", "run", *window, *on_ranks(1, "train.py"))
    assert done.returncode == 1
    assert "ValueError: bad batch" in done.stderr
    assert "Toggling" not in done.stderr
