"""Rules about what DDP does beside communicating."""

from typing import Any

import pytest
from observations import BUFFERS, MS, observed, only
from tables import ddp_module, record

from ddpprof.report.topics import find_all

SEARCHING = {"find_unused_parameters": True}


@pytest.mark.parametrize(
    ("module", "search_ns", "expected"),
    [
        pytest.param({**SEARCHING, "unused": None}, 2 * MS, [], id="not-observed"),
        pytest.param({"unused": ()}, None, [], id="all-used"),
        pytest.param({"unused": (), "num_lacking_passes": 0}, None, [], id="all-used-without-a-search"),
        pytest.param(
            {"unused": ("p0",), "graph_is_static": True}, 2 * MS, [("unused-parameters", None)], id="never-searched"
        ),
        pytest.param(
            {**SEARCHING, "unused": (), "num_lacking_passes": 0}, 2 * MS,
            [("find-unused-for-nothing", 2 * MS)], id="none",
        ),
        pytest.param(
            {**SEARCHING, "unused": (), "num_lacking_passes": 0}, None,
            [("find-unused-for-nothing", None)], id="not-timed",
        ),
        pytest.param(
            {**SEARCHING, "unused": (), "num_searched_passes": 9, "num_lacking_passes": 9}, 2 * MS, [],
            id="branches-take-turns",
        ),
        pytest.param(
            {**SEARCHING, "unused": (), "graph_is_static": False}, 2 * MS, [], id="the-recording-does-not-say"
        ),
        pytest.param(
            {**SEARCHING, "unused": (), "graph_is_static": True}, 2 * MS,
            [("find-unused-for-nothing", 2 * MS)], id="the-same-in-every-pass",
        ),
        pytest.param(
            {**SEARCHING, "unused": (), "static_graph": True}, None, [], id="static-graph"
        ),
        pytest.param(
            {"unused": ("p0",), "static_graph": True}, None, [("unused-parameters", None)], id="in-a-static-graph"
        ),
        pytest.param(
            {**SEARCHING, "unused": ("p0",), "graph_is_static": False}, 2 * MS,
            [("unused-parameters", None)], id="unused-and-changing",
        ),
        pytest.param(
            {**SEARCHING, "unused": ("p0",), "graph_is_static": True}, 2 * MS,
            [("static-graph", 2 * MS), ("unused-parameters", None)], id="unused-and-static",
        ),
        pytest.param(
            {**SEARCHING, "unused": ("p0",), "graph_is_static": True}, MS - 1,
            [("unused-parameters", None)], id="the-search-is-cheap",
        ),
    ],
)  # fmt: skip
def test_unused_parameters(
    module: dict[str, Any], search_ns: int | None, expected: list[tuple[str, int | None]]
) -> None:
    findings = find_all(observed(ddp_module(**module), unused_search_ns=search_ns))
    assert [(f.rule, f.gain_ns) for f in findings] == expected


def test_unused_parameters_are_named_with_their_bytes() -> None:
    names = tuple(f"p{i}" for i in range(7))
    finding = only(observed(ddp_module([1000] * 10, [range(10)], unused=names)))
    assert finding.title == "7 parameters got no gradient in the recorded backward pass: p0, p1, p2, p3, p4 and 2 more"
    assert finding.evidence == "they are 7.0 kB of 10.0 kB, all-reduced unnecessarily"
    skipped = only(observed(ddp_module([1000] * 10, [range(10)], unused=names, skip_all_reduce_unused_params=True)))
    assert skipped.evidence == "they are 7.0 kB of 10.0 kB"


def test_a_single_parameter_or_buffer_is_said_to_be_one() -> None:
    finding = only(observed(ddp_module([1000, 1000], [[0, 1]], unused=("p0",))))
    assert finding.title == "1 parameter got no gradient in the recorded backward pass: p0"
    assert finding.evidence == "it is 1.0 kB of 2.0 kB, all-reduced unnecessarily"
    assert "freeze it before wrapping (parameter.requires_grad_(False)) or remove it." in finding.advice
    module = ddp_module(**{**BUFFERS, "num_buffers": 1, "num_batch_norms": 0}, broadcast_buffers=True)
    title = only(observed(module, buffer_sync_ns=MS)).title
    assert title == f"1 buffer of {module.name} is broadcast before every forward"


@pytest.mark.parametrize(
    ("module", "sync_ns", "fires"),
    [
        pytest.param({**BUFFERS, "broadcast_buffers": True}, MS, True, id="exactly-one-percent"),
        pytest.param({**BUFFERS, "broadcast_buffers": True}, MS - 1, False, id="below-one-percent"),
        pytest.param({**BUFFERS, "broadcast_buffers": True}, None, False, id="not-measured"),
        pytest.param({**BUFFERS, "broadcast_buffers": False}, MS, False, id="switched-off"),
        pytest.param({"broadcast_buffers": True}, MS, False, id="no-buffers"),
    ],
)
def test_buffers_broadcast(module: dict[str, Any], sync_ns: int | None, fires: bool) -> None:
    findings = find_all(observed(ddp_module(**module), buffer_sync_ns=sync_ns))
    assert [(f.rule, f.gain_ns) for f in findings] == ([("buffers-broadcast", MS)] if fires else [])
    assert all("forward_sync_buffers=False" in f.advice and "on rank 0" in f.advice for f in findings)


@pytest.mark.parametrize(
    ("torch", "framework", "code", "says"),
    [
        ("2.13.0+cpu", None, "DistributedDataParallel(model, forward_sync_buffers=False)", "=False). Training"),
        ("2.12.1", None, "DistributedDataParallel(model, broadcast_buffers=False)", "start with the same buffers"),
        ("main", None, "DistributedDataParallel(model, broadcast_buffers=False)", "(before torch 2.13"),
        ("2.13.0", "transformers", "TrainingArguments(ddp_broadcast_buffers=False)", "start with the same buffers"),
    ],
)
def test_advice_on_buffers_and_its_change_are_those_of_the_version(
    torch: str, framework: str | None, code: str, says: str
) -> None:
    module = ddp_module(**BUFFERS, broadcast_buffers=True)
    records = {0: record(torch=torch)}
    (finding,) = find_all(observed(module, buffer_sync_ns=MS, records=records, framework=framework))
    assert finding.change is not None
    assert finding.change.code == code
    assert says in finding.advice


def test_buffers_of_a_teacher_without_gradients_are_not_broadcast() -> None:
    module = ddp_module(**BUFFERS, broadcast_buffers=True)
    both = observed(module, modules=(module, module), buffer_sync_ns=MS)
    one = observed(module, modules=(module, module), buffer_sync_ns=MS, modules_with_buffer_syncs=(1,))
    numbers = [int(only(found).title.split()[0]) for found in (both, one)]
    assert numbers == [2 * module.num_buffers, module.num_buffers]


def test_of_buffers_beside_those_of_batch_norm_it_is_said_that_they_may_matter() -> None:
    module = ddp_module(**BUFFERS, num_buffers_of_batch_norms=5, broadcast_buffers=True)
    finding = only(observed(module, buffer_sync_ns=MS))
    assert finding.title == f"6 buffers of {module.name} are broadcast before every forward"
    assert "the 1 buffer outside BatchNorm" in finding.advice
    assert "evaluate and save on rank 0" in finding.advice
    assert find_all(observed(module, buffer_sync_ns=MS, world_size=1)) == ()


@pytest.mark.parametrize("num_micro_steps", [1, 4])
def test_no_static_graph_is_advised_where_gradients_accumulate(num_micro_steps: int) -> None:
    """With one, torch fails if the first backward pass does not reduce (pytorch 143580)."""
    module = ddp_module(**SEARCHING, unused=("p0",), graph_is_static=True)
    found = find_all(observed(module, unused_search_ns=2 * MS, num_micro_steps=num_micro_steps))
    assert any("static_graph=True" in one.advice for one in found) is (num_micro_steps == 1)


def test_buffers_that_are_no_statistics_may_matter_to_training() -> None:
    module = ddp_module(**{**BUFFERS, "num_batch_norms": 0}, broadcast_buffers=True)
    assert "Do this only if the forward does not change them" in only(observed(module, buffer_sync_ns=MS)).advice


@pytest.mark.parametrize(
    ("views", "copy_out_ns", "fires"),
    [
        pytest.param(False, MS, True, id="exactly-one-percent"),
        pytest.param(False, MS - 1, False, id="below-one-percent"),
        pytest.param(False, None, False, id="not-measured"),
        pytest.param(True, MS, False, id="views"),
    ],
)
def test_gradient_copies(views: bool, copy_out_ns: int | None, fires: bool) -> None:
    findings = find_all(observed(ddp_module(gradient_as_bucket_view=views), copy_out_ns=copy_out_ns))
    assert [(f.rule, f.gain_ns) for f in findings] == ([("gradient-copies", MS)] if fires else [])


@pytest.mark.parametrize("measure", ["buffer_sync_ns", "copy_out_ns"])
def test_what_is_measured_for_all_modules_is_said_once(measure: str) -> None:
    module = ddp_module(**BUFFERS, broadcast_buffers=True)
    assert only(observed(module, modules=(module, module), **{measure: MS})).gain_ns == MS
