"""What is predicted of a change goes before what measures bound it by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from observations import BUFFERS, LATE, MIB, MS, loader, observed, of_mib, only
from tables import ddp_module

from ddpprof.engine.finding import Finding, NewBuckets, Predicted, Predictions
from ddpprof.engine.topic import View
from ddpprof.report.topics import find_all
from ddpprof.topics.process_settings import HostCores
from ddpprof.topics.ranks.stragglers import OwnTimePart, Straggler

SAVES = Predicted(5 * MS, 3 * MS, 8 * MS)
NIL = Predicted(MS // 2, -MS, 2 * MS)
COSTS = Predicted(-2 * MS, -4 * MS, -MS)


def best(sizes_mib: list[float], predicted: Predicted = SAVES, argument: str = "bucket_cap_mb=3") -> Predictions:
    return Predictions(best_buckets=NewBuckets(argument, tuple(round(size * MIB) for size in sizes_mib), predicted))


UNCHANGED = Predictions(best_buckets=NewBuckets("", (MIB, 8 * MIB)))
SPLIT = of_mib([1], [1] * 8)
TIMES = [{"ready_ns": 10 * MS, "transfer_ns": 2 * MS}, {"ready_ns": 50 * MS, "transfer_ns": 16 * MS}]


def trailing(predictions: Predictions) -> View:
    return observed(SPLIT, TIMES, trailing_ns=12 * MS, predictions=predictions)


def test_the_cap_is_the_best_that_was_found_and_its_gain_the_predicted_one() -> None:
    finding = only(trailing(best([1, 5, 3])))
    assert (finding.rule, finding.predicted, finding.gain_ns) == ("trailing-communication", SAVES, 8 * MS)
    assert finding.advice.endswith("to 3.1 MB: DistributedDataParallel(model, bucket_cap_mb=3).")


def test_no_cap_is_advised_that_is_predicted_to_give_nothing_back() -> None:
    finding = only(trailing(best([1, 5, 3], NIL)))
    assert "bucket_cap_mb" not in finding.advice
    assert "fp16_compress_hook" in finding.advice
    assert "the replay finds no bucket sizes that shorten the step noticeably" in finding.evidence
    assert "that shorten the step" in only(trailing(best([1, 5, 3], COSTS))).evidence
    assert (finding.predicted, finding.gain_ns) == (None, 8 * MS)


def test_what_measures_bound_below_one_percent_is_not_claimed_whatever_is_predicted() -> None:
    """Of 1.1 ms that trail, a last bucket of half the size leaves half."""
    trailing_1_1_ms = observed(SPLIT, TIMES, trailing_ns=11 * MS // 10, predictions=best([1, 4, 4]))
    assert only(trailing_1_1_ms).rule == "better-buckets"
    assert find_all(replace(trailing_1_1_ms, exposed_ns=MS // 2)) == ()


def test_fewer_bytes_with_the_gain_of_the_hook() -> None:
    finding = only(trailing(Predictions(best_buckets=UNCHANGED.best_buckets, compression=SAVES)))
    assert "fp16_compress_hook" in finding.advice
    assert finding.predicted == SAVES


def test_a_hook_that_takes_longer_than_it_saves_is_no_advice() -> None:
    finding = only(trailing(Predictions(best_buckets=UNCHANGED.best_buckets, compression=COSTS)))
    assert finding.advice.startswith("Send fewer bytes: accumulate")
    assert (finding.predicted, finding.gain_ns) == (None, 8 * MS)


LARGE = [{"first_ready_ns": 10 * MS, "ready_ns": 60 * MS, "transfer_ns": 20 * MS}]
TINY = of_mib(*[[0.25]] * 6, bucket_cap_mb=0.1)
TWO = of_mib([1] * 8, [1] * 8)
FIRST = [{"first_ready_ns": 10 * MS, "ready_ns": 30 * MS}, {"ready_ns": 50 * MS}]


@pytest.mark.parametrize(
    ("module", "known", "smaller", "rule", "advice"),
    [
        pytest.param(of_mib([1] * 8), LARGE, [4, 4], "buckets-too-large", "Split it: D", id="large"),
        pytest.param(TINY, [{"transfer_ns": MS}] * 6, [1.5], "buckets-too-small", "Use fewer buckets: D", id="small"),
        pytest.param(TWO, FIRST, [4, 12], "first-bucket-late", "Cap the first bucket: D", id="first"),
    ],
)  # fmt: skip
def test_rules_about_buckets_advise_the_best_ones(
    module: Any, known: Any, smaller: list[float], rule: str, advice: str
) -> None:
    finding = only(observed(module, known, exposed_ns=30 * MS, predictions=best(smaller)))
    assert (finding.rule, finding.predicted, finding.gain_ns) == (rule, SAVES, 8 * MS)
    assert finding.advice.startswith(f"{advice}istributedDataParallel(model, bucket_cap_mb=3)")
    assert find_all(observed(module, known, exposed_ns=30 * MS, predictions=best(smaller, NIL))) == ()


@pytest.mark.parametrize(
    ("module", "known", "sizes"),
    [
        pytest.param(of_mib([1] * 8), LARGE, [8], id="large"),
        pytest.param(TWO, FIRST, [12, 4], id="first"),
    ],
)
def test_a_rule_is_silent_where_the_best_buckets_are_not_what_it_would_advise(
    module: Any, known: Any, sizes: list[float]
) -> None:
    finding = only(observed(module, known, exposed_ns=30 * MS, predictions=best(sizes)))
    assert finding.rule == "better-buckets"


def test_latency_that_the_replay_may_not_know_is_still_said() -> None:
    tiny = observed(TINY, [{"transfer_ns": MS}] * 6, exposed_ns=9 * MS, predictions=best([0.25] * 6, NIL))
    finding = only(tiny)
    assert (finding.rule, finding.predicted, finding.gain_ns) == ("buckets-too-small", None, 4 * MS)


def test_the_default_is_advised_as_what_to_leave_out() -> None:
    predictions = best([1.5], argument="bucket_cap_mb=None")
    finding = only(observed(TINY, [{"transfer_ns": MS}] * 6, exposed_ns=9 * MS, predictions=predictions))
    assert finding.advice.startswith("Use fewer buckets: do not pass bucket_cap_mb")


@pytest.mark.parametrize(
    ("predicted", "fires"),
    [
        pytest.param(SAVES, True, id="sure"),
        pytest.param(Predicted(5 * MS, 0, 8 * MS), False, id="may-be-nothing"),
        pytest.param(Predicted(MS - 1, MS - 2, MS), False, id="below-one-percent"),
        pytest.param(Predicted(MS, 1, MS), True, id="exactly-one-percent"),
    ],
)
def test_better_buckets_that_no_rule_explains(predicted: Predicted, fires: bool) -> None:
    predictions = best([9], predicted, argument="bucket_cap_mb_list=[9, 0.25]")
    found = find_all(observed(SPLIT, [{}, {}], predictions=predictions))
    assert [f.rule for f in found] == (["better-buckets"] if fires else [])
    assert all(f.evidence.startswith("1 bucket (9.4 MB) instead of 2 buckets (1.0 MB, 8.4 MB)") for f in found)
    assert all("bucket_cap_mb_list=[9, 0.25]), from torch 2.13 on" in f.advice for f in found)


@pytest.mark.parametrize(("number", "shown"), [(6, ", 0.3 MB)"), (7, ", 0.3 MB, …)")])
def test_of_many_buckets_the_first_six_are_shown(number: int, shown: str) -> None:
    found = only(observed(of_mib(*[[0.25]] * number), [{}] * number, predictions=best([1.5])))
    sizes = ", ".join(["0.3 MB"] * 5)
    assert found.evidence == (
        f"1 bucket (1.6 MB) instead of {number} buckets ({sizes}{shown}, in the order in which they are sent"
    )


def test_the_default_buckets_are_got_by_leaving_the_argument_out() -> None:
    finding = only(observed(SPLIT, [{}, {}], predictions=best([9], argument="bucket_cap_mb=None")))
    assert finding.advice.startswith("Try DistributedDataParallel(model), without bucket_cap_mb. ")


@pytest.mark.parametrize(("predicted", "fires"), [(SAVES, True), (NIL, False), (COSTS, False)])
def test_views_of_buckets(predicted: Predicted, fires: bool) -> None:
    o = observed(ddp_module(), copy_out_ns=8 * MS, predictions=Predictions(bucket_views=predicted))
    assert [(f.rule, f.predicted) for f in find_all(o)] == ([("gradient-copies", SAVES)] if fires else [])


@pytest.mark.parametrize(
    ("search_ns", "predicted"),
    [
        pytest.param(2 * MS, SAVES, id="timed"),
        pytest.param(None, SAVES, id="not-timed"),
        pytest.param(2 * MS, None, id="not-predicted"),
    ],
)
def test_a_useless_search(search_ns: int | None, predicted: Predicted | None) -> None:
    module = ddp_module(find_unused_parameters=True, unused=(), num_lacking_passes=0)
    finding = only(
        observed(module, unused_search_ns=search_ns, predictions=Predictions(without_unused_search=predicted))
    )
    assert (finding.rule, finding.predicted) == ("find-unused-for-nothing", predicted)
    assert finding.gain_ns == (predicted.high_ns if predicted else search_ns)


def test_a_useless_search_is_said_where_nothing_would_be_saved_but_no_saving() -> None:
    module = ddp_module(find_unused_parameters=True, unused=(), num_lacking_passes=0)
    finding = only(observed(module, unused_search_ns=2 * MS, predictions=Predictions(without_unused_search=COSTS)))
    assert (finding.rule, finding.predicted, finding.gain_ns) == ("find-unused-for-nothing", None, None)


@pytest.mark.parametrize(("predicted", "fires"), [(SAVES, True), (NIL, False)])
def test_a_static_graph(predicted: Predicted, fires: bool) -> None:
    module = ddp_module(find_unused_parameters=True, unused=("p0",), graph_is_static=True)
    found = find_all(
        observed(module, unused_search_ns=2 * MS, predictions=Predictions(without_unused_search=predicted))
    )
    assert ("static-graph" in [f.rule for f in found]) == fires


def test_a_straggler_is_told_even_where_the_others_hide_what_it_is_late() -> None:
    late = Straggler(1, 20 * MS, OwnTimePart.DATA, 20 * MS, num_last=9, num_steps=10, since_step=None, p_value=1e-6)
    for predicted in (SAVES, NIL):
        finding = only(observed(stragglers=(late,), predictions=Predictions(without_straggler=predicted)))
        assert (finding.rule, finding.predicted, finding.gain_ns) == ("straggler", predicted, predicted.high_ns)


def test_no_more_is_predicted_than_a_rank_is_late() -> None:
    late = Straggler(1, 2 * MS, OwnTimePart.BACKWARD, 2 * MS, num_last=9, num_steps=10, since_step=None, p_value=1e-6)
    predicted = Predicted(3 * MS, 1 * MS, 5 * MS)
    finding = only(observed(stragglers=(late,), predictions=Predictions(without_straggler=predicted)))
    assert (finding.predicted, finding.gain_ns) == (Predicted(2 * MS, 1 * MS, 2 * MS), 2 * MS)


def test_findings_are_ranked_by_what_is_predicted_not_by_its_upper_end() -> None:
    module = ddp_module(**BUFFERS, broadcast_buffers=True)
    o = observed(module, buffer_sync_ns=6 * MS, copy_out_ns=4 * MS, predictions=Predictions(bucket_views=SAVES))
    assert [f.rule for f in find_all(o)] == ["buffers-broadcast", "gradient-copies"]


def test_one_change_is_advised_once() -> None:
    """The last bucket is too large and the first one late: the same buckets mend both."""
    module = of_mib([1] * 8, [1] * 8)
    known = [{**FIRST[0], "transfer_ns": 2 * MS}, {"ready_ns": 50 * MS, "transfer_ns": 16 * MS}]
    o = observed(module, known, trailing_ns=12 * MS, exposed_ns=15 * MS, predictions=best([4, 8, 4]))
    assert only(o).rule == "trailing-communication"


def test_what_no_change_of_settings_mends_keeps_its_bound() -> None:
    o = observed(of_mib([1, 1], [2], [2]), LATE, exposed_ns=30 * MS, predictions=UNCHANGED)
    finding: Finding = only(o)
    assert (finding.rule, finding.gain_ns, finding.predicted) == ("late-parameter", 15 * MS, None)


SEARCHING = {"find_unused_parameters": True, "unused": (), "num_lacking_passes": 0}
STATIC = {"find_unused_parameters": True, "unused": ("p0",), "graph_is_static": True}
BROADCAST = {"num_buffers": 3, "buffer_bytes": 24, "num_batch_norms": 1, "broadcast_buffers": True}


def the(rule: str, *modules: Any, **given: Any) -> Finding:
    (found,) = (one for one in find_all(observed(*modules, **given)) if one.rule == rule)
    return found


@pytest.mark.parametrize(
    ("rule", "module", "given", "values"),
    [
        ("find-unused-for-nothing", SEARCHING, {"unused_search_ns": 2 * MS}, {"find_unused_parameters": False}),
        (
            "static-graph",
            STATIC,
            {"unused_search_ns": 2 * MS},
            {"static_graph": True, "find_unused_parameters": False},
        ),
        ("buffers-broadcast", BROADCAST, {"buffer_sync_ns": MS}, {"broadcast_buffers": False}),
        (
            "gradient-copies",
            {"gradient_as_bucket_view": False},
            {"copy_out_ns": MS},
            {"gradient_as_bucket_view": True},
        ),
    ],
)
def test_arguments_of_ddp(rule: str, module: dict[str, Any], given: dict[str, Any], values: dict[str, Any]) -> None:
    change = the(rule, ddp_module(**module), **given).change
    assert change is not None
    assert (change.kind, change.values, change.is_lossy) == ("ddp", values, False)
    assert all(name in change.code for name in values)


def test_a_variable_of_the_environment() -> None:
    found = the("threads-exceed-cores", hosts=(HostCores("b", 4, 32, 8.0),), device="cpu")
    assert found.subject == {"host": "b"}
    assert found.change is not None
    assert (found.change.kind, found.change.values) == ("environment", {"OMP_NUM_THREADS": "2"})


def test_workers_of_a_loader() -> None:
    found = the("idle-for-data", data_ns=9 * MS, loaders={0: (loader(num_workers=1),)}, cores_per_rank=64.0)
    assert found.change is not None
    assert (found.change.kind, found.change.values) == ("loader", {"num_workers": 4, "persistent_workers": True})
    assert found.change.code in found.advice


def test_where_no_core_is_left_there_is_nothing_to_change() -> None:
    found = the("idle-for-data", data_ns=9 * MS, loaders={0: (loader(num_workers=3),)}, cores_per_rank=2.0)
    assert found.change is None
