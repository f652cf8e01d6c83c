"""When gradients of a compiled model become ready, from records made by hand; times are in ms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from observations import MIB, MS, bucket, observed, of_mib
from tables import backward_pass, record, recorded

from ddpprof.engine.finding import Finding, Predicted, Predictions
from ddpprof.engine.topic import View
from ddpprof.layout import Line
from ddpprof.model import DdpModule, Record
from ddpprof.model.ddp_module import Compilation, CompiledCode
from ddpprof.model.whole_run import WholeRun
from ddpprof.report.topics import find_all
from ddpprof.topics.buckets.rules import BUCKETS
from ddpprof.topics.compiled_graphs import (
    COMPILED_GRAPHS,
    BucketWait,
    CompiledGraphs,
    Recompilations,
    compiled_lines,
    find_recompilations,
    measure_compiled_graphs,
    recompilations,
)

SIX = of_mib([1, 1], [1, 1], [1, 1], bucket_cap_mb=1.5)
LARGE_CAP = of_mib([1] * 6)


def compiled(ready_ms: Sequence[float], module: DdpModule = SIX, **changes: Any) -> Record:
    """Make a record of three steps, in which gradients are ready at these times after the forward."""
    given = {"order": "ddp_first", "optimize_ddp": "ddp_optimizer", "num_graphs": 3, **changes}
    steps = [
        recorded(
            number,
            mode="light",
            passes=(backward_pass([round(ready * MS) + 10 + number for ready in ready_ms], origin=10),),
        )
        for number in range(3)
    ]
    return record(0, [module], steps, compilation=Compilation(**given))


def measured(ready_ms: Sequence[float], module: DdpModule = SIX, **changes: Any) -> CompiledGraphs:
    found = measure_compiled_graphs(compiled(ready_ms, module, **changes), [module])
    assert found is not None
    return found


def findings(found: CompiledGraphs, module: DdpModule = SIX, **changes: Any) -> list[Finding]:
    given = {"exposed_ns": 20 * MS, "is_compiled": True, **changes}
    view = observed(module, **given)
    rows = tuple(bucket(module, index, ready_ns=50 * MS) for index in range(len(module.buckets)))
    view = replace(view, shown={**view.shown, BUCKETS.name: rows, COMPILED_GRAPHS.name: found})
    return [one for one in find_all(view) if one.rule == "compiled-graphs"]


def only(found: CompiledGraphs, module: DdpModule = SIX, **changes: Any) -> Finding:
    (finding,) = findings(found, module, **changes)
    return finding


def test_buckets_that_end_with_their_graphs_wait_for_none() -> None:
    found = measured([10, 10.1, 20, 20.1, 30, 30.1])
    assert [round(ns / MS, 1) for ns in found.groups_ns] == [10.1, 20.1, 30.1]
    assert (found.waits, found.waiting) == ((), None)
    assert findings(found) == []


def test_a_bucket_waits_for_the_graph_of_its_last_gradients() -> None:
    """The first of two that wait about as long is reported."""
    found = measured([10, 19, 19.1, 30, 30.1, 30.2])
    assert found.waits == (
        BucketWait(0, 9 * MS, MIB, 2 * MIB),
        BucketWait(1, round(10.9 * MS), MIB, 2 * MIB),
    )
    finding = only(found)
    assert finding.title == (
        "The compiled model is split into 3 graphs; bucket 0 waits 9.00 ms for a gradient of the next graph"
    )
    assert finding.subject == {"bucket": 0}
    assert finding.numbers == {"num_graphs": 3, "waiting_ns": 9 * MS, "exposed_ns": 20 * MS}


def findings_of_cap(cap_mb: float, **changes: Any) -> Finding:
    module = of_mib([1, 1], [1, 1], [1, 1], bucket_cap_mb=cap_mb)
    return only(measured([10, 20, 20.1, 30, 30.1, 30.2], module), module, **changes)


def test_buckets_are_advised_that_end_where_graphs_do_with_the_gain_of_the_replay() -> None:
    predicted = Predicted(6 * MS, 4 * MS, 8 * MS)
    finding = findings_of_cap(1.5, predictions=Predictions(aligned_buckets=predicted))
    assert finding.change is not None
    assert finding.change.values == {"bucket_cap_mb_list": (1, 1.5)}
    assert finding.predicted == predicted


def test_larger_graphs_are_advised_to_be_smaller_without_a_prediction() -> None:
    predicted = Predicted(6 * MS, 4 * MS, 8 * MS)
    finding = findings_of_cap(25, predictions=Predictions(aligned_buckets=predicted))
    assert finding.change is not None
    assert finding.change.values == {"bucket_cap_mb_list": (1, 1)}
    assert (finding.predicted, finding.gain_ns) == (None, 10 * MS)


def test_a_torch_without_lists_of_caps_gets_the_default_cap() -> None:
    change = findings_of_cap(1.5, could_take_cap_lists=False).change
    assert change is not None
    assert change.values == {"bucket_cap_mb": None}


def test_a_few_late_bytes_make_no_finding() -> None:
    module = of_mib([0.1, 1.9], [1, 1], [1, 1])
    found = measured([10, 20, 20.1, 20.2, 30, 30.1], module, num_graphs=3)
    assert [wait.bucket for wait in found.waits] == [0]
    assert found.waiting is None


@pytest.mark.parametrize(
    ("mode", "num_graphs", "module", "values"),
    [
        pytest.param("no_optimization", None, of_mib(*[[1]] * 6), {"optimize_ddp": "ddp_optimizer"}, id="not-cut"),
        pytest.param(
            "no_optimization",
            None,
            LARGE_CAP,
            {"optimize_ddp": "ddp_optimizer", "bucket_cap_mb_list": (1, 1)},
            id="not-cut-and-one-bucket-has-all",
        ),
        pytest.param("ddp_optimizer", 1, LARGE_CAP, {"bucket_cap_mb_list": (1, 1)}, id="cap-above-the-model"),
    ],
)
def test_one_graph(mode: str, num_graphs: int | None, module: DdpModule, values: dict[str, object]) -> None:
    finding = only(measured([50, 50.1, 50.2, 50.3, 50.4, 51], optimize_ddp=mode, num_graphs=num_graphs), module)
    assert finding.title.startswith("The model is compiled as one graph, so no gradient is ready before its backward")
    assert finding.change is not None
    assert finding.change.values == values
    assert finding.gain_ns == 20 * MS


def test_one_graph_whose_communication_is_cheap_is_fine() -> None:
    assert findings(measured([50, 50, 50, 50, 50, 51], num_graphs=1), exposed_ns=MS // 2) == []


def test_two_graphs_of_which_one_has_nearly_all() -> None:
    module = of_mib([1], [8, 8])
    finding = only(measured([10, 60, 61], module, num_graphs=2), module)
    assert finding.title == "The compiled model is split into only 2 graphs, so communication starts late"
    assert finding.change is not None
    assert finding.change.values == {"bucket_cap_mb_list": (1, 2)}
    assert finding.subject == {"bucket": 1}


def test_a_model_that_torch_compile_skips() -> None:
    found = measured([10, 20, 30, 40, 50, 60], num_graphs=0)
    assert found.groups_ns == ()
    finding = only(found)
    assert finding.title == "torch.compile compiles no part of the model"
    assert finding.change is not None
    assert finding.change.values == {"compile_order": "model_first"}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"num_graphs": None}, id="gradients-come-one-by-one"),
        pytest.param({"order": "submodules"}, id="only-submodules-are-compiled"),
    ],
)
def test_gradients_that_form_no_graphs_say_nothing(changes: dict[str, Any]) -> None:
    module = of_mib(*[[1]] * 40)
    found = measured(range(10, 50), module, **changes)
    assert (found.groups_ns, found.waits) == ((), ())
    assert findings(found, module) == []


def test_without_times_of_gradients_the_order_is_known() -> None:
    """The Python reducer leaves none."""
    steps = [recorded(1, mode="light", passes=(backward_pass([None] * 6),))]
    of_python = record(0, [SIX], steps, compilation=Compilation("ddp_first", "python_reducer"))
    assert measure_compiled_graphs(of_python, [SIX]) == CompiledGraphs("ddp_first", "python_reducer", None)


@pytest.mark.parametrize("modules", [[], [SIX, SIX]])
def test_jobs_with_other_numbers_of_modules_are_left_out(modules: list[DdpModule]) -> None:
    assert measure_compiled_graphs(compiled([1] * 6), modules) is None


def test_a_job_that_is_not_compiled_has_nothing() -> None:
    steps = [recorded(1, mode="light", ready={0: [10, 20, 30, 40, 50, 60]})]
    assert measure_compiled_graphs(record(0, [SIX], steps), [SIX]) is None


def test_what_the_report_says() -> None:
    (line,) = compiled_lines(measured([10, 20, 20.1, 30, 30.1, 30.2]), None)  # type: ignore[arg-type]
    assert isinstance(line, Line)
    assert line.text == (
        "Compiled: torch.compile around DDP, optimize_ddp=ddp_optimizer, 3 graphs. Times at which the groups of "
        "gradients are ready (ms): 10.00, 20.10, 30.20."
    )


SECOND = 10**9


def job(*compiled: CompiledCode | None, is_at_limit: bool = False) -> View:
    run = WholeRun(60, 10, 20 * SECOND, ())
    records = {rank: record(is_at_compile_limit=is_at_limit, compiled_code=one) for rank, one in enumerate(compiled)}
    return View(len(records), None, whole_run=run, records=records)


@pytest.mark.parametrize(
    ("num_functions", "apart"), [pytest.param(6, 50 / 6, id="in-few-steps"), pytest.param(80, 1, id="in-every-step")]
)
@pytest.mark.parametrize("is_at_limit", [True, False])
def test_compilations_that_take_much_of_the_run(num_functions: int, apart: float, is_at_limit: bool) -> None:
    shorter, longer = CompiledCode(50, 9, 3 * SECOND), CompiledCode(50, num_functions, 4 * SECOND)
    view = job(shorter, longer, None, is_at_limit=is_at_limit)
    made = find_recompilations(view)
    assert made == Recompilations(1, num_functions, 50, 4 * SECOND, 0.2, is_at_limit)
    (found,) = recompilations(made, view)
    title = f"torch.compile compiles code again {num_functions} times in 50 steps, which takes 20% of the run"
    assert found.title == title
    assert ("reached its limit" in found.evidence) is is_at_limit
    assert (found.gain_ns, found.numbers["num_steps_apart"]) == (4 * SECOND // 50, pytest.approx(apart))


@pytest.mark.parametrize(
    "compiled",
    [
        pytest.param(None, id="none"),
        pytest.param(CompiledCode(50, 2, 4 * SECOND), id="twice"),
        pytest.param(CompiledCode(50, 6, SECOND // 2), id="short"),
    ],
)
def test_few_compilations_matter_only_if_torch_stops_compiling(compiled: CompiledCode | None) -> None:
    made = find_recompilations(job(compiled))
    assert (made is None) is (compiled is None)
    assert made is None or not list(recompilations(made, job(compiled)))
    limited = find_recompilations(job(compiled, is_at_limit=True))
    assert limited is not None
    (found,) = recompilations(limited, job(compiled))
    assert (found.gain_ns, found.title.startswith("torch.compile has stopped")) == (None, True)


def test_a_run_that_was_not_watched_has_no_compilations() -> None:
    assert find_recompilations(View(1, None)) is None
