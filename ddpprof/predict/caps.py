"""Which bucket sizes does DDP's constructor accept, and which are worth trying?

There is one cap for all buckets, optionally with a small one for the first bucket, with which communication begins, for
the last, which is sent when computation is over, or for both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product

from ddpprof.model.bucket_assignment import DEFAULT_CAP_MIB, MIB, Caps

_ENDS_MB = (0.25, 1, 4)
_MOST_LISTED = 16
"""most buckets whose caps one would list in a script"""
_MANY = 4
"""number of equal caps in a row that are not written one by one"""


@dataclass(frozen=True, slots=True)
class BucketCaps:
    """Bucket caps as in DDP: a list overrides a cap, and with neither the first bucket is small."""

    cap_mb: float | None = None
    list_mb: tuple[float, ...] = ()
    """caps of the buckets in turn; the last one applies to all further buckets"""

    @property
    def caps(self) -> Caps:
        return Caps.of(self.cap_mb, self.list_mb)

    @property
    def argument(self) -> str:
        """Argument as written in Python."""
        if self.list_mb:
            return f"bucket_cap_mb_list={as_written(self.list_mb)}"
        return f"bucket_cap_mb={self.cap_mb}" if self.cap_mb is None else f"bucket_cap_mb={self.cap_mb:g}"


@dataclass(frozen=True, slots=True)
class AcceptedCaps:
    """A user can give DDP only some caps: this says which."""

    lists: bool = True
    """whether there may be a cap for each bucket"""
    default_cap: bool = True
    """whether 25 MiB may be given for all buckets, which differs from no cap by the first bucket"""

    def has(self, caps: BucketCaps | None) -> bool:
        """Return whether they can be given; ``None``: as they are."""
        if caps is None:
            return True
        return self.lists if caps.list_mb else self.default_cap or caps.cap_mb != DEFAULT_CAP_MIB


def accepted_caps(torch: str | None, framework: str | None, is_compiled: bool) -> AcceptedCaps:
    """Return which caps can be given to that version of torch through that framework.

    Lists came with torch 2.13. Accelerate takes 25 MiB for no cap. A list does not move the places at which
    torch.compile cuts a model for DDP, which are at the largest cap.
    """
    version = re.match(r"(\d+)\.(\d+)", torch or "")
    has_lists = version is not None and tuple(map(int, version.groups())) >= (2, 13)
    of_accelerate = framework in ("accelerate", "transformers")
    return AcceptedCaps(has_lists and not of_accelerate and not is_compiled, not of_accelerate)


def as_written(list_mb: Sequence[float]) -> str:
    """Return a list as short Python code."""
    runs = [(f"{cap:g}", len(list(same))) for cap, same in groupby(list_mb)]
    if all(times < _MANY for _, times in runs):
        return f"[{', '.join(cap for cap, times in runs for _ in range(times))}]"
    return " + ".join(f"[{cap}]" if times == 1 else f"[{cap}] * {times}" for cap, times in runs)


def up_to_one_bucket(caps_mb: Sequence[float], gradient_bytes: int) -> Iterator[float]:
    """Yield the ascending `caps_mb` up to the first that all gradients fit under."""
    for cap_mb in caps_mb:
        yield cap_mb
        if cap_mb * MIB >= gradient_bytes:
            return


def with_own_ends(cap_mb: float, num_buckets: int) -> Iterator[BucketCaps]:
    """Yield variants of a cap that makes `num_buckets` buckets, with smaller buckets at its ends."""
    ends = [end for end in _ENDS_MB if end < cap_mb]
    yield from (BucketCaps(list_mb=(first, cap_mb)) for first in ends)
    if 1 < num_buckets <= _MOST_LISTED:
        up_to_the_last = (cap_mb,) * (num_buckets - 1)
        yield from (BucketCaps(list_mb=(*up_to_the_last, last)) for last in ends)
        yield from (BucketCaps(list_mb=(first, *up_to_the_last, last)) for first, last in product(ends, ends))
