"""Every rule on what it looks at, made by hand: it fires with the exact gain, and not below its threshold."""

from dataclasses import replace
from typing import Any

import pytest
from tables import ddp_module

from ddpprof.events import DdpModule, Loader
from ddpprof.findings import RULES, Finding, Observed, find
from ddpprof.findings.layout import buckets_under
from ddpprof.measures.bucket_table import BucketSummary
from ddpprof.measures.data_parallel import DataParallelStep
from ddpprof.measures.devices import DeviceLoad
from ddpprof.measures.late_gradients import LateGradient
from ddpprof.measures.memory import DeviceUse, RankMemory
from ddpprof.measures.outside import OutsideCalls, Place, Purpose
from ddpprof.measures.rpc import RankRpc, RpcCalls
from ddpprof.measures.stragglers import Part, Straggler

MIB, MS = 2**20, 1_000_000
STEP_NS = 100 * MS
"""so that findings below 1 ms are not worth saying"""


def bucket(module: DdpModule, index: int, **changes: Any) -> BucketSummary:
    parameters = module.buckets[index]
    given: dict[str, Any] = dict.fromkeys(
        ("first_ready_ns", "ready_ns", "launched_ns", "started_ns", "finished_ns", "transfer_ns", "slowest_parameter",
         "slowest_parameter_delay_ns", "late_rank", "late_by_ns")
    )  # fmt: skip
    given |= {
        "module": 0, "index": index, "num_bytes": sum(module.parameters[p].num_bytes for p in parameters),
        "num_parameters": len(parameters), "first_parameter": f"p{parameters[0]}",
        "last_parameter": f"p{parameters[-1]}", **changes,
    }  # fmt: skip
    return BucketSummary(**given)


def observed(module: DdpModule | None = None, buckets: Any = (), **changes: Any) -> Observed:
    """`buckets`: what is known of each of the module's buckets."""
    modules = (module,) if module else ()
    rows = tuple(bucket(module, i, **known) for i, known in enumerate(buckets)) if module else ()
    return Observed(**{"world_size": 2, "step_ns": STEP_NS, "modules": modules, "buckets": rows, **changes})


def only(o: Observed) -> Finding:
    (finding,) = find(o)
    return finding


def of_mib(*buckets: list[float], **settings: Any) -> DdpModule:
    """Parameters by their sizes in MiB, in launch order."""
    flat = [round(size * MIB) for sizes in buckets for size in sizes]
    indices = iter(range(len(flat)))
    return ddp_module(flat, [[next(indices) for _ in sizes] for sizes in buckets], **settings)


# Two buckets; the last one (8 MiB in 8 parameters) is ready 40 ms after the first.
SPLIT = of_mib([1], [1] * 8)
TIMES = [{"ready_ns": 10 * MS, "transfer_ns": 2 * MS}, {"ready_ns": 50 * MS, "transfer_ns": 16 * MS}]


@pytest.mark.parametrize(
    ("o", "gain_ns", "advice"),
    [
        pytest.param(
            observed(SPLIT, TIMES, trailing_ns=12 * MS), 21 * MS // 2, "bucket_cap_mb=2) leaves 1.0 MB",
            id="smaller-last-bucket",
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
def test_trailing_communication(o: Observed, gain_ns: int, advice: str) -> None:
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
def test_no_trailing_communication(o: Observed) -> None:
    assert find(o) == ()


# Eight layers of 1 MiB, a gradient every 10 ms, 9 ms each on the link: 7 + 1 in flight together from 80 ms on.
SEVEN_AND_ONE = [
    {"first_ready_ns": 10 * MS, "ready_ns": 70 * MS, "transfer_ns": 72 * MS, "finished_ns": 142 * MS},
    {"first_ready_ns": 80 * MS, "ready_ns": 80 * MS, "transfer_ns": 18 * MS, "finished_ns": 98 * MS},
]


def test_what_trails_behind_a_small_last_bucket_is_the_large_one_before_it() -> None:
    module = of_mib([1] * 7, [1])
    found = find(observed(module, SEVEN_AND_ONE, trailing_ns=62 * MS, exposed_ns=62 * MS))
    assert "trailing-communication" not in [finding.rule for finding in found]
    (cut,) = [finding for finding in found if finding.rule == "buckets-too-large"]
    assert cut.gain_ns == round(72 * MS * (1 - 2 / 7))


def test_a_large_bucket_is_no_excuse_for_a_slow_link() -> None:
    """144 ms on the link, of which 18 ms are shared, do not fit into 70 ms of backward whatever the buckets."""
    slow = [{**SEVEN_AND_ONE[0], "transfer_ns": 144 * MS, "finished_ns": 214 * MS}, SEVEN_AND_ONE[1]]
    found = find(observed(of_mib([1] * 7, [1]), slow, trailing_ns=134 * MS, exposed_ns=134 * MS))
    (link,) = [finding for finding in found if finding.rule == "trailing-communication"]
    assert link.title.startswith("The link is the bottleneck")
    assert "need 144.00 ms of transfer, and 70.00 ms of backward" in link.evidence


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
    findings = [f for f in find(observed(module, known, exposed_ns=exposed_ns)) if f.rule == "buckets-too-large"]
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
    findings = find(observed(module, known, exposed_ns=exposed_ns))
    assert [(f.rule, f.gain_ns) for f in findings] == ([] if gain_ns is None else [("buckets-too-small", gain_ns)])


FIRST = [{"first_ready_ns": 10 * MS, "ready_ns": 30 * MS}, {"ready_ns": 50 * MS}]


@pytest.mark.parametrize(
    ("module", "known", "advice"),
    [
        pytest.param(of_mib([1] * 8, [1] * 8, bucket_cap_mb=8.0), FIRST, "bucket_cap_mb_list=[1, 8]", id="cap-of-8"),
        pytest.param(of_mib([1] * 25, [1] * 8), FIRST, "leave bucket_cap_mb out", id="default-cap-given-by-hand"),
        pytest.param(
            of_mib([1] * 25, [1] * 8, has_bucket_cap_mb_list=True), FIRST, "bucket_cap_mb_list=[1, 25]", id="cap-list"
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
    findings = find(observed(module, known, exposed_ns=15 * MS))
    assert [(f.rule, f.gain_ns) for f in findings] == ([("first-bucket-late", 15 * MS)] if advice else [])
    assert all(advice in f.advice for f in findings if advice)


HELD = of_mib([1, 1], [2], [2])
LATE = [
    {"ready_ns": 40 * MS, "launched_ns": 40 * MS, "slowest_parameter": "p1", "slowest_parameter_delay_ns": 20 * MS},
    {"ready_ns": 25 * MS, "launched_ns": 41 * MS},
    {"ready_ns": 50 * MS, "launched_ns": 50 * MS},
]


@pytest.mark.parametrize(
    ("known", "exposed_ns", "gain_ns"),
    [
        pytest.param(LATE, 30 * MS, 16 * MS, id="what-the-next-bucket-waited"),
        pytest.param([{**LATE[0], "slowest_parameter_delay_ns": 7 * MS}, *LATE[1:]], 30 * MS, 7 * MS, id="its-delay"),
        pytest.param(LATE, 5 * MS, 5 * MS, id="never-more-than-is-exposed"),
        pytest.param(LATE, MS - 1, None, id="below-one-percent"),
        pytest.param(LATE, None, None, id="exposed-not-measured"),
        pytest.param([LATE[0], {**LATE[1], "ready_ns": 40 * MS}, LATE[2]], 30 * MS, None, id="nobody-waited"),
        pytest.param([{**LATE[0], "slowest_parameter_delay_ns": None}, *LATE[1:]], 30 * MS, None, id="delay-not-known"),
    ],
)
def test_late_parameter(known: Any, exposed_ns: int | None, gain_ns: int | None) -> None:
    findings = find(observed(HELD, known, exposed_ns=exposed_ns))
    assert [(f.rule, f.gain_ns) for f in findings] == ([] if gain_ns is None else [("late-parameter", gain_ns)])
    assert all(f.title == "p1 holds back 2 buckets" for f in findings)


def test_the_advice_on_a_late_parameter_depends_on_how_ddp_orders_buckets() -> None:
    assert "rank 0's first backward pass" in only(observed(HELD, LATE, exposed_ns=30 * MS)).advice
    searching = of_mib([1, 1], [2], [2], find_unused_parameters=True)
    assert "Define p1 earlier" in only(observed(searching, LATE, exposed_ns=30 * MS)).advice


SEARCHING = {"find_unused_parameters": True}


@pytest.mark.parametrize(
    ("module", "search_ns", "expected"),
    [
        pytest.param({**SEARCHING, "unused": None}, 2 * MS, [], id="not-observed"),
        pytest.param({"unused": ()}, None, [], id="all-used"),
        pytest.param(
            {**SEARCHING, "unused": ()}, 2 * MS, [("find-unused-for-nothing", 2 * MS)], id="none"
        ),
        pytest.param(
            {**SEARCHING, "unused": ()}, None, [("find-unused-for-nothing", None)], id="not-timed"
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
    findings = find(observed(ddp_module(**module), unused_search_ns=search_ns))
    assert [(f.rule, f.gain_ns) for f in findings] == expected


def test_unused_parameters_are_named_with_their_bytes() -> None:
    names = tuple(f"p{i}" for i in range(7))
    finding = only(observed(ddp_module([1000] * 10, [range(10)], unused=names)))
    assert finding.title == "7 parameters never get a gradient: p0, p1, p2, p3, p4 and 2 more"
    assert finding.evidence == "they are 7.0 kB of 10.0 kB, all-reduced for nothing"
    skipped = only(observed(ddp_module([1000] * 10, [range(10)], unused=names, skip_all_reduce_unused_params=True)))
    assert skipped.evidence == "they are 7.0 kB of 10.0 kB"


BUFFERS = {"num_buffers": 6, "buffer_bytes": 400, "num_batch_norms": 2}


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
    findings = find(observed(ddp_module(**module), buffer_sync_ns=sync_ns))
    assert [(f.rule, f.gain_ns) for f in findings] == ([("buffers-broadcast", MS)] if fires else [])
    assert all("forward_sync_buffers=False" in f.advice and "from rank 0" in f.advice for f in findings)


def test_buffers_that_are_no_statistics_may_matter_to_training() -> None:
    module = ddp_module(**{**BUFFERS, "num_batch_norms": 0}, broadcast_buffers=True)
    assert "Only if the forward does not change them" in only(observed(module, buffer_sync_ns=MS)).advice


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
    findings = find(observed(ddp_module(gradient_as_bucket_view=views), copy_out_ns=copy_out_ns))
    assert [(f.rule, f.gain_ns) for f in findings] == ([("gradient-copies", MS)] if fires else [])


@pytest.mark.parametrize("measure", ["buffer_sync_ns", "copy_out_ns"])
def test_what_is_measured_for_all_modules_is_said_once(measure: str) -> None:
    module = ddp_module(**BUFFERS, broadcast_buffers=True)
    assert only(replace(observed(**{measure: MS}), modules=(module, module))).gain_ns == MS


def loader(**changes: Any) -> Loader:
    return Loader(**{
        "sampler": "RandomSampler", "dataset_size": 100, "batch_size": 4, "num_workers": 2, "num_iterations": 3,
        "epochs_set": None, "shuffles": True, "num_training_steps": 9, **changes,
    })  # fmt: skip


def test_gain_and_kind_of_what_costs_correctness() -> None:
    finding = only(observed(loaders={0: (loader(),), 1: (loader(),)}))
    assert (finding.rule, finding.gain_ns, finding.is_correctness) == ("no-distributed-sampler", None, True)
    assert "DistributedSampler(dataset, shuffle=True)" in finding.advice


@pytest.mark.parametrize(
    ("loaders", "world_size"),
    [
        pytest.param({0: (loader(),)}, 1, id="one-rank"),
        pytest.param({0: (loader(),)}, 2, id="only-rank-0-trains-on-it"),
        pytest.param({0: (loader(),), 1: (loader(dataset_size=99),)}, 2, id="each-rank-its-own-part"),
        pytest.param({0: (loader(num_training_steps=0),), 1: (loader(num_training_steps=0),)}, 2, id="validation"),
        pytest.param({r: (loader(sampler="DistributedSampler"),) for r in range(2)}, 2, id="divided"),
        pytest.param({r: (loader(sampler="BucketBatchSampler"),) for r in range(2)}, 2, id="of-the-user"),
    ],
)
def test_no_missing_sampler(loaders: dict[int, tuple[Loader, ...]], world_size: int) -> None:
    assert find(observed(loaders=loaders, world_size=world_size)) == ()


@pytest.mark.parametrize(
    ("epochs", "shuffles", "fires"),
    [
        pytest.param((0, 0), True, True, id="never-set"),
        pytest.param((0, 1), True, False, id="set"),
        pytest.param((0,), True, False, id="one-epoch"),
        pytest.param((0, 0), False, False, id="not-shuffled"),
        pytest.param(None, True, False, id="has-no-epoch"),
    ],
)
def test_epoch_never_set(epochs: tuple[int, ...] | None, shuffles: bool, fires: bool) -> None:
    given = loader(sampler="DistributedSampler", epochs_set=epochs, shuffles=shuffles)
    findings = find(observed(loaders={0: (given,), 1: (given,)}))
    assert [(f.rule, f.gain_ns, f.is_correctness) for f in findings] == (
        [("set-epoch-never-called", None, True)] if fires else []
    )


@pytest.mark.parametrize(
    ("checkpoints", "evidence"),
    [
        pytest.param({0: ("a", ("/m.pt",)), 1: ("a", ())}, None, id="one-rank"),
        pytest.param({0: ("a", ("/m0.pt",)), 1: ("a", ("/m1.pt",))}, None, id="a-file-each"),
        pytest.param({0: ("a", ("/m.pt",)), 1: ("b", ("/m.pt",))}, None, id="disks-of-two-hosts"),
        pytest.param({0: ("a", ("/m.pt",)), 1: ("a", ("/m.pt",))}, "ranks 0, 1 all wrote /m.pt", id="same"),
        pytest.param(
            {0: ("a", ("/m.pt", "/n.pt")), 1: ("a", ("/m.pt", "/n.pt"))},
            "ranks 0, 1 all wrote /m.pt (2 such files)",
            id="two",
        ),
    ],
)
def test_same_checkpoint(checkpoints: dict[int, tuple[str, tuple[str, ...]]], evidence: str | None) -> None:
    findings = find(observed(checkpoints=checkpoints))
    assert [f.evidence for f in findings if f.rule == "same-checkpoint"] == ([evidence] if evidence else [])


@pytest.mark.parametrize(
    ("data_ns", "workers", "advice"),
    [
        pytest.param(5 * MS, 0, "num_workers=4", id="exactly-five-percent"),
        pytest.param(5 * MS, 6, "num_workers=12", id="twice-the-workers"),
        pytest.param(5 * MS - 1, 0, None, id="below-five-percent"),
        pytest.param(None, 0, None, id="not-measured"),
    ],
)
def test_idle_for_data(data_ns: int | None, workers: int, advice: str | None) -> None:
    findings = find(observed(data_ns=data_ns, loaders={0: (loader(num_workers=workers),)}))
    assert [(f.rule, f.gain_ns) for f in findings] == ([("idle-for-data", 5 * MS)] if advice else [])
    assert all(advice in f.advice for f in findings if advice)


@pytest.mark.parametrize(
    ("lost_ns", "share", "backend", "advice"),
    [
        pytest.param(2 * MS, 0.5, "nccl", "NCCL_MAX_CTAS=8", id="nccl"),
        pytest.param(2 * MS, 0.5, "gloo", "OMP_NUM_THREADS", id="gloo"),
        pytest.param(2 * MS, 0.5, None, "fewer of the device's resources", id="other"),
        pytest.param(2 * MS, 0.1, "nccl", None, id="hardly-known"),
        pytest.param(MS // 2, 0.5, "nccl", None, id="small"),
        pytest.param(-2 * MS, 0.5, "nccl", None, id="faster"),
        pytest.param(None, None, "nccl", None, id="unknown"),
    ],
)
def test_overlap_slowdown(lost_ns: int | None, share: float | None, backend: str | None, advice: str | None) -> None:
    o = observed(slowdown_lost_ns=lost_ns, slowdown_ratio=1.25, slowdown_known_share=share, backend=backend)
    assert [(f.rule, f.gain_ns) for f in find(o)] == ([("overlap-slowdown", lost_ns)] if advice else [])
    assert all(advice in f.advice and "1.25 ×" in f.title for f in find(o) if advice)


@pytest.mark.parametrize(("control", "fires"), [(None, True), (1.0, True), (1.2, True), (1.25, False), (0.7, False)])
def test_no_slowdown_is_claimed_that_the_machine_may_have_made(control: float | None, fires: bool) -> None:
    o = observed(slowdown_lost_ns=2 * MS, slowdown_ratio=1.25, slowdown_known_share=0.5, slowdown_control=control)
    assert bool(find(o)) is fires


@pytest.mark.parametrize(("ns", "fires"), [(5 * MS, True), (5 * MS - 1, False), (0, False), (None, False)])
def test_launch_bound(ns: int | None, fires: bool) -> None:
    assert [(f.rule, f.gain_ns) for f in find(observed(launch_bound_ns=ns))] == (
        [("launch-bound", ns)] if fires else []
    )


def late(rank: int, late_ns: int, part: Part | None = Part.BACKWARD, since_step: int | None = None) -> Straggler:
    return Straggler(rank, late_ns, part, late_ns, num_last=9, num_steps=10, since_step=since_step, p_value=1e-6)


def test_a_straggler_costs_what_it_is_later_than_the_next() -> None:
    gradients = {1: (LateGradient(0, "c.weight", "d.weight", 190 * MS, 190 * MS, 10),)}
    finding = only(observed(stragglers=(late(1, 200 * MS, since_step=7), late(3, 150 * MS)), late_gradients=gradients))
    assert (finding.rule, finding.gain_ns) == ("straggler", 50 * MS)
    assert finding.title == "All ranks wait for rank 1: 200.00 ms per step, in its backward"
    assert finding.evidence == (
        "it was the last in 9 of 10 steps since step 7; the gradient of c.weight comes 190.00 ms late, after that of "
        "d.weight; also late, by less: rank 3"
    )


@pytest.mark.parametrize(
    ("part", "title", "advice"),
    [
        (Part.DATA, "waiting for its data", "DataLoader workers"),
        (Part.OTHER, "between its steps", "logging"),
        (Part.FORWARD, "in its forward", "clocks and temperature"),
        (None, "per step", "clocks and temperature"),
    ],
)
def test_what_to_look_at_depends_on_where_a_rank_is_late(part: Part | None, title: str, advice: str) -> None:
    finding = only(observed(stragglers=(late(1, 20 * MS, part),)))
    assert finding.title.endswith(title)
    assert advice in finding.advice
    assert finding.gain_ns == 20 * MS


def beside(purpose: Purpose, exposed_ns: int, **changes: Any) -> OutsideCalls:
    given = {"place": Place.AFTER_OPTIMIZER, "kind": "all_reduce", "num_calls": 1, "num_bytes": 8, **changes}
    return OutsideCalls(purpose=purpose, time_ns=2 * exposed_ns, exposed_ns=exposed_ns, **given)


@pytest.mark.parametrize(
    ("calls", "rule", "gain_ns", "says"),
    [
        pytest.param(
            [beside(Purpose.PARAMETERS, 2 * MS, num_calls=6, num_bytes=400_000)], "parameter-averaging", 2 * MS,
            "6 × all-reduce of 0.4 MB in all, between the optimizer and the next forward: 2.00 ms per step",
            id="parameters",
        ),
        pytest.param(
            [beside(Purpose.PARAMETERS, 2 * MS, place=Place.AFTER_BACKWARD)], "gradient-averaging", 2 * MS,
            "averages already", id="gradients",
        ),
        pytest.param(
            [beside(Purpose.FEW_NUMBERS, MS), beside(Purpose.FEW_NUMBERS, 2 * MS, kind="all_gather")],
            "metrics-every-step", 3 * MS, "2 collectives of a few numbers in every step", id="metrics",
        ),
        pytest.param(
            [beside(Purpose.OTHER, MS, num_bytes=None)], "metrics-every-step", MS, "--record-shapes",
            id="of-unknown-size",
        ),
        pytest.param(
            [beside(Purpose.BARRIER, MS, kind="barrier", num_bytes=None)], "barrier-in-loop", MS,
            "A barrier stands in the training loop", id="barrier",
        ),
        pytest.param(
            [beside(Purpose.BARRIER, MS, kind="barrier", num_calls=2, num_bytes=None)], "barrier-in-loop", MS,
            "2 barriers stand in the training loop", id="two-barriers",
        ),
    ],
)  # fmt: skip
def test_collectives_beside_ddp(calls: list[OutsideCalls], rule: str, gain_ns: int, says: str) -> None:
    finding = only(observed(outside=tuple(calls)))
    assert (finding.rule, finding.gain_ns) == (rule, gain_ns)
    assert says in finding.title + finding.evidence + finding.advice


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(beside(Purpose.PARAMETERS, MS - 1), id="below-one-percent"),
        pytest.param(beside(Purpose.BARRIER, MS - 1), id="a-short-barrier"),
        pytest.param(beside(Purpose.FEW_NUMBERS, MS, place=Place.FORWARD), id="the-models-own"),
        pytest.param(beside(Purpose.OTHER, MS, num_bytes=1 << 20), id="large-for-what-nobody-knows"),
        pytest.param(beside(Purpose.OTHER, MS, num_bytes=None, kind="all_to_all"), id="exchanges-data"),
    ],
)
def test_collectives_beside_ddp_that_are_no_mistake(one: OutsideCalls) -> None:
    assert find(observed(outside=(one,))) == ()


MOVED = DataParallelStep(1, 0, 3 * MS, 2 * MS, 2 * MS, 3 * MS, 7 * MS)


def loads(*compute_ns: int) -> tuple[DeviceLoad, ...]:
    return tuple(DeviceLoad(device, ns, 0, 0, ns) for device, ns in enumerate(compute_ns))


@pytest.mark.parametrize(
    ("known", "gain_ns", "says"),
    [
        pytest.param(
            {"data_parallel": MOVED, "device_loads": loads(50 * MS, 42 * MS)}, 11 * MS,
            "copies parameters to them (3.00 ms), batches (2.00 ms), outputs (2.00 ms) and gradients (3.00 ms) back; "
            "7.00 ms of that is beside no computation; device 0 computes 4.00 ms more than they do on average",
            id="traced",
        ),
        pytest.param({"data_parallel_devices": (4,)}, None, "drives 4 devices from one process", id="only-recorded"),
    ],
)  # fmt: skip
def test_data_parallel(known: dict[str, Any], gain_ns: int | None, says: str) -> None:
    finding = only(observed(**known))
    assert (finding.rule, finding.gain_ns) == ("data-parallel", gain_ns)
    assert says in finding.title + finding.evidence
    assert "torchrun" in finding.advice


@pytest.mark.parametrize(("devices", "says"), [((), None), ((0,), "no accelerator"), ((1,), "a single device")])
def test_data_parallel_on_one_device(devices: tuple[int, ...], says: str | None) -> None:
    findings = find(observed(data_parallel_devices=devices))
    assert [(f.rule, f.gain_ns) for f in findings] == ([("data-parallel-on-one-device", None)] if says else [])
    assert all(says in f.title for f in findings if says)


@pytest.mark.parametrize(("again", "gather_ns", "fires"), [(1, 2 * MS, True), (0, 2 * MS, False), (1, -2 * MS, False)])
def test_outputs_scattered_again(again: int, gather_ns: int, fires: bool) -> None:
    moved = replace(MOVED, num_forwards=2, num_scattered_again=again, gather_ns=gather_ns)
    findings = [f for f in find(observed(data_parallel=moved)) if f.rule == "outputs-scattered-again"]
    assert [f.gain_ns for f in findings] == ([4 * MS] if fires else [])


@pytest.mark.parametrize(
    ("compute", "gain_ns"),
    [
        pytest.param((50 * MS, 30 * MS), 10 * MS, id="a-tenth-of-the-step"),
        pytest.param((50 * MS, 30 * MS + 2), None, id="less"),
        pytest.param((50 * MS,), None, id="one-device"),
        pytest.param((), None, id="not-measured"),
    ],
)
def test_device_imbalance(compute: tuple[int, ...], gain_ns: int | None) -> None:
    findings = find(observed(device_loads=loads(*compute)))
    assert [(f.rule, f.gain_ns) for f in findings] == ([("device-imbalance", gain_ns)] if gain_ns else [])
    assert all("from device 0 to device 1" in f.advice for f in findings)


GB, MIB_256 = 10**9, 256 * 2**20


def held(rank: int, rss: int | None = None, gpus: tuple[int, ...] = (), strangers: tuple[int, ...] = ()) -> RankMemory:
    """`gpus`: bytes on its own; `strangers`: on those before them."""
    uses = [DeviceUse(index, False, None, size, size, None) for index, size in enumerate(strangers)]
    uses += [DeviceUse(rank + index, True, size, size, size, None) for index, size in enumerate(gpus)]
    return RankMemory(rank, "node", rss, rss, tuple(uses))


def test_memory_of_ranks_that_do_not_train_there() -> None:
    ranks = (held(0, gpus=(9 * GB,)), *(held(rank, gpus=(9 * GB,), strangers=(GB // 10,)) for rank in (1, 2)))
    finding = only(observed(memory=ranks))
    assert (finding.rule, finding.gain_ns, finding.is_correctness) == ("memory-of-others", None, False)
    assert finding.title == "Ranks 1, 2 hold a context on GPU 0, where they do not train"
    assert finding.evidence.startswith("0.20 GB are reserved there for tensors, on node")
    assert "map_location" in finding.advice


@pytest.mark.parametrize(
    ("ranks", "title"),
    [
        pytest.param(
            [held(0, gpus=(9 * GB,)), held(1, gpus=(6 * GB,)), held(2, gpus=(6 * GB,))],
            "GPU 0 holds 3.00 GB more than the others", id="one-gpu",
        ),
        pytest.param(
            [held(0, gpus=(5 * GB,)), held(0, gpus=(5 * GB,)), held(1, gpus=(5 * GB,))],
            "GPU 0 holds 5.00 GB more than the others", id="two-processes-on-one",
        ),
        pytest.param([held(0, gpus=(6 * GB,)), held(1, gpus=(5 * GB,))], None, id="less-than-a-quarter"),
        pytest.param([held(0, GB), held(1, GB + MIB_256)], "Rank 1 holds 0.27 GB more than the others", id="host"),
        pytest.param([held(0, GB), held(1, GB + MIB_256 - 1)], None, id="too-little"),
        pytest.param([held(0, 9 * GB)], None, id="alone"),
        pytest.param([held(0), held(1)], None, id="unknown"),
    ],
)  # fmt: skip
def test_memory_imbalance(ranks: list[RankMemory], title: str | None) -> None:
    findings = find(observed(memory=tuple(ranks)))
    assert [(f.rule, f.title, f.gain_ns) for f in findings] == ([("memory-imbalance", title, None)] if title else [])


@pytest.mark.parametrize(
    ("ranks", "changes", "says"),
    [
        ((held(0, GB), held(1, 2 * GB)), {}, "loss.item()"),
        ((held(0, gpus=(5 * GB,)), held(0, gpus=(5 * GB,)), held(1, gpus=(5 * GB,))), {}, "set_device(local_rank)"),
        ((held(0, gpus=(9 * GB, GB)),), {"data_parallel": MOVED}, "DataParallel gathers outputs"),
    ],
)
def test_what_to_do_about_an_imbalance(ranks: tuple[RankMemory, ...], changes: dict[str, Any], says: str) -> None:
    findings = find(observed(memory=ranks, **changes))
    assert [says in f.advice for f in findings if f.rule == "memory-imbalance"] == [True]


def calling(*calls: RpcCalls, sync: int = 0, waited: int = 0, longest: int = 0, rank: int = 0) -> RankRpc:
    return RankRpc(rank, sync, waited, longest, waited, 0, calls)


def called(times: int, latency_ns: int | None, kind: str = "sync", size: int = 64 * 1024) -> RpcCalls:
    """`size`: bytes of a call, all but one of them its request's."""
    return RpcCalls("ps", "lookup", kind, times, latency_ns, times * (size - 1), times)


@pytest.mark.parametrize(
    ("rpc", "gain_ns"),
    [
        pytest.param(calling(called(8, MS), sync=1, waited=8 * MS, longest=8 * MS), 7 * MS, id="eight"),
        pytest.param(calling(called(8, MS), sync=1, waited=3 * MS, longest=3 * MS), 3 * MS, id="at-once"),
        pytest.param(calling(called(8, MS, "async")), None, id="asynchronous"),
    ],
)
def test_many_small_rpcs(rpc: RankRpc, gain_ns: int | None) -> None:
    finding = only(observed(rpc=(rpc,)))
    assert (finding.rule, finding.gain_ns) == ("many-small-rpcs", gain_ns)
    assert finding.title == "Rank 0 calls lookup on ps 8 times per step"
    assert finding.evidence == "each call takes 1.00 ms and moves 65.5 kB of tensors on average"


@pytest.mark.parametrize(
    "rpc",
    [
        pytest.param(calling(called(7, MS), waited=7 * MS, longest=7 * MS), id="few"),
        pytest.param(calling(called(8, MS, size=64 * 1024 + 1), waited=8 * MS, longest=8 * MS), id="large"),
        pytest.param(calling(called(8, MS // 9), waited=MS, longest=MS), id="quick"),
        pytest.param(calling(called(8, None)), id="never-answered"),
        pytest.param(calling(sync=2, waited=3 * MS, longest=2 * MS + 1), id="hardly-in-a-row"),
        pytest.param(calling(sync=1, waited=9 * MS, longest=MS), id="one"),
    ],
)
def test_rpcs_that_are_no_mistake(rpc: RankRpc) -> None:
    assert find(observed(rpc=(rpc,))) == ()


def test_rpcs_in_a_row_of_the_rank_that_loses_most() -> None:
    ranks = (calling(sync=3, waited=6 * MS, longest=2 * MS), calling(sync=3, waited=9 * MS, longest=3 * MS, rank=1))
    finding = only(observed(rpc=ranks))
    assert (finding.rule, finding.gain_ns) == ("rpcs-in-a-row", 6 * MS)
    assert finding.title == "Rank 1 waits 9.00 ms per step for 3 RPCs, one after the other"


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
    assert buckets_under(module, caps) == sizes
