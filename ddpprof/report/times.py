"""Whose time is each number of the report? On an accelerator the host launches work that the device does later.

Both use the host's clock, so they can be compared, but a length on one side is not a length on the other.
"""

from __future__ import annotations

from collections.abc import Mapping

HOST, DEVICE = "host", "device"

_FIELDS = {
    HOST: (
        "ranks[].steps[].wrapper",
        "ranks[].light_steps[].duration_ns",
        "ranks[].light_steps[].parts",
        "ranks[].recording_cost",
        "buckets[].first_ready_ns",
        "buckets[].ready_ns",
        "buckets[].launched_ns",
        "buckets[].slowest_parameter_delay_ns",
        "buckets[].late_by_ns",
        "across.late_gradients",
        "across.stragglers.step_ns",
        "attempts[].step_ns",
        "rpc",
        "whole_run",
    ),
    DEVICE: (
        "ranks[].whole",
        "ranks[].steps[].duration_ns",
        "ranks[].steps[].compute_ns",
        "ranks[].steps[].comm_ns",
        "ranks[].steps[].overlap_ns",
        "ranks[].steps[].exposed_ns",
        "ranks[].steps[].copy_ns",
        "ranks[].steps[].trailing_ns",
        "ranks[].steps[].parts",
        "ranks[].steps[].idle",
        "ranks[].steps[].torch_times",
        "ranks[].devices",
        "buckets[].started_ns",
        "buckets[].finished_ns",
        "buckets[].transfer_ns",
        "kernels",
        "overlap_slowdown",
        "outside",
        "across.collectives",
        "across.waiting",
        "across.stragglers.ranks",
        "across.stragglers.stragglers",
        "bound.step_ns",
        "bound.exposed_ns",
        "bound.comm_ns",
        "bound.waiting_ns",
        "own_reduction",
        "data_parallel",
    ),
}


def is_accelerator(device: str | None) -> bool:
    return device not in (None, "cpu")


def times_of(device: str | None) -> Mapping[str, str]:
    """Return whose time each field of the JSON report is, with all that is below it.

    Empty on CPU, where the host does all work itself.
    """
    if not is_accelerator(device):
        return {}
    return {field: whose for whose, fields in _FIELDS.items() for field in fields}
