"""Our times of a step against those that DDP takes itself, on real training over gloo.

Both sides are `torch_times` of the report: DDP's `_get_ddp_logging_data()`, and the same spans rebuilt from our events.
DDP's, by torch's reducer.cpp, and where ours differ:

    forward    `prepare_for_forward` to `prepare_for_backward`. Ours lies around the first and ends a few Python calls
               before the second: shorter by 10 to 20 µs.
    backward   `prepare_for_backward` to the callback that the engine runs behind the last node of the graph. Ours
               begins those 10 to 20 µs earlier and ends within the last node, when the last bucket is launched: from
               20 µs longer to 100 µs shorter, and by milliseconds where the thread loses its core to gloo's just then.
    comm       launch of the first bucket to the end of the callback, which has waited for all buckets and copied their
               gradients back. Ours ends with the last collective: shorter by the copies (convnet: 200 µs of 24 ms),
               longer by at most the time that gloo's thread takes to close its span after the result is there.
    overlap    launch of the first bucket to the end of `backward`. Ours: as there, 15 to 150 µs shorter.

Measured here (2 cores, 2 ranks, torch 2.13, 13 steps), median over steps of (ours - DDP's) / DDP's:

                forward    backward   comm       overlap
    convnet     -0.2 %     -0.6 %     -0.9 %     -1.0 %
    plain       -0.2 %     +0.9 %     -0.9 %     -1.3 %

So 5 % of the span, or 200 µs where the span is short, is several times what the definitions explain, and far below any
mistake of definition (buffer sync in the forward or not, gaps between buckets, another step's times). The median over
steps is judged, because single steps differ by up to half where a thread lost its core between the two stamps.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import pytest
from jobs import Run, script

Report = Callable[[str], dict[str, Any]]

RELATIVE = 0.05
ABSOLUTE_NS = 200_000
WINDOW = ["--skip-first", "2", "--cost-steps", "2", "--steps", "14"]
"""The last profiled step has no times: DDP publishes them one iteration later."""


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(["-m", "ddpprof.demo.train_convnet", "--steps", "21"], id="convnet"),
        pytest.param(
            script("variants.py", "--variant", "plain", "--ranks", "2"), id="a-dozen-buckets", marks=pytest.mark.slow
        ),
    ],
)
def test_our_times_are_ddps_own(job: list[str], ddpprof: Run, report: Report) -> None:
    done = ddpprof("trace", "--quiet", "--out", "run", *WINDOW, *job)
    assert done.returncode == 0, done.stderr
    for rank in report("run")["ranks"]:
        times = [step["torch_times"] for step in rank["steps"] if step["torch_times"]]
        assert len(rank["steps"]) == 14
        assert len(times) == 13
        for name in ("forward", "backward", "comm", "overlap"):
            theirs = median(step[f"torch_{name}_ns"] for step in times)
            off = median(step[f"{name}_ns"] - step[f"torch_{name}_ns"] for step in times)
            assert theirs > 0
            assert abs(off) <= max(RELATIVE * theirs, ABSOLUTE_NS), (rank["rank"], name, off, theirs)
