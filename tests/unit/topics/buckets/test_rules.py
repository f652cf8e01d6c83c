"""Rules about buckets: each fires with the exact gain, and not below its threshold."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from observations import HELD, LATE, MS, observed, of_mib, only
from tables import ddp_module, record

from ddpprof.engine.finding import Predicted, Predictions
from ddpprof.engine.topic import View
from ddpprof.model import DdpModule
from ddpprof.report.topics import find_all
from ddpprof.topics.buckets.rules import bucket_sizes_under

# Two buckets; the last one (8 MiB in 8 parameters) is ready 40 ms after the first.
SPLIT = of_mib([1], [1] * 8)


TIMES = [{"ready_ns": 10 * MS, "transfer_ns": 2 * MS}, {"ready_ns": 50 * MS, "transfer_ns": 16 * MS}]


@pytest.mark.parametrize(
    ("o", "gain_ns", "advice"),
    [
        pytest.param(
            observed(SPLIT, TIMES, trailing_ns=12 * MS), 21 * MS // 2,
            "DistributedDataParallel(model, bucket_cap_mb=…). This run does not show the", id="smaller-last-bucket",
        ),
        pytest.param(
            observed(of_mib([1], [8]), TIMES, trailing_ns=12 * MS), 8 * MS, "fp16_compress_hook",
            id="one-parameter-cannot-be-cut",
        ),
        pytest.param(
            observed(of_mib([8]), TIMES[1:], trailing_ns=5 * MS), 5 * MS, "fp16_compress_hook", id="the-only-parameter"
        ),
        pytest.param(
            observed(of_mib([30], [30], [30]), [{"ready_ns": t * MS, "transfer_ns": 30 * MS} for t in (10, 20, 30)],
                     trailing_ns=70 * MS),
            45 * MS, "fp16_compress_hook", id="the-link-is-the-bottleneck",
        ),
        pytest.param(
            observed(of_mib([30], [30], [30]), [{"ready_ns": t * MS, "transfer_ns": 30 * MS} for t in (10, 20, 30)],
                     trailing_ns=70 * MS, backend="nccl"),
            45 * MS, "bf16_compress_hook", id="the-link-is-the-bottleneck-nccl",
        ),
        pytest.param(
            observed(of_mib([30], [30], [30], comm_hook="powerSGD_hook"),
                     [{"ready_ns": t * MS, "transfer_ns": 30 * MS} for t in (10, 20, 30)], trailing_ns=20 * MS),
            20 * MS, "Send fewer bytes: accumulate", id="no-second-hook",
        ),
    ],
)  # fmt: skip
def test_trailing_communication(o: View, gain_ns: int, advice: str) -> None:
    finding = only(o)
    assert (finding.rule, finding.gain_ns) == ("trailing-communication", gain_ns)
    assert advice in finding.advice


@pytest.mark.parametrize(
    "o",
    [
        pytest.param(observed(SPLIT, TIMES, trailing_ns=1_142_856), id="gain-below-one-percent"),
        pytest.param(observed(SPLIT, TIMES, trailing_ns=None), id="not-measured"),
        pytest.param(observed(SPLIT, TIMES, trailing_ns=12 * MS, step_ns=None), id="step-not-measured"),
        pytest.param(observed(SPLIT, [{}, {}], trailing_ns=12 * MS), id="buckets-not-paired"),
        pytest.param(
            observed(SPLIT, [{"ready_ns": 10 * MS}, TIMES[1]], trailing_ns=12 * MS), id="one-transfer-not-timed"
        ),
        pytest.param(
            observed(SPLIT, [{"transfer_ns": 2 * MS}, TIMES[1]], trailing_ns=12 * MS), id="one-bucket-of-unknown-begin"
        ),
        pytest.param(observed(trailing_ns=12 * MS), id="no-record"),
        pytest.param(
            observed(
                of_mib(*[[0.9]] * 3),
                [{"ready_ns": t * MS, "transfer_ns": 30 * MS} for t in (10, 20, 30)],
                trailing_ns=70 * MS,
            ),
            id="latency-is-no-matter-of-bytes",
        ),
        pytest.param(observed(of_mib([0.5]), TIMES[1:], trailing_ns=12 * MS), id="nothing-to-halve"),
    ],
)
def test_no_trailing_communication(o: View) -> None:
    assert find_all(o) == ()


# Eight layers of 1 MiB, a gradient every 10 ms, 9 ms each on the link: 7 + 1 in flight together from 80 ms on.
SEVEN_AND_ONE = [
    {"first_ready_ns": 10 * MS, "ready_ns": 70 * MS, "transfer_ns": 72 * MS, "finished_ns": 142 * MS},
    {"first_ready_ns": 80 * MS, "ready_ns": 80 * MS, "transfer_ns": 18 * MS, "finished_ns": 98 * MS},
]


def test_what_trails_behind_a_small_last_bucket_is_the_large_one_before_it() -> None:
    module = of_mib([1] * 7, [1])
    found = find_all(observed(module, SEVEN_AND_ONE, trailing_ns=62 * MS, exposed_ns=62 * MS))
    assert "trailing-communication" not in [finding.rule for finding in found]
    (cut,) = [finding for finding in found if finding.rule == "buckets-too-large"]
    assert cut.gain_ns == round(72 * MS * (1 - 2 / 7))


@pytest.mark.parametrize("large", [[7], [6.9, 0.1]], ids=["one-parameter", "one-that-holds-nearly-all"])
def test_a_large_bucket_that_cannot_be_cut_is_to_be_sent_in_fewer_bytes(large: list[float]) -> None:
    found = find_all(observed(of_mib(large, [1]), SEVEN_AND_ONE, trailing_ns=62 * MS, exposed_ns=62 * MS))
    (late,) = [finding for finding in found if finding.rule == "trailing-communication"]
    assert late.title.startswith("Bucket 0 (7.3 MB) is sent when no computation is left")
    assert (late.gain_ns, "fp16_compress_hook" in late.advice) == (36 * MS, True)


@pytest.mark.parametrize(
    ("transfer_ms", "is_link"),
    [pytest.param(150, True, id="mostly-exposed"), pytest.param(100, False, id="can-be-hidden")],
)
def test_one_bucket_on_a_slow_link_is_to_be_sent_in_fewer_bytes(transfer_ms: int, is_link: bool) -> None:
    """60 ms of backward after the first gradient hide that much, however small its buckets are."""
    times = {"first_ready_ns": 10 * MS, "ready_ns": 70 * MS, "transfer_ns": transfer_ms * MS}
    one = [{**times, "finished_ns": (70 + transfer_ms) * MS}]
    found = find_all(observed(of_mib([1] * 8), one, trailing_ns=transfer_ms * MS, exposed_ns=transfer_ms * MS))
    link = [finding for finding in found if finding.rule == "trailing-communication"]
    assert [finding.title.startswith("The link is the bottleneck") for finding in link] == [True] * is_link
    assert all("the only bucket takes 150 ms to transfer" in finding.evidence for finding in link)
    assert "buckets-too-large" in [finding.rule for finding in found]


def test_a_large_bucket_is_no_excuse_for_a_slow_link() -> None:
    """144 ms on the link, of which 18 ms are shared, do not fit into 70 ms of backward whatever the buckets."""
    slow = [{**SEVEN_AND_ONE[0], "transfer_ns": 144 * MS, "finished_ns": 214 * MS}, SEVEN_AND_ONE[1]]
    found = find_all(observed(of_mib([1] * 7, [1]), slow, trailing_ns=134 * MS, exposed_ns=134 * MS))
    (link,) = [finding for finding in found if finding.rule == "trailing-communication"]
    assert link.title.startswith("The link is the bottleneck")
    assert "take 144 ms to transfer, and after the first gradient, only 70.0 ms" in link.evidence


def test_of_sparse_gradients_nobody_knows_how_many_bytes_are_sent() -> None:
    module = of_mib(*[[0.1]] * 6)
    times = [{"ready_ns": 60 * MS, "transfer_ns": 5 * MS}] * 6
    many = [{**one, "num_bytes": None} for one in times]
    assert find_all(observed(module, times, exposed_ns=30 * MS)) != ()
    assert find_all(observed(module, many, exposed_ns=30 * MS)) == ()


LARGE = {"first_ready_ns": 10 * MS, "ready_ns": 60 * MS, "transfer_ns": 20 * MS}


@pytest.mark.parametrize(
    ("module", "known", "exposed_ns", "gain_ns"),
    [
        pytest.param(of_mib([1] * 8), [LARGE], 30 * MS, 15 * MS, id="a-quarter-is-left-of-the-transfer"),
        pytest.param(of_mib([1] * 8), [LARGE], 9 * MS, 9 * MS, id="never-more-than-is-exposed"),
        pytest.param(
            of_mib([1] * 8), [{**LARGE, "ready_ns": 17 * MS}], 30 * MS, 7 * MS, id="never-more-than-it-starts-late"
        ),
        pytest.param(of_mib([4] + [1] * 4), [LARGE], 30 * MS, 10 * MS, id="down-to-its-largest-parameter"),
        pytest.param(of_mib([1] * 8, [1] * 2), [LARGE, {}], 30 * MS, 15 * MS, id="the-first-of-two"),
        pytest.param(of_mib([1] * 8, [1] * 2), [LARGE, {}], MS - 1, None, id="exposed-below-one-percent"),
        pytest.param(of_mib([1] * 8), [LARGE], None, None, id="exposed-not-measured"),
        pytest.param(of_mib([1] * 8), [{}], 30 * MS, None, id="bucket-not-timed"),
        pytest.param(of_mib([0.5] * 3), [LARGE], 30 * MS, None, id="little"),
        pytest.param(of_mib([7, 0.5, 0.5]), [LARGE], 30 * MS, None, id="one-parameter-cannot-be-cut"),
        pytest.param(of_mib([1] * 5, [1] * 5), [LARGE, {}], 30 * MS, None, id="half-of-all"),
    ],
)
def test_buckets_too_large(module: DdpModule, known: Any, exposed_ns: int | None, gain_ns: int | None) -> None:
    findings = [f for f in find_all(observed(module, known, exposed_ns=exposed_ns)) if f.rule == "buckets-too-large"]
    assert [f.gain_ns for f in findings] == ([] if gain_ns is None else [gain_ns])


TINY = of_mib(*[[0.25]] * 6, bucket_cap_mb=0.1)


@pytest.mark.parametrize(
    ("module", "transfer_ns", "exposed_ns", "gain_ns"),
    [
        pytest.param(TINY, MS, 9 * MS, 4 * MS, id="all-but-two-that-ddp-would-make"),
        pytest.param(TINY, MS, 3 * MS, 3 * MS, id="never-more-than-is-exposed"),
        pytest.param(TINY, MS // 4, 9 * MS, MS, id="exactly-one-percent"),
        pytest.param(TINY, MS // 4 - 1, 9 * MS, None, id="below-one-percent"),
        pytest.param(TINY, None, 9 * MS, None, id="transfer-not-measured"),
        pytest.param(TINY, MS, None, None, id="exposed-not-measured"),
        pytest.param(of_mib(*[[0.25]] * 3), MS, 9 * MS, None, id="three"),
        pytest.param(of_mib(*[[1]] * 6), MS, 9 * MS, None, id="large-enough"),
    ],
)
def test_buckets_too_small(
    module: DdpModule, transfer_ns: int | None, exposed_ns: int | None, gain_ns: int | None
) -> None:
    known = [{"transfer_ns": transfer_ns}] * len(module.buckets)
    findings = find_all(observed(module, known, exposed_ns=exposed_ns))
    assert [(f.rule, f.gain_ns) for f in findings] == ([] if gain_ns is None else [("buckets-too-small", gain_ns)])


@pytest.mark.parametrize(
    ("backend", "round_trips_ns", "gain_ms"),
    [
        pytest.param("nccl", (200_000, 300_000), 4 * 0.8, id="accelerator"),
        pytest.param("gloo", (200_000, 300_000), 4 * 4.6, id="threads-wait-for-cores"),
        pytest.param("gloo", (None, None), 4 * 9, id="unknown"),
        pytest.param("nccl", (200_000, 30_000_000), 4 * 9, id="between-continents"),
    ],
)
def test_only_latency_is_saved_by_fewer_buckets(
    backend: str, round_trips_ns: tuple[int | None, int | None], gain_ms: float
) -> None:
    """Two messages among two ranks, each at most as long as the longest round trip and what comes on top of it."""
    records = {rank: record(rank, round_trip_ns=ns) for rank, ns in enumerate(round_trips_ns)}
    known = [{"transfer_ns": 9 * MS}] * len(TINY.buckets)
    found = find_all(observed(TINY, known, exposed_ns=90 * MS, backend=backend, records=records))
    (finding,) = [one for one in found if one.rule == "buckets-too-small"]
    assert finding.gain_ns == pytest.approx(gain_ms * MS)
    assert ("of which up to" in finding.evidence) is (gain_ms < 36)


@pytest.mark.parametrize(
    ("gain_low_high_ms", "is_found"),
    [
        pytest.param((-9, -20, 2), False, id="worse"),
        pytest.param((-1, -20, 30), True, id="perhaps-better"),
        pytest.param((9, 2, 20), True, id="better"),
    ],
)
def test_default_buckets_are_not_advised_if_they_are_predicted_to_be_worse(
    gain_low_high_ms: tuple[int, int, int], is_found: bool
) -> None:
    predictions = Predictions(default_buckets=Predicted(*(ms * MS for ms in gain_low_high_ms)))
    known = [{"transfer_ns": 9 * MS}] * len(TINY.buckets)
    found = find_all(observed(TINY, known, exposed_ns=90 * MS, predictions=predictions))
    assert ("buckets-too-small" in {one.rule for one in found}) is is_found


FIRST = [{"first_ready_ns": 10 * MS, "ready_ns": 30 * MS}, {"ready_ns": 50 * MS}]


@pytest.mark.parametrize(
    ("module", "known", "advice"),
    [
        pytest.param(of_mib([1] * 8, [1] * 8, bucket_cap_mb=8.0), FIRST, "bucket_cap_mb_list=…", id="cap-of-8"),
        pytest.param(of_mib([1] * 25, [1] * 8), FIRST, "do not pass bucket_cap_mb", id="default-cap-given-by-hand"),
        pytest.param(
            of_mib([1] * 25, [1] * 8, has_bucket_cap_mb_list=True), FIRST, "bucket_cap_mb_list=…", id="cap-list"
        ),
        pytest.param(of_mib([8, 0.1], [1] * 8), FIRST, None, id="one-parameter-cannot-be-cut"),
        pytest.param(of_mib([1] * 2, [1] * 8), FIRST, None, id="small-already"),
        pytest.param(of_mib([1] * 25), FIRST[:1], None, id="the-only-bucket"),
        pytest.param(of_mib([1] * 8, [1] * 8), [{**FIRST[0], "ready_ns": 20 * MS}, FIRST[1]], None, id="fills-soon"),
        pytest.param(of_mib([1] * 8, [1] * 8), [{}, {}], None, id="not-timed"),
        pytest.param(
            of_mib([1] * 8, [1] * 8, find_unused_parameters=True),
            FIRST,
            None,
            id="not-without-rebuild",
        ),
    ],
)
def test_first_bucket_late(module: DdpModule, known: Any, advice: str | None) -> None:
    findings = find_all(observed(module, known, exposed_ns=15 * MS))
    assert [(f.rule, f.gain_ns) for f in findings] == ([("first-bucket-late", 15 * MS)] if advice else [])
    assert all(advice in f.advice for f in findings if advice)


@pytest.mark.parametrize(
    ("known", "exposed_ns", "gain_ns"),
    [
        pytest.param(LATE, 30 * MS, 15 * MS, id="what-the-next-bucket-waited"),
        pytest.param([{**LATE[0], "slowest_parameter_delay_ns": MS}, *LATE[1:]], 30 * MS, 15 * MS, id="a-late-layer"),
        pytest.param(LATE, 5 * MS, 5 * MS, id="never-more-than-is-exposed"),
        pytest.param(LATE, MS - 1, None, id="below-one-percent"),
        pytest.param(LATE, None, None, id="exposed-not-measured"),
        pytest.param([LATE[0], {**LATE[1], "ready_ns": 40 * MS}, LATE[2]], 30 * MS, None, id="nobody-waited"),
        pytest.param([{**LATE[0], "slowest_parameter": None}, *LATE[1:]], 30 * MS, None, id="parameter-not-known"),
    ],
)
def test_late_parameter(known: Any, exposed_ns: int | None, gain_ns: int | None) -> None:
    findings = find_all(observed(HELD, known, exposed_ns=exposed_ns))
    assert [(f.rule, f.gain_ns) for f in findings] == ([] if gain_ns is None else [("late-parameter", gain_ns)])
    assert all(f.title == "p1 delays 2 buckets" for f in findings)


def test_of_buckets_in_a_row_the_one_that_all_wait_for_is_named() -> None:
    """Bucket 0 has the gradients of the first layer, which come last; all others are ready one after the other."""
    names = ("stem", "p4", "p3", "p2")
    known = [{"ready_ns": t * MS, "launched_ns": 240 * MS, "slowest_parameter": name, "slowest_parameter_delay_ns": MS}
             for t, name in zip((240, 50, 90, 130), names, strict=True)]  # fmt: skip
    searching = of_mib([3], [4], [4], [4], find_unused_parameters=True, num_lacking_passes=9, unused=("head",))
    (found,) = (
        one for one in find_all(observed(searching, known, exposed_ns=245 * MS)) if one.rule == "late-parameter"
    )
    assert (found.title, found.gain_ns) == ("stem delays 4 buckets", 190 * MS)
    in_order = Predictions(without_unused_search=Predicted(152 * MS, 120 * MS, 200 * MS))
    found = next(one for one in find_all(observed(searching, known, exposed_ns=245 * MS, predictions=in_order)))
    assert (found.rule, found.predicted) == ("late-parameter", Predicted(152 * MS, 120 * MS, 190 * MS))
    needless = of_mib([3], [4], [4], [4], find_unused_parameters=True, num_lacking_passes=0, unused=())
    rules = {one.rule for one in find_all(observed(needless, known, exposed_ns=245 * MS))}
    assert "find-unused-for-nothing" in rules
    assert "late-parameter" not in rules


def test_the_advice_on_a_late_parameter_depends_on_how_ddp_orders_buckets() -> None:
    assert "rank 0's first backward pass" in only(observed(HELD, LATE, exposed_ns=30 * MS)).advice
    searching = of_mib([1, 1], [2], [2], find_unused_parameters=True)
    assert "Define p1 earlier" in only(observed(searching, LATE, exposed_ns=30 * MS)).advice


def test_a_job_that_accumulates_is_not_told_to_accumulate() -> None:
    slow = [{"ready_ns": t * MS, "transfer_ns": 30 * MS} for t in (10, 20, 30)]
    finding = only(observed(of_mib([30], [30], [30]), slow, trailing_ns=60 * MS, exposed_ns=60 * MS, num_micro_steps=4))
    assert "accumulate gradients over more than the current 4 batches per step" in finding.advice


@pytest.mark.parametrize(
    "o",
    [
        pytest.param(observed(SPLIT, TIMES, trailing_ns=12 * MS), id="a-large-last-bucket"),
        pytest.param(
            observed(
                of_mib(*[[0.25]] * 8),
                [{"transfer_ns": 2 * MS, "ready_ns": t * MS} for t in range(8)],
                exposed_ns=14 * MS,
            ),
            id="small-buckets",
        ),
        pytest.param(
            observed(
                of_mib([8, 8], [1]),
                [
                    {"transfer_ns": 20 * MS, "ready_ns": 40 * MS, "first_ready_ns": 5 * MS},
                    {"transfer_ns": 2 * MS, "ready_ns": 50 * MS, "first_ready_ns": 45 * MS},
                ],
                exposed_ns=30 * MS,
            ),
            id="a-large-first-bucket",
        ),
    ],
)
def test_a_compiled_model_gets_no_other_buckets(o: View) -> None:
    assert any(any(word in one.advice for word in BUCKETS) for one in find_all(o))
    compiled = find_all(replace(o, is_compiled=True))
    assert not any(word in f"{one.title} {one.evidence} {one.advice}" for one in compiled for word in BUCKETS)


BUCKETS = ("bucket_cap_mb", "caps", "Shrink", "Split", "Use fewer", "Cap the")


@pytest.mark.parametrize(
    ("caps", "settings", "sizes"),
    [
        # As torch 2.13 did it for five Linear(600, 600), weights of 1 440 000 bytes and biases of 2 400.
        pytest.param([1, 25], {}, [1442400, 5769600], id="default"),
        pytest.param([1], {}, [1442400] * 5, id="cap-1"),
        pytest.param([1, 25], {"find_unused_parameters": True}, [5772000, 1440000], id="no-rebuild"),
        pytest.param([1], {"find_unused_parameters": True}, [2400] + [1442400] * 4 + [1440000], id="no-rebuild-cap-1"),
        pytest.param([25], {"find_unused_parameters": True, "static_graph": True}, [7212000], id="static-graph"),
    ],
)
def test_buckets_are_laid_out_as_torch_does(caps: list[float], settings: dict[str, bool], sizes: list[int]) -> None:
    module = ddp_module([1440000, 2400] * 5, [range(9, -1, -1)], **settings)
    assert bucket_sizes_under(module, caps) == tuple(sizes)


def test_gradients_of_different_types_never_share_a_bucket() -> None:
    module = ddp_module([400, 200] * 3, [range(5, -1, -1)])
    kinds = ["float32", "float16"] * 3
    parameters = tuple(
        structs.replace(one, dtype=kind, shape=(100,)) for one, kind in zip(module.parameters, kinds, strict=True)
    )
    assert sorted(bucket_sizes_under(structs.replace(module, parameters=parameters), [1, 25])) == [600, 1200]
