"""Time of the script's own lines: samples and idle gaps made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tables import collective, record, recorded, trace

from ddpprof.engine.topic import View
from ddpprof.model import CodeSamples, Mark, Phase, Rank, RpcCall, StepMode
from ddpprof.topics.script_code import (
    SCRIPT_CODE,
    SCRIPT_LINES,
    CodeLine,
    RankCode,
    ScriptLine,
    code_in_backward,
    code_outside_passes,
    lines_of_collectives,
    longest_line,
    measure_code,
    measure_lines,
    metrics_in_step,
    script_code,
    slowest_line_of,
    slowest_line_of_data,
)

MS = 1_000_000
LOG, LOAD, MODEL = "/a/train.py:7 in log", "/a/data.py:3 in __getitem__", "/a/train.py:9 in main"
SAMPLES = CodeSamples(
    began_ns=1000,
    # of a step from 0 to 20 ms: loading until 4 ms, the model until 12, unknown until 13, logging until 19
    ends_us=(4000, 12000, 13000, 19000),
    places=(1, 2, -1, 0),
    lines=(LOG, LOAD, MODEL),
    is_in_framework=(False, False, True),
)


def rank(samples: Any = SAMPLES, **changes: Any) -> Rank:
    """Waits for data until 3 ms, and computes from 4 to 8, and from 8.4 to 12 ms."""
    compute = [(4 * MS, 8 * MS, Phase.FORWARD, 0), (8 * MS + 400_000, 12 * MS, Phase.BACKWARD, 0)]
    host = [(Mark.DATA, 0, 3 * MS, 0)]
    made = trace([(0, 20 * MS)], compute=compute, host=host, **{"epoch": 1000, **changes})
    return Rank(0, made, record(code_samples=samples))


def test_lines_get_the_long_gaps_in_which_they_run() -> None:
    found = measure_code(rank(), [0])
    assert found == RankCode(0, 1, (CodeLine(LOG, 6 * MS, 0), CodeLine(LOAD, 1 * MS, 3 * MS)))
    assert found.idle_ns == 7 * MS


def test_waiting_for_a_remote_call_is_not_the_scripts_own_code() -> None:
    """Logging runs from 13 to 19 ms. It waits for a call from 14 to 17 ms, and does not wait for another."""
    calls = [RpcCall("rank1", "log", kind, 1000 + 14 * MS, 1000 + 17 * MS, 0, 0) for kind in ("sync", "async")]
    for call, expected_ms in zip(calls, (3, 6), strict=True):
        step = recorded(0, StepMode.PROFILED, rpc=(call,))
        found = measure_code(replace(rank(), record=record(code_samples=SAMPLES, steps=(step,))), [0])
        assert found is not None
        assert {one.line: one.idle_ns for one in found.lines}[LOG] == expected_ms * MS


def test_lines_get_the_time_of_the_step_in_which_they_run() -> None:
    """Also in backward passes and in libraries. A line that calls the whole step, or takes little, is left out."""
    samples = msgspec.structs.replace(SAMPLES, runs_backward=(False, False, True))
    assert measure_lines(rank(), [0]) is None, "an older record, without the lines of backward passes"
    assert measure_lines(rank(samples), [0]) == (
        ScriptLine(MODEL, 8 * MS, 0.4, 400_000, 4 / 94),
        ScriptLine(LOG, 6 * MS, 0.3, 6 * MS, 60 / 94),
        ScriptLine(LOAD, 4 * MS, 0.2, 1 * MS, 10 / 94),
    )
    fits = msgspec.structs.replace(samples, ends_us=(19_500, 20_000), places=(2, 0))
    assert measure_lines(rank(fits), [0]) == ()
    assert measure_lines(rank(samples, device="cuda"), [0]) is None
    assert measure_lines(Rank(0, rank().trace, record()), [0]) is None


def test_exposed_communication_does_not_count_for_a_line() -> None:
    """Logging runs from 13 to 19 ms; a collective runs from 10 to 16 ms, and is hidden until 12 ms."""
    samples = msgspec.structs.replace(SAMPLES, runs_backward=(False, False, True))
    found = measure_lines(rank(samples, comm=[collective(10 * MS, 16 * MS, Phase.BACKWARD, 0)]), [0])
    assert found is not None
    assert {one.line: one.step_ns // MS for one in found} == {MODEL: 8, LOAD: 4, LOG: 3}
    slow, fast = ((ScriptLine(LOG, ms * MS, 0.5, 0, 0.0),) for ms in (50, 8))
    assert SCRIPT_LINES.of_ranks is not None
    assert SCRIPT_LINES.of_ranks([fast, slow]) == slow


def test_one_late_sample_does_not_make_a_line_the_training_loop() -> None:
    """In one of five steps, the sample of the line that follows the forward pass covers the forward pass, too."""
    starts = [20 * MS * step for step in range(5)]
    compute = [(start + 10 * MS, start + 14 * MS, Phase.OTHER, step) for step, start in enumerate(starts)]
    marks = ((Mark.FORWARD, 2, 6), (Mark.OPTIMIZER, 18, 20))
    host = [(mark, at + a * MS, at + b * MS, step) for step, at in enumerate(starts) for mark, a, b in marks]
    made = trace([(start, start + 20 * MS) for start in starts], compute=compute, host=host, epoch=1000)
    ends_us = [start // 1000 + end_us for start in starts for end_us in (2000, 6000, 18_000, 20_000)]
    places = (0, 0, 0, 1, *(0, 1, 0, 1) * 4)
    samples = CodeSamples(1000, tuple(ends_us), places, (AVERAGE, MODEL), (True, True))
    found = measure_code(Rank(0, made, record(code_samples=samples)), range(5))
    assert found is not None
    assert {one.line: one.outside_ns // MS for one in found.lines if one.outside_ns} == {AVERAGE: 14}


def test_lines_that_run_a_backward_pass_are_no_code_of_the_script_or_of_a_library() -> None:
    samples = msgspec.structs.replace(SAMPLES, is_in_framework=(False, False, True), runs_backward=(True, False, True))
    found = measure_code(rank(samples), [0])
    assert found is not None
    assert [one.line for one in found.lines] == [LOAD]


def test_a_line_that_takes_long_in_one_step_is_told_apart() -> None:
    """Logging runs in the last of three steps only, and the model's own gaps do not count."""
    samples = msgspec.structs.replace(SAMPLES, ends_us=(41_000, 59_000), places=(2, 0))
    made = rank(samples)
    assert made.trace is not None
    steps = [(0, 20 * MS), (20 * MS, 40 * MS), (40 * MS, 60 * MS)]
    found = measure_code(replace(made, trace=trace(steps, epoch=1000)), [0, 1, 2])
    assert found == RankCode(0, 3, (), CodeLine(LOG, 18 * MS, 0))
    assert longest_line(View(2, None, shown={SCRIPT_CODE.name: (found,)})) == CodeLine(LOG, 18 * MS, 0)
    assert longest_line(View(2, None)) is None


HOOK = "/a/train.py:21 in hook"


def test_lines_that_autograd_runs_take_their_whole_time() -> None:
    """The hook runs from 4 to 12 ms, with the operators that it calls; in a framework or not, it is the script's."""
    lines = {"lines": (LOG, LOAD, HOOK), "is_in_backward": (False, False, True)}
    for is_in_framework in (False, True):
        samples = msgspec.structs.replace(SAMPLES, **lines, is_in_framework=(False, False, is_in_framework))
        found = measure_code(rank(samples), [0])
        assert found is not None
        assert found.lines[0] == CodeLine(HOOK, 0, 0, 8 * MS)
        assert (found.backward_ns, found.idle_ns) == (8 * MS, 7 * MS)


@pytest.mark.parametrize(("device", "expected_ms"), [("cpu", 5), ("cuda", 8)])
def test_waiting_for_collectives_of_layers_is_not_the_code_of_the_backward_pass(device: str, expected_ms: int) -> None:
    """An autograd function all-reduces from 5 to 8 ms; on an accelerator, the host does not wait for it."""
    node = "autograd::engine::evaluate_function: ExchangeBackward"
    hook = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    marks = [(Mark.BACKWARD, 4 * MS, 12 * MS, 0, 1), (Mark.BACKWARD, 13 * MS, 14 * MS, 0, 2)]
    exchange = collective(5 * MS, 8 * MS, launched=5 * MS, phase=Phase.BACKWARD)
    made = trace([(0, 20 * MS)], comm=[exchange], host=marks, names=("x", node, hook), epoch=1000)
    samples = msgspec.structs.replace(SAMPLES, lines=(LOG, LOAD, HOOK), is_in_backward=(False, False, True))
    found = measure_code(Rank(0, made, record(code_samples=samples, device=device)), [0])
    assert found is not None
    assert found.backward_ns == expected_ms * MS


def test_the_finding_on_hooks_and_checkpointing() -> None:
    ranks = [
        RankCode(number, 5, (CodeLine(HOOK, 0, 0, ms * MS), CodeLine(LOG, MS, 0))) for number, ms in ((0, 9), (1, 7))
    ]
    (found,) = code_in_backward(ranks, View(2, step_ns=100 * MS))
    assert found.title == "Code of the script takes 7.00 ms of the backward pass, mostly at train.py:21 in hook"
    assert (found.gain_ns, found.may_be_meant, found.subject) == (7 * MS, True, {"line": HOOK})
    assert list(code_in_backward(ranks, View(2, step_ns=150 * MS))) == [], "less than 5 %"


AVERAGE, CLIP = "/a/train.py:33 in average", "/a/train.py:25 in main"


def with_work_outside(device: str, is_in_framework: bool = False, comm_from: float = 18.5) -> Rank:
    """A step from 0 to 20 ms, with work between these passes.

    The forward ends at 6 ms, the backward at 12 ms. Clipping runs until 14 ms, the optimizer until 15 ms. Weights are
    averaged from 15 to 19 ms, with operators from 15 to 15.4, 15.7 to 17 and 18 to 19 ms; a collective ends at 19.5 ms.
    """
    phases = [(2, 6, Phase.FORWARD), (6, 7, Phase.OTHER), (7, 12, Phase.BACKWARD), (12.2, 14, Phase.OTHER)]
    phases += [(14, 15, Phase.OPTIMIZER), (15, 15.4, Phase.OTHER), (15.7, 17, Phase.OTHER), (18, 19, Phase.OTHER)]
    compute = [(int(start * MS), int(end * MS), phase, 0) for start, end, phase in phases]
    marks = [(Mark.DATA, 0, 2), (Mark.FORWARD, 2, 6), (Mark.BACKWARD, 7, 12), (Mark.OPTIMIZER, 14, 15)]
    host = [(mark, start * MS, end * MS, 0) for mark, start, end in marks]
    comm = [collective(int(18.5 * MS), int(19.5 * MS), launched=int(comm_from * MS), phase=Phase.OTHER)]
    made = trace([(0, 20 * MS)], compute=compute, host=host, comm=comm, epoch=1000, device=device)
    samples = CodeSamples(
        began_ns=1000,
        ends_us=(2000, 12_000, 15_000, 20_000),
        places=(-1, -1, 1, 0),
        lines=(AVERAGE, CLIP),
        is_in_framework=(is_in_framework, True),
    )
    return Rank(0, made, record(code_samples=samples, device=device))


@pytest.mark.parametrize(
    ("device", "is_in_framework", "average_us", "clip_us"),
    [
        # 15 to 18.5 ms, and 19.5 to 20 ms; without the gap from 17 to 18 ms, which is the script's own Python code
        pytest.param("cpu", False, 2500, 2000, id="cpu"),
        pytest.param("cpu", True, 4000, 2000, id="library"),
        pytest.param("cuda", False, 2700, 1800, id="kernels"),
    ],
)
def test_lines_take_time_outside_the_passes(device: str, is_in_framework: bool, average_us: int, clip_us: int) -> None:
    found = measure_code(with_work_outside(device, is_in_framework), [0])
    assert found is not None
    outside_us = {one.line: one.outside_ns // 1000 for one in found.lines if one.outside_ns}
    assert outside_us == {AVERAGE: average_us, CLIP: clip_us}


@pytest.mark.parametrize(("comm_from", "average_us"), [(18.0, 2000), (16.0, None)], ids=["partly", "mostly"])
def test_a_line_that_mostly_calls_collectives_is_left_out(comm_from: float, average_us: int | None) -> None:
    """Launched at `comm_from`, the collective ends at 19.5 ms: such lines have findings of their own."""
    found = measure_code(with_work_outside("cpu", comm_from=comm_from), [0])
    assert found is not None
    outside_us = {one.line: one.outside_ns // 1000 for one in found.lines if one.outside_ns}
    assert outside_us == {CLIP: 2000} | ({} if average_us is None else {AVERAGE: average_us})
    comm_us = {one.line: one.comm_ns // 1000 for one in found.lines if one.comm_ns}
    assert comm_us == {AVERAGE: round(19_500 - comm_from * 1000)}


def test_collectives_of_other_steps_do_not_count() -> None:
    """In five steps of 20 ms, a line computes from 10 to 14 ms, and waits for a collective from 14 to 16 ms."""
    starts = [20 * MS * step for step in range(5)]
    steps = [(start, start + 20 * MS) for start in starts]
    compute = [(start + 10 * MS, start + 14 * MS, Phase.OTHER, step) for step, start in enumerate(starts)]
    host = [(Mark.FORWARD, start + 2 * MS, start + 6 * MS, step) for step, start in enumerate(starts)]
    comm = [collective(start + 14 * MS, start + 16 * MS, Phase.OTHER, step) for step, start in enumerate(starts)]
    made = trace(steps, compute=compute, host=host, comm=comm, epoch=1000)
    ends_us = [start // 1000 + end_us for start in starts for end_us in (2000, 6000, 20_000)]
    samples = CodeSamples(1000, tuple(ends_us), (0, 1, 0) * 5, (AVERAGE, MODEL), (True, True))
    found = measure_code(Rank(0, made, record(code_samples=samples)), range(5))
    assert found is not None
    ((line),) = found.lines
    assert (line.line, line.comm_ns, line.outside_ns) == (AVERAGE, 2 * MS, 14 * MS)


def test_code_of_a_closure_is_outside_the_optimizer_but_the_loop_of_a_framework_is_no_code() -> None:
    """An optimizer calls forward and backward, code of the script and, at its end, its own operators.

    One line calls the loop, which takes 1 ms beside the passes.
    """
    fit, norms = "/a/train.py:56 in main", "/a/train.py:38 in on_before_optimizer_step"
    compute = [(2 * MS, 6 * MS, Phase.FORWARD, 0), (7 * MS, 12 * MS, Phase.BACKWARD, 0)]
    compute += [(12 * MS, 16 * MS, Phase.OPTIMIZER, 0), (16 * MS, 20 * MS, Phase.OPTIMIZER, 0)]
    host = [(Mark.OPTIMIZER, 0, 20 * MS, 0), (Mark.FORWARD, 2 * MS, 6 * MS, 0), (Mark.BACKWARD, 7 * MS, 12 * MS, 0)]
    made = trace([(0, 20 * MS)], compute=compute, host=host, epoch=1000)
    samples = CodeSamples(1000, (12_000, 16_000, 20_000), (0, 1, 0), (fit, norms), (True, True))
    step = recorded(0, 1000, 1000 + 20 * MS, optimizers=((1000, 1000), (1000 + 16 * MS, 1000 + 20 * MS)))
    found = measure_code(Rank(0, made, record(steps=[step], code_samples=samples)), [0])
    assert found is not None
    assert {one.line: one.outside_ns for one in found.lines if one.outside_ns} == {norms: 4 * MS}


def test_lines_that_wait_for_collectives() -> None:
    few = RankCode(1, 5, (CodeLine(LOG, 0, 0, comm_ns=20 * MS), CodeLine(CLIP, 0, 0, comm_ns=1 * MS)))
    late = RankCode(0, 5, (CodeLine(LOG, 0, 0, comm_ns=40 * MS),))
    view = View(2, None, shown={SCRIPT_CODE.name: (late, few)})
    assert lines_of_collectives(view) == "; the script waits for collectives at train.py:7 in log (20.0 ms)"
    assert lines_of_collectives(View(2, None)) == ""


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_scripts_own_operators_between_forward_and_backward(device: str) -> None:
    """The forward ends at 6 ms, the backward begins at 7 ms. A loss of PyTorch is not the script's own code."""
    one = with_work_outside(device)
    assert one.record is not None
    samples = CodeSamples(1000, (6400, 7000, 20_000), (0, 1, -1), (AVERAGE, CLIP), (False, True))
    record_ = msgspec.structs.replace(one.record, code_samples=samples)
    found = measure_code(replace(one, record=record_), [0])
    assert found is not None
    expected_us = 400 if device == "cpu" else 1000  # the kernel is launched by the first line
    assert {line.line: line.loss_ns // 1000 for line in found.lines if line.loss_ns} == {AVERAGE: expected_us}


def test_code_in_a_module_outside_ddp_counts_for_its_caller() -> None:
    one = with_work_outside("cpu")
    assert one.record is not None
    assert one.record.code_samples is not None
    samples = msgspec.structs.replace(one.record.code_samples, callers=("/a/train.py:80 in rollout", ""))
    found = measure_code(replace(one, record=msgspec.structs.replace(one.record, code_samples=samples)), [0])
    assert found is not None
    assert {line.line: line.outside_ns // 1000 for line in found.lines if line.outside_ns} == {
        "/a/train.py:80 in rollout": 2500,
        CLIP: 2000,
    }
    assert [line.line for line in found.lines if line.idle_ns] == [AVERAGE], "Python code counts where it is"


def test_less_is_reported_of_the_scripts_own_operators_than_of_functions_of_pytorch() -> None:
    for own_ms, is_reported in ((3, True), (2, False)):
        code = RankCode(0, 5, (CodeLine(CLIP, 0, 0, 0, 4 * MS, own_ms * MS),))
        assert bool(list(code_outside_passes([code], View(1, step_ns=100 * MS)))) is is_reported


def test_a_large_part_of_the_loss_counts_as_outside() -> None:
    lines = (CodeLine(AVERAGE, 0, 0, 0, MS, 0, 9 * MS), CodeLine(CLIP, 0, 0, 0, 3 * MS))
    (found,) = code_outside_passes([RankCode(0, 5, lines)], View(1, step_ns=90 * MS))
    assert found.gain_ns == 13 * MS
    assert found.evidence.endswith("; 9.00 ms of it after the forward pass, as part of the loss")
    assert not list(code_outside_passes([RankCode(0, 5, lines)], View(1, step_ns=91 * MS))), "4 ms, without the loss"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_computing_metrics(device: str) -> None:
    """The line calls torchmetrics from 12 to 19 ms. A collective is exposed from 16 to 18 ms.

    On an accelerator, a kernel that torchmetrics launches runs from 13 to 15 ms, and the line has the idle gaps from 12
    to 13, from 15 to 16 and from 18 to 19 ms.
    """
    compute = [
        (4 * MS, 12 * MS, Phase.FORWARD, 0, 0, 4 * MS),
        (13 * MS, 15 * MS, Phase.FORWARD, 0, 0, 12 * MS + 1),
        (20 * MS, 21 * MS, Phase.FORWARD, 1, 0, 20 * MS),
    ]
    made = trace([(0, 20 * MS), (20 * MS, 40 * MS)], compute=compute, comm=[collective(16 * MS, 18 * MS)],
                 device=device, epoch=1000)  # fmt: skip
    metric = "/a/train.py:13 in training_step"
    samples = CodeSamples(
        1000, (12_000, 19_000, 20_000), (0, 1, 0), (MODEL, metric), (True, True), computes_metrics=(False, True)
    )
    found = measure_code(Rank(0, made, record(code_samples=samples)), [0])
    assert found is not None
    assert {one.line: one.metric_ns // 1000 for one in found.lines if one.metric_ns} == {metric: 5000}
    assert not any(one.idle_ns or one.outside_ns for one in found.lines), "the time counts once"


def test_the_finding_on_metrics() -> None:
    ranks = [
        RankCode(number, 5, (CodeLine(LOG, 0, 0), CodeLine(MODEL, 0, 0, metric_ns=ms * MS)))
        for number, ms in ((0, 9), (1, 6))
    ]
    (found,) = metrics_in_step(ranks, View(2, step_ns=100 * MS, profiled_ratio=1.5))
    assert found.title == "Computing metrics takes 4.00 ms per step, mostly at train.py:9 in main"
    assert found.evidence == (
        "train.py:9 in main: 6.00 ms, as sampled in 5 profiled steps of rank 1, which take 1.50 × as long as other "
        "steps"
    )
    assert (found.gain_ns, found.may_be_meant, found.subject) == (4 * MS, True, {"line": MODEL})
    assert list(metrics_in_step(ranks, View(2, step_ns=201 * MS))) == [], "less than 3 %"


@pytest.mark.parametrize(
    ("rule", "gain_ms"),
    [
        pytest.param(code_in_backward, 5, id="backward"),
        pytest.param(code_outside_passes, 5, id="outside"),
        pytest.param(script_code, 8, id="no-operators"),  # which the profiler does not slow down
    ],
)
def test_gains_are_those_of_steps_without_the_profiler(rule: Any, gain_ms: int) -> None:
    ranks = [RankCode(0, 5, (CodeLine(LOG, 8 * MS, 0, 8 * MS, 8 * MS),))]
    (found,) = rule(ranks, View(2, step_ns=100 * MS, device="cpu", profiled_ratio=1.6))
    assert found.gain_ns == gain_ms * MS
    assert f"{gain_ms}.00 ms" in found.title
    assert "sampled in 5 profiled steps of rank 0, which take 1.60 × as long as other steps" in found.evidence


@pytest.mark.parametrize("rule", [script_code, code_in_backward, code_outside_passes, metrics_in_step])
@pytest.mark.parametrize(("took_ns", "is_found"), [(1_900_000, False), (2 * MS, True)])
def test_a_few_samples_show_nothing(rule: Any, took_ns: int, is_found: bool) -> None:
    """In steps of 10 ms, a sample every 2 ms is a fifth of the step; it may hit any line by chance."""
    times = {"backward_ns": took_ns, "outside_ns": took_ns, "own_outside_ns": took_ns, "metric_ns": took_ns}
    rank = RankCode(0, 5, (CodeLine(LOG, took_ns, 0, **times),))
    assert bool(list(rule((rank,), View(2, 10 * MS)))) is is_found


def test_without_a_forward_of_ddp_nothing_is_outside_the_passes() -> None:
    found = measure_code(rank(), [0])
    assert found is not None
    assert found.outside_ns == 0


def test_the_finding_on_work_outside_the_passes() -> None:
    ranks = [
        RankCode(number, 5, (CodeLine(AVERAGE, 0, 0, 0, ms * MS), CodeLine(CLIP, 0, 0, 0, MS)))
        for number, ms in ((0, 9), (1, 7))
    ]
    (found,) = code_outside_passes(ranks, View(2, step_ns=100 * MS))
    assert found.title.endswith(
        "8.00 ms per step, mostly at train.py:33 in average (7.00 ms), train.py:25 in main (1.00 ms)"
    )
    assert (found.gain_ns, found.may_be_meant, found.subject) == (8 * MS, True, {"line": AVERAGE})
    assert list(code_outside_passes(ranks, View(2, step_ns=161 * MS))) == [], "less than 5 %"


@pytest.mark.parametrize(
    ("samples", "changes"),
    [
        pytest.param(None, {}, id="no-samples"),
        pytest.param(SAMPLES, {"epoch": None}, id="another-clock"),
        pytest.param(msgspec.structs.replace(SAMPLES, places=(1,)), {}, id="damaged"),
        pytest.param(msgspec.structs.replace(SAMPLES, is_in_backward=(True,)), {}, id="damaged-lines"),
        pytest.param(msgspec.structs.replace(SAMPLES, places=(), ends_us=()), {}, id="empty"),
    ],
)
def test_without_samples_nothing_is_measured(samples: Any, changes: dict[str, Any]) -> None:
    assert measure_code(rank(samples, **changes), [0]) is None


def test_places_that_do_not_exist_are_ignored() -> None:
    damaged = msgspec.structs.replace(SAMPLES, places=(99, 2, -5, 0))
    found = measure_code(rank(damaged), [0])
    assert found is not None
    assert [one.line for one in found.lines] == [LOG]


def test_the_finding_is_about_the_rank_that_spends_least() -> None:
    quick = RankCode(1, 5, (CodeLine(LOG, 9 * MS, 0), CodeLine(LOAD, 0, MS)))
    slow = RankCode(0, 5, (CodeLine(LOG, 60 * MS, 0),))
    (found,) = script_code((slow, quick), View(2, step_ns=100 * MS, device="cpu"))
    assert found.title == "The script's own Python code takes 9.00 ms per step, mostly at train.py:7 in log"
    assert found.evidence.startswith("train.py:7 in log: 9.00 ms; no operator runs during this time")
    assert (found.gain_ns, found.subject) == (9 * MS, {"line": LOG})
    assert list(script_code((slow, quick), View(2, step_ns=451 * MS))) == [], "less than 2 %"
    assert list(script_code((slow, quick), View(2, None))) == []


def test_a_late_rank_is_explained_by_the_line_that_takes_longer_there() -> None:
    slow = RankCode(0, 5, (CodeLine(LOG, 60 * MS, 0), CodeLine(LOAD, 30 * MS, 0)))
    quick = RankCode(1, 5, (CodeLine(LOG, 55 * MS, 0),))
    view = View(2, None, shown={SCRIPT_CODE.name: (slow, quick)})
    assert slowest_line_of(0, view) == ("data.py:3 in __getitem__", 30 * MS)
    assert slowest_line_of(2, view) is None
    logs = RankCode(0, 5, (CodeLine("log.py:7 in log", 1 * MS, 0, outside_ns=60 * MS), slow.lines[0]))
    assert slowest_line_of(0, replace(view, shown={SCRIPT_CODE.name: (logs, quick)})) == ("log.py:7 in log", 60 * MS)
    assert slowest_line_of(0, replace(view, shown={SCRIPT_CODE.name: (slow,)})) is None
    assert slowest_line_of(0, View(2, None)) is None


def test_the_line_that_loads_data() -> None:
    view = View(2, None, shown={SCRIPT_CODE.name: (RankCode(0, 5, (CodeLine(LOG, 9, 1), CodeLine(LOAD, 0, 8))),)})
    assert slowest_line_of_data(view) == CodeLine(LOAD, 0, 8)
    assert slowest_line_of_data(View(2, None)) is None


def test_a_line_that_autograd_also_runs_keeps_its_idle_time() -> None:
    twice = RankCode(0, 5, (CodeLine(LOG, 30 * MS, 0), CodeLine(LOG, 0, 0, 5 * MS)))
    view = View(2, None, shown={SCRIPT_CODE.name: (twice, RankCode(1, 5, ()))})
    assert slowest_line_of(0, view) == ("train.py:7 in log", 30 * MS)
