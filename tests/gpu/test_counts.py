"""Steps and parameters are counted as in the script, whatever the script does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ddpprof.doctor.checks import Setup
from ddpprof.doctor.installation import Trained
from ddpprof.load.run import load_run
from ddpprof.model import Record
from ddpprof.topics.memory import measure_memory

Train = Callable[..., Trained]


def record(trained: Trained) -> Record:
    (first, *_) = load_run(trained.run).ranks
    assert first.record is not None
    return first.record


def test_no_parameter_that_trains_is_called_unused(train: Train) -> None:
    """In every step another branch of the model gets no gradients."""
    modules = record(train("rotating.py", trace=())).modules
    assert modules
    assert [module.unused for module in modules] == [()] * len(modules)


@pytest.mark.parametrize("kind", ["amp", "closure", "compiled"])
def test_steps_are_those_of_the_script(kind: str, train: Train) -> None:
    trained = train("odd_steps.py", f"--kind={kind}", trace=())
    assert record(trained).num_steps == trained.told["num_steps"]


def test_the_profiler_ends_although_only_the_capture_of_a_graph_calls_ddp(
    train: Train, setup: Setup, with_nccl: None
) -> None:
    """Otherwise it would note every replay until the job ends."""
    assert train("graphed.py", trace=()).told["grown_bytes"] < 100_000_000


def test_a_job_on_the_cpu_takes_no_memory_of_a_gpu(train: Train, setup: Setup) -> None:
    if not setup.num_gpus:
        pytest.skip("it needs a GPU")
    trained = train("timed.py", "--device=cpu", "--backend=gloo", trace=())
    assert trained.told["contexts"] == []


@pytest.mark.parametrize("part", ["forward", "backward", "optimizer", "other"])
def test_the_part_of_the_step_with_the_peak_is_named(part: str, train: Train, setup: Setup) -> None:
    measured = measure_memory(record(train("peaks.py", f"--part={part}", trace=())))
    assert measured is not None
    assert measured.peak_in == part or setup.num_gpus
    own = [one for one in measured.devices if one.is_own]
    assert len(own) == bool(setup.num_gpus)
    for device in own:
        assert device.peak_in == part
        assert device.steady_bytes is not None
        assert device.peak_bytes > device.steady_bytes + 3.9e8
