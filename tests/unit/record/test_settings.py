"""Settings reach the training processes whole, through one environment variable."""

from __future__ import annotations

import dataclasses

import pytest

from ddpprof.record.settings import ENVIRONMENT_VARIABLE, Settings, settings_from_environment

OTHER = Settings(
    out="runs/ä b\n",
    command=("train.py", "--name", 'a "quoted" \N{SNOWMAN}', ""),
    skip_first=1,
    cost_steps=2,
    warmup=3,
    steps=4,
    profiler=False,
    record_shapes=True,
    with_stack=True,
    profile_memory=True,
    stop_after=True,
    profile_ranks=((0, 7), (64, 64)),
    most_seconds=9.5,
    most_bytes=10,
    baseline_steps=4,
    alone_steps=5,
    force=True,
    timed_steps=5,
    trial=True,
    ddp={"bucket_cap_mb": 5, "static_graph": True},
    comm_hook="fp16_compress_hook",
    loader={"num_workers": 2},
    passes_per_reduction=4,
    nccl_log=True,
    optimize_ddp="no_optimization",
    compile_order="model_first",
    switches={"sync_batch_norm": False},
    num_threads=3,
    pulse=False,
    losses=True,
    without_ddp=True,
    ddp_blocks=6,
    block_steps=7,
    launched_unix_s=8.5,
    recorded_with=("--steps", "4", "train.py"),
    agent="run@host:9",
)


def test_the_table_differs_from_every_default() -> None:
    for field in dataclasses.fields(Settings):
        default = field.default_factory() if callable(field.default_factory) else field.default
        assert getattr(OTHER, field.name) != default, field.name


@pytest.mark.parametrize("settings", [Settings("run"), OTHER], ids=["as-they-come", "every-other-choice"])
def test_settings_come_out_as_they_went_in(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in settings.to_environment().items():
        monkeypatch.setenv(name, value)
    assert settings_from_environment() == settings


@pytest.mark.parametrize("value", [None, ""])
def test_a_process_that_ddpprof_did_not_start_has_none(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, value)
    assert settings_from_environment() is None
