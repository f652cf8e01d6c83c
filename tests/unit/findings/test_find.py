"""All rules together."""

from dataclasses import replace

import pytest
from observations import BUFFERS, HELD, LATE, MS, loader, observed
from tables import ddp_module

from ddpprof.findings import RULES, Observed, find


@pytest.mark.parametrize("step_ns", [0, None])
def test_a_step_without_length_gives_nothing_back(step_ns: int | None) -> None:
    names = (
        "exposed_ns",
        "trailing_ns",
        "data_ns",
        "buffer_sync_ns",
        "unused_search_ns",
        "copy_out_ns",
        "slowdown_lost_ns",
        "launch_bound_ns",
    )
    everything = dict.fromkeys(names, 0)
    module = replace(HELD, num_buffers=1, settings={"broadcast_buffers": True})
    assert find(observed(module, LATE, step_ns=step_ns, **everything)) == ()


def test_most_first_and_unknown_gains_last() -> None:
    module = ddp_module(**BUFFERS, broadcast_buffers=True, unused=("p0",))
    o = observed(module, data_ns=9 * MS, buffer_sync_ns=3 * MS, copy_out_ns=20 * MS, loaders={0: (loader(),)})
    assert [(f.rule, f.gain_ns) for f in find(o)] == [
        ("gradient-copies", 20 * MS), ("idle-for-data", 9 * MS), ("buffers-broadcast", 3 * MS),
        ("unused-parameters", None),
    ]  # fmt: skip


def test_nothing_known_nothing_found() -> None:
    assert find(Observed(world_size=None, step_ns=None)) == ()
    assert len(RULES) == len(set(RULES))
