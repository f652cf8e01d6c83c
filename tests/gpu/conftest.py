"""Tests that train on this machine's GPUs, with each backend and number of ranks that fits them.

pytest tests/gpu --on-cpu    without a GPU: two ranks with gloo
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ddpprof.doctor.checks import Context, Setup, setups
from ddpprof.doctor.installation import SCRIPTS, Trained, run_script

Train = Callable[..., Trained]

_HERE = Path(__file__).parent / "scripts"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "setup" not in metafunc.fixturenames:
        return
    import torch

    num_gpus = torch.cuda.device_count()
    if num_gpus or metafunc.config.getoption("--on-cpu"):
        metafunc.parametrize("setup", setups(num_gpus), ids=str)
    else:
        metafunc.parametrize("setup", [pytest.param(Setup(), marks=pytest.mark.skip("torch sees no GPU here"))])


@pytest.fixture
def context(setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTS))  # for what they share with the doctor's
    return Context(tmp_path, tmp_path, setup=setup)


@pytest.fixture
def train(context: Context) -> Train:
    """Run one of the scripts beside this file to its end; with `trace`, under `ddpprof trace` with these options."""
    return lambda name, *more, **options: run_script(
        context, str(_HERE / name), *context.setup.options, *more, **options
    )


@pytest.fixture
def ranks_at_once(setup: Setup) -> int:
    """Number of ranks, for tests that need several."""
    if setup.num_ranks < 2:
        pytest.skip("it needs several ranks")
    return setup.num_ranks


@pytest.fixture
def own_gpus(setup: Setup) -> None:
    """For tests whose ranks must not share cores or a GPU."""
    if setup.num_gpus < 2:
        pytest.skip("it needs a GPU for each of several ranks")


@pytest.fixture
def with_nccl(setup: Setup) -> None:
    """For tests whose script needs a backend that communicates on the device."""
    if setup.backend != "nccl":
        pytest.skip("it needs NCCL")
