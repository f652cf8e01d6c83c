"""What can DDP's constructor be told about the size of buckets, and what of it is worth a look?

one cap for all buckets; beside it a small one for the first bucket, with which communication begins, for the last,
which is sent when computation is over, or for both
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product

from ddpprof.model.bucket_assignment import MIB, Caps

_ENDS_MB = (0.25, 1, 4)
_MOST_LISTED = 16
"""buckets whose caps one would write into a script"""
_MANY = 4
"""equal ones in a row, which are not written one by one"""


@dataclass(frozen=True, slots=True)
class BucketCaps:
    """As DDP takes it: a list goes before a cap, and without either the first bucket is a small one."""

    cap_mb: float | None = None
    list_mb: tuple[float, ...] = ()
    """the last one stands for all further buckets"""

    @property
    def caps(self) -> Caps:
        return Caps.of(self.cap_mb, self.list_mb)

    @property
    def argument(self) -> str:
        """As one writes it."""
        if self.list_mb:
            return f"bucket_cap_mb_list={as_written(self.list_mb)}"
        return f"bucket_cap_mb={self.cap_mb}" if self.cap_mb is None else f"bucket_cap_mb={self.cap_mb:g}"


def as_written(list_mb: Sequence[float]) -> str:
    """In Python, short."""
    runs = [(f"{cap:g}", len(list(same))) for cap, same in groupby(list_mb)]
    if all(times < _MANY for _, times in runs):
        return f"[{', '.join(cap for cap, times in runs for _ in range(times))}]"
    return " + ".join(f"[{cap}]" if times == 1 else f"[{cap}] * {times}" for cap, times in runs)


def up_to_one_bucket(caps_mb: Sequence[float], gradient_bytes: int) -> Iterator[float]:
    """Those of `caps_mb`, which ascend, to the first that all gradients fit under."""
    for cap_mb in caps_mb:
        yield cap_mb
        if cap_mb * MIB >= gradient_bytes:
            return


def with_own_ends(cap_mb: float, num_buckets: int) -> Iterator[BucketCaps]:
    """Beside a cap that makes `num_buckets` buckets."""
    ends = [end for end in _ENDS_MB if end < cap_mb]
    yield from (BucketCaps(list_mb=(first, cap_mb)) for first in ends)
    if 1 < num_buckets <= _MOST_LISTED:
        up_to_the_last = (cap_mb,) * (num_buckets - 1)
        yield from (BucketCaps(list_mb=(*up_to_the_last, last)) for last in ends)
        yield from (BucketCaps(list_mb=(first, *up_to_the_last, last)) for first, last in product(ends, ends))
