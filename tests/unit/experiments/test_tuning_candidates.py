"""From a profiled job to the settings that are tried."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as replace_struct
from predictions import network
from replayed_runs import MODULE, known

from ddpprof.errors import DdpprofError
from ddpprof.experiments.tuning_candidates import knobs_of, shortlisted
from ddpprof.predict.replay import Cost, Link


def test_a_network_that_was_measured_is_the_job_s_own() -> None:
    """However fast it is, the job as it is takes as long as it took."""
    for ns_per_byte in (0.3, 1.0, 3.0):
        listed, unpredicted = shortlisted(known(), network(Link(Cost(0.0, ns_per_byte))), 4, allow_lossy=False)
        assert unpredicted is None
        assert listed.now.forecast is not None
        measured_ns = shortlisted(known(), None, 4, allow_lossy=False)[0].now.forecast
        assert measured_ns is not None
        assert listed.now.forecast.step_ns == pytest.approx(measured_ns.step_ns)


def test_a_network_among_other_ranks_is_refused() -> None:
    with pytest.raises(DdpprofError, match="--network was measured among 8 ranks, but the job has 2"):
        shortlisted(known(), network(world_size=8), 4, allow_lossy=False)


@pytest.mark.parametrize(
    ("version", "has_lists"), [("2.13.0+cpu", True), ("3.0", True), ("2.9.1", False), ("2.12", False), (None, False)]
)
def test_lists_of_caps_only_where_torch_has_them(version: str | None, has_lists: bool) -> None:
    job = replace(known().report.job, torch=version)
    assert knobs_of(MODULE, job, allow_lossy=False).accepted.lists is has_lists


@pytest.mark.parametrize(("num_micro_steps", "is_tried"), [(1, True), (4, False), (None, False)])
def test_no_static_graph_where_gradients_accumulate(num_micro_steps: int | None, is_tried: bool) -> None:
    settings = {**MODULE.settings, "find_unused_parameters": True}
    module = replace_struct(MODULE, settings=settings, graph_is_static=True)
    job = replace(known().report.job, num_micro_steps=num_micro_steps)
    assert knobs_of(module, job, allow_lossy=False).static_graph is is_tried
