"""What DDP can be told about buckets."""

from __future__ import annotations

import pytest

from ddpprof.model.ddp_module import MIB, Caps
from ddpprof.predict import BucketCaps, as_written, up_to_one_bucket, with_own_ends


@pytest.mark.parametrize(
    ("buckets", "argument", "caps"),
    [
        pytest.param(BucketCaps(), "bucket_cap_mb=None", Caps(MIB, 25 * MIB), id="ddp-s-own"),
        pytest.param(BucketCaps(5), "bucket_cap_mb=5", Caps(5 * MIB, 5 * MIB), id="one-for-all"),
        pytest.param(
            BucketCaps(list_mb=(0.25, 5)),
            "bucket_cap_mb_list=[0.25, 5]",
            Caps(per_bucket_bytes=(MIB // 4, 5 * MIB)),
            id="one-by-one",
        ),
    ],
)
def test_as_one_writes_it_and_as_ddp_takes_it(buckets: BucketCaps, argument: str, caps: Caps) -> None:
    assert (buckets.argument, buckets.caps) == (argument, caps)


@pytest.mark.parametrize(
    ("caps", "text"),
    [
        ((2, 2, 2, 1), "[2, 2, 2, 1]"),
        ((0.25, 5, 5, 5, 5, 1), "[0.25] + [5] * 4 + [1]"),
        ((1, 1, 2, 2, 2, 2), "[1] * 2 + [2] * 4"),
    ],
)
def test_a_long_list_is_written_short(caps: tuple[float, ...], text: str) -> None:
    assert as_written(caps) == text
    assert tuple(eval(text)) == caps


@pytest.mark.parametrize(("gradient_mb", "kept"), [(4, [2, 5]), (5, [2, 5]), (5.5, [2, 5, 9]), (100, [2, 5, 9])])
def test_caps_up_to_the_first_that_makes_one_bucket(gradient_mb: float, kept: list[int]) -> None:
    assert list(up_to_one_bucket((2, 5, 9), int(gradient_mb * MIB))) == kept


def test_a_small_bucket_first_or_last_or_both() -> None:
    assert [one.list_mb for one in with_own_ends(2, num_buckets=3)] == [
        (0.25, 2), (1, 2),
        (2, 2, 0.25), (2, 2, 1),
        (0.25, 2, 2, 0.25), (0.25, 2, 2, 1), (1, 2, 2, 0.25), (1, 2, 2, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("num_buckets", [1, 17])
def test_no_list_longer_than_one_would_write_and_none_of_a_single_bucket(num_buckets: int) -> None:
    assert [one.list_mb for one in with_own_ends(2, num_buckets)] == [(0.25, 2), (1, 2)]
