"""Our times of a step against those that DDP takes itself, on real training over gloo.

Both sides are `torch_times` of the report: DDP's `_get_ddp_logging_data()`, and the same spans rebuilt from our events.
DDP's, by torch's reducer.cpp, and where ours differ:

    forward    `prepare_for_forward` to `prepare_for_backward`. Ours begins just before the first and ends a few Python
               calls before the second: 10 to 20 µs shorter.
    backward   `prepare_for_backward` to the callback that the engine runs behind the last node of the graph. Ours
               begins earlier, where our forward ends, and ends with that node: 30 to 45 µs longer.
    comm       launch of the first bucket to the end of that callback, which has waited for all buckets and copied their
               gradients back. Ours ends with the last copy: 5 µs shorter. Where nothing is copied, gloo's span may also
               end up to 150 µs later than its result is there, when its thread runs again.
    overlap    the part of `comm` within `backward`: 5 to 10 µs shorter.

Measured here (2 cores, 2 ranks, torch 2.13, 13 steps), median over steps of (ours - DDP's) / DDP's, the worse rank:

                forward    backward   comm       overlap
    convnet     -0.2 %     +0.2 %     -0.03 %    -0.06 %
    plain       -0.2 %     +1.6 %     -0.03 %    -0.5 %

So 2 % of the span, or 100 µs where it is short, is twice what the definitions explain, and far below a mistake of
definition (the buffer sync in the forward, gaps between buckets, another step's times). The median over steps is
judged, because in a single step a thread may lose its core between the two stamps (forward: up to 7 %).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import pytest
from jobs import Run, on_ranks, script

Report = Callable[[str], dict[str, Any]]

RELATIVE = 0.02
ABSOLUTE_NS = 100_000
WINDOW = ["--skip-first", "2", "--cost-steps", "2", "--steps", "14"]
"""The last profiled step has no times: DDP publishes them one iteration later."""


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(["-m", "ddpprof.demo.train_convnet", "--steps", "21"], id="convnet"),
        pytest.param(
            on_ranks(2, *script("variants.py", "--variant", "plain")), id="a-dozen-buckets", marks=pytest.mark.long
        ),
    ],
)
def test_our_times_are_ddps_own(job: list[str], ddpprof: Run, report: Report) -> None:
    """Other work on the machine can spoil a measurement, so up to five jobs are recorded; a mistake is in all."""
    for number in range(5):
        done = ddpprof("trace", "--quiet", "--out", f"run-{number}", *WINDOW, *job)
        assert done.returncode == 0, done.stderr
        far_off = [found for rank in report(f"run-{number}")["ranks"] for found in times_far_off(rank)]
        if not far_off:
            return
    pytest.fail(f"ours are not DDP's own: {far_off}")


def times_far_off(rank: dict[str, Any]) -> Iterator[str]:
    times = [step["torch_times"] for step in rank["steps"] if step["torch_times"]]
    assert len(rank["steps"]) == 14
    assert len(times) == 13
    for name in ("forward", "backward", "comm", "overlap"):
        theirs = median(step[f"torch_{name}_ns"] for step in times)
        off = median(step[f"{name}_ns"] - step[f"torch_{name}_ns"] for step in times)
        assert theirs > 0
        if abs(off) > max(RELATIVE * theirs, ABSOLUTE_NS):
            yield f"rank {rank['rank']}, {name}: {off} ns off, of {theirs} ns"
