"""A finding's change is data that a tool can apply, and says how it is written in the user's framework."""

from __future__ import annotations

import msgspec
import pytest

from ddpprof.engine.finding import (
    DEFAULT_CAP,
    Change,
    ChangeKind,
    NewBuckets,
    Predicted,
    Value,
    bucket_change,
    ddp_change,
    environment_change,
    loader_change,
)

GAIN = Predicted(3, 2, 4)


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("bucket_cap_mb=1", {"bucket_cap_mb": 1}),
        ("bucket_cap_mb=0.5", {"bucket_cap_mb": 0.5}),
        ("bucket_cap_mb_list=[1, 25]", {"bucket_cap_mb_list": (1, 25)}),
    ],
)
def test_caps_are_values(argument: str, values: dict[str, Value]) -> None:
    change = bucket_change(None, NewBuckets(argument, (1,), GAIN))
    assert change == Change(ChangeKind.DDP, values, f"DistributedDataParallel(model, {argument})")


def test_a_cap_that_nobody_knows_is_no_change() -> None:
    assert bucket_change(None, NewBuckets("bucket_cap_mb=6", (1,), None)) is None
    assert bucket_change(None, NewBuckets("", (1,), GAIN)) is None


def test_the_default_cap_is_one() -> None:
    change = bucket_change(None, NewBuckets(DEFAULT_CAP, (1,)))
    assert change is not None
    assert change.values == {"bucket_cap_mb": None}


@pytest.mark.parametrize(
    ("framework", "code"),
    [
        (None, "DistributedDataParallel(model, static_graph=True)"),
        ("transformers", "TrainingArguments(ddp_static_graph=True)"),
        ("lightning", "Trainer(strategy=DDPStrategy(static_graph=True))"),
    ],
)
def test_frameworks_write_it_in_their_own_way(framework: str | None, code: str) -> None:
    assert ddp_change(framework, static_graph=True).code == code


def test_variables_and_loaders() -> None:
    assert environment_change(OMP_NUM_THREADS="1").code == "OMP_NUM_THREADS=1"
    change = loader_change(None, 2, persistent=True)
    assert (change.kind, change.values) == (ChangeKind.LOADER, {"num_workers": 2, "persistent_workers": True})
    assert change.code == "DataLoader(…, num_workers=2, persistent_workers=True)"


def test_it_is_written_and_read_again() -> None:
    change = ddp_change(None, bucket_cap_mb_list=(1.0, 25.0), static_graph=True)
    assert msgspec.json.decode(msgspec.json.encode(change), type=Change) == change
