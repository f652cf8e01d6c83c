"""Rules about what DDP does beside communicating."""

from typing import Any

import pytest
from msgspec.structs import replace
from observations import BUFFERS, MS, beside, observed, only
from tables import collective, ddp_module, forward, record, recorded, trace

from ddpprof.model import UNKNOWN, BackwardPass, Mark, Phase, Rank, RecordedStep, UntrainedParameters
from ddpprof.report.topics import find_all
from ddpprof.topics.unused_parameters import UNTRAINED, UntrainedTail, measure_untrained_tail
from ddpprof.topics.wrapper import WrapperCost, measure_wrapper_cost

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


@pytest.mark.parametrize(
    ("is_wrapped", "title", "advice", "gain_ns"),
    [
        (True, "1 parameter of Net gets a gradient, but no optimizer has it: p1", "before wrapping", 75 * MS),
        (
            False,
            "1 parameter of Net outside DDP gets a gradient, but no optimizer has it: p1",
            "torch.no_grad()",
            300 * MS // 7,
        ),
    ],
    ids=["of-a-ddp-module", "of-a-teacher"],
)
def test_parameters_that_no_optimizer_has(is_wrapped: bool, title: str, advice: str, gain_ns: int) -> None:
    """3 MB, of the 4 MB of the DDP module, or in addition to these."""
    mine = record(untrained=(UntrainedParameters("Net", ("p1",), 3_000_000, is_wrapped),))
    tails = (UntrainedTail(None),)
    (finding,) = beside(UNTRAINED.name, tails, module=ddp_module([1_000_000, 3_000_000]), records={0: mine})
    assert (finding.rule, finding.title, finding.may_be_meant) == ("untrained-parameters", title, True)
    assert advice in finding.advice
    assert finding.gain_ns == pytest.approx(gain_ns)
    unused = beside(UNTRAINED.name, tails, module=ddp_module([1_000_000, 3_000_000], unused=("p1",)), records={0: mine})
    assert ("untrained-parameters" in {one.rule for one in unused}) is not is_wrapped, "no gradient, no report"


def test_parameters_whose_learning_rate_is_0() -> None:
    """Of a step of 100 ms, autograd computes 40 ms for p1 alone, and p1 has a quarter of the bytes."""
    mine = record(untrained=(UntrainedParameters("Net", ("p1",), 1_000_000, has_no_rate=True),))
    tails = (UntrainedTail(None), UntrainedTail(40 * MS), UntrainedTail(44 * MS))
    (finding,) = beside(UNTRAINED.name, tails, module=ddp_module([3_000_000, 1_000_000]), records={0: mine})
    assert finding.title == "1 parameter of Net gets a gradient, but its learning rate is 0: p1"
    assert finding.evidence.endswith("; the last 40.0 ms of the backward pass compute only its gradients")
    assert finding.gain_ns == 40 * MS + 15 * MS
    assert finding.advice.endswith("Otherwise, set a learning rate other than 0 for its group.")


@pytest.mark.parametrize(
    ("passes", "tail_ns"),
    [
        pytest.param([(0, (20, 60))], 40, id="last"),
        pytest.param([(0, (60, 20))], 0, id="not-last"),
        pytest.param([(0, (20, 60)), (0, (20, 30)), (0, (20, 35))], 15, id="median"),
        pytest.param([(0, (None, 60))], None, id="no-trained-parameter-has-a-gradient"),
        pytest.param([(7, (20, 60))], None, id="module-unknown"),
        pytest.param([(0, (20, 60)), (1, (20,)), (1, (30,))], 40, id="modules-without-such-parameters-do-not-count"),
        pytest.param([], None, id="no-pass"),
    ],
)
def test_what_autograd_does_for_untrained_parameters_alone(
    passes: list[tuple[int, tuple[int | None, ...]]], tail_ns: int | None
) -> None:
    steps = (recorded(5, 0, 100, "light", passes=tuple(BackwardPass(index, 0, ready) for index, ready in passes)),)
    modules, untrained = (ddp_module([4, 4]), ddp_module([4])), (UntrainedParameters("Net", ("p1",), 4),)
    rank = Rank(0, None, record(0, modules, steps, untrained=untrained))
    assert measure_untrained_tail(rank, [], modules) == UntrainedTail(tail_ns)
    assert measure_untrained_tail(Rank(0, None, record(0, modules, steps)), [], modules) is None


@pytest.mark.parametrize(("device", "gain_ns"), [("cpu", 50 * MS), ("cuda", None)])
def test_double_precision(device: str, gain_ns: int | None) -> None:
    module = ddp_module([8000, 8000, 4000])
    types = [replace(one, dtype=dtype) for one, dtype in zip(module.parameters, DTYPES, strict=True)]
    finding = only(observed(replace(module, parameters=tuple(types)), device=device))
    assert (finding.rule, finding.gain_ns) == ("double-precision", gain_ns)
    assert finding.title == "2 of 3 parameters are 64-bit (torch.float64)"
    few = [replace(one, dtype=dtype) for one, dtype in zip(module.parameters, reversed(DTYPES), strict=True)]
    few[2] = replace(few[2], num_bytes=1000)
    few[1] = replace(few[1], dtype="float32")
    assert find_all(observed(replace(module, parameters=tuple(few)), device=device)) == ()


DTYPES = ("float64", "float64", "float32")


def test_a_single_parameter_or_buffer_is_said_to_be_one() -> None:
    finding = only(observed(ddp_module([1000, 1000], [[0, 1]], unused=("p0",))))
    assert finding.title == "1 parameter got no gradient in the recorded backward pass: p0"
    assert finding.evidence == "it is 1.0 kB of 2.0 kB, all-reduced unnecessarily"
    assert "freeze it before wrapping (parameter.requires_grad_(False)) or remove it." in finding.advice
    module = ddp_module(**{**BUFFERS, "num_buffers": 1, "num_batch_norms": 0}, broadcast_buffers=True)
    title = only(observed(module, buffer_sync_ns=MS)).title
    assert title == f"1 buffer of {module.name} is broadcast before every forward pass"


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
        ("2.13.0+cpu", None, "DistributedDataParallel(model, forward_sync_buffers=False)", "=False). Running"),
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


def test_the_largest_buffer_is_named() -> None:
    module = ddp_module(**BUFFERS, broadcast_buffers=True)
    assert "largest" not in only(observed(module, buffer_sync_ns=MS)).evidence, "a record of an older version"
    named = replace(module, largest_buffer="queue", largest_buffer_bytes=2_000_000)
    assert only(observed(named, buffer_sync_ns=MS)).evidence.endswith("; the largest buffer is queue (2.0 MB)")


def test_buffers_of_a_teacher_without_gradients_are_not_broadcast() -> None:
    module = ddp_module(**BUFFERS, broadcast_buffers=True)
    both = observed(module, modules=(module, module), buffer_sync_ns=MS)
    one = observed(module, modules=(module, module), buffer_sync_ns=MS, modules_with_buffer_syncs=(1,))
    numbers = [int(only(found).title.split()[0]) for found in (both, one)]
    assert numbers == [2 * module.num_buffers, module.num_buffers]


def test_of_buffers_beside_those_of_batch_norm_it_is_said_that_they_may_matter() -> None:
    module = ddp_module(**BUFFERS, num_buffers_of_batch_norms=5, broadcast_buffers=True)
    finding = only(observed(module, buffer_sync_ns=MS))
    assert finding.title == f"6 buffers of {module.name} are broadcast before every forward pass"
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
    assert "Do this only if the forward pass does not change them" in only(observed(module, buffer_sync_ns=MS)).advice


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


BACKWARD = (Mark.BACKWARD, 20, 60, 0)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        pytest.param([], WrapperCost(None, 0, 0, 0, 0, None), id="nothing"),
        pytest.param(
            [(Mark.UNUSED_SEARCH, 0, 5, 0), (Mark.BUCKET_COPY_IN, 20, 23, 0), (Mark.BUCKET_COPY_IN, 30, 34, 0)],
            WrapperCost(None, 5, 7, 0, 0, None),
            id="search-and-copies-in",
        ),
        pytest.param(
            [BACKWARD, (Mark.COLLECTIVE_CALL, 30, 34, 0), (Mark.COLLECTIVE_CALL, 70, 79, 0)],
            WrapperCost(None, 0, 0, 4, 0, None),
            id="only-collectives-called-in-backward-are-launches",
        ),
        pytest.param(
            [BACKWARD, (Mark.COLLECTIVE_CALL, 30, 34, 0), (Mark.BUCKET_COPY_IN, 33, 36, 0)],
            WrapperCost(None, 0, 3, 3, 0, None),
            id="nothing-counts-twice",
        ),
        pytest.param([(Mark.UNUSED_SEARCH, 0, 5, 1)], WrapperCost(None, 0, 0, 0, 0, None), id="another-step"),
    ],
)
def test_parts_by_mark(host: list[tuple[Mark, int, int, int]], expected: WrapperCost) -> None:
    measured = measure_wrapper_cost(trace(host=host), 0, None)
    assert measured == expected
    parts = (expected.unused_search_ns, expected.copy_in_ns, expected.launch_ns, expected.copy_out_ns)
    assert measured.total_ns == sum(parts)


@pytest.mark.parametrize(
    ("comm", "device", "finalise_ns"),
    [
        pytest.param([], "cpu", 27, id="all-but-the-copy-out"),
        pytest.param([(40, 75)], "cpu", 12, id="waiting-is-left-out"),
        pytest.param([(70, 75, 50)], "cpu", 12, id="waiting-for-what-is-queued-too"),
        pytest.param([(70, 75, UNKNOWN)], "cpu", 22, id="launch-not-known"),
        pytest.param([(40, 75)], "gpu", None, id="not-known-on-an-accelerator"),
    ],
)
def test_finalise_is_what_lies_between_backward_and_the_last_copy_out(
    comm: list[tuple[int, ...]], device: str, finalise_ns: int | None
) -> None:
    made = trace(
        compute=[(20, 60, Phase.BACKWARD, 0)],
        comm=[collective(*span[:2], launched=span[2] if len(span) > 2 else None) for span in comm],
        host=[(Mark.BUCKET_COPY_OUT, 80, 82, 0), (Mark.BUCKET_COPY_OUT, 89, 90, 0)],
        device=device,
    )
    assert measure_wrapper_cost(made, 0, None) == WrapperCost(None, 0, 0, 0, 3, finalise_ns)


def test_copies_out_within_backward_leave_nothing_to_finalise() -> None:
    made = trace(compute=[(20, 60, Phase.BACKWARD, 0)], host=[(Mark.BUCKET_COPY_OUT, 50, 55, 0)])
    assert measure_wrapper_cost(made, 0, None).finalise_ns == 0


@pytest.mark.parametrize(
    ("step", "epoch", "comm", "pre_forward_ns"),
    [
        pytest.param(recorded(forwards=()), 0, [], None, id="no-forward"),
        pytest.param(recorded(), None, [], None, id="no-common-clock"),
        pytest.param(recorded(forwards=(forward(0, 5, 30, 33),)), 0, [], 8, id="before-and-after-the-inner-forward"),
        pytest.param(
            recorded(forwards=(forward(1000, 1005, 1030, 1033),)), 1000, [], 8, id="by-the-trace's-clock"
        ),
        pytest.param(recorded(forwards=(forward(0, 5, 30, 33),)), 0, [(1, 4)], 5, id="less-the-buffers'-broadcast"),
        pytest.param(
            recorded(forwards=(forward(0, 5, 30, 33), forward(40, 41, 45, 46))), 0, [], 10, id="two-forwards"
        ),
    ],
)  # fmt: skip
def test_pre_forward(step: RecordedStep, epoch: int | None, comm: list[tuple[int, int]], pre_forward_ns: int) -> None:
    made = trace(comm=[collective(*span, Phase.FORWARD) for span in comm], epoch=epoch)
    assert measure_wrapper_cost(made, 0, step).pre_forward_ns == pre_forward_ns


def test_the_search_for_unused_parameters_counts_once() -> None:
    made = trace(host=[(Mark.UNUSED_SEARCH, 30, 32, 0)])
    cost = measure_wrapper_cost(made, 0, recorded(forwards=(forward(0, 5, 30, 33),)))
    assert (cost.pre_forward_ns, cost.unused_search_ns, cost.total_ns) == (6, 2, 8)
