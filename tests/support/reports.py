"""Reports built by hand, for tests of renderers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ddpprof.comparison import Comparison, RunSet, compare
from ddpprof.engine.finding import Finding
from ddpprof.model import DataParallelModule, Kernel
from ddpprof.render.html.result_pages import result_page
from ddpprof.render.json_documents import ComparisonFile
from ddpprof.render.sections.comparison import comparison_sections
from ddpprof.report import Job, LightStepReport, Module, RankReport, Report, StepReport
from ddpprof.topics.buckets.steps import BucketRow
from ddpprof.topics.collectives import CollectiveSummary
from ddpprof.topics.devices import DataParallelReport, DataParallelStep, DeviceLoad
from ddpprof.topics.idle import Idle
from ddpprof.topics.kernels import KernelSummary
from ddpprof.topics.memory import DeviceUse, RankMemory
from ddpprof.topics.overlap_slowdown import OverlapSlowdownReport, SlowedKernel
from ddpprof.topics.ranks.across import AcrossRanks, LateGradients
from ddpprof.topics.ranks.clock import CommonClock, HostClock, RankClock
from ddpprof.topics.ranks.own_time import RankWaiting
from ddpprof.topics.ranks.stragglers import LateGradient, OwnTimePart, RankLateness, Straggler, Stragglers
from ddpprof.topics.rpc import RankRpc, RpcCalls
from ddpprof.topics.script_collectives import OutsideCalls, Place, Purpose
from ddpprof.topics.steps.breakdown import Breakdown, RecordedBreakdown
from ddpprof.topics.steps.measure import RecordingCost
from ddpprof.topics.steps.overlap import Overlap
from ddpprof.topics.wrapper import WrapperCost

GOLDEN = Path(__file__).parents[1] / "golden"
US = 1000

HOSTILE = {
    "markup": "[bold]x[/bold] [link=http://x]y[/link] :smile:",
    "html": "<script>alert(1)</script>",
    "escapes": "\x1b[31mred\x1b]0;title\x07\x9b2J",
    "right-to-left": "a\u200f\u202eb",
    "lines": "a\nb\r\nc\u2028d",
    "endless": "x" * 10_000,
    "pipe": "a|b\\|c`d`",
    "undecodable": "a\udcffb",
    "wide": "層" * 60,
}
"""Names that try to be more than names."""


def step(number: int, compute: int, comm: int, overlap: int, trailing: int | None, idle: int) -> StepReport:
    """Times in µs; two thirds of the compute are backward."""
    forward, backward, optimizer = compute // 4 * US, compute // 4 * 2 * US, compute // 4 * US
    exposed = (comm - overlap) * US
    parts = Breakdown(forward, backward, exposed, optimizer, 200 * US, 250 * US, 50 * US, idle * US)
    return StepReport(
        step=number, duration_ns=parts.step_ns, compute_ns=compute * US, comm_ns=comm * US, overlap_ns=overlap * US,
        exposed_ns=exposed, trailing_ns=None if trailing is None else trailing * US, copy_ns=0, num_comm_kernels=3,
        parts=parts, torch_times=None,
        wrapper=WrapperCost(450 * US, 0, 410 * US, 2820 * US, 360 * US, None),
    )  # fmt: skip


def rank(number: int, *steps: StepReport, **changes: Any) -> RankReport:
    given: dict[str, Any] = {
        "host": "node", "ended": "finished", "whole": Overlap(1, 1, 1, 0, 0, 3), "light_steps": (),
        "recording_cost": None, **changes,
    }  # fmt: skip
    return RankReport(rank=number, steps=steps, **given)


def bucket(index: int, **changes: Any) -> BucketRow:
    given: dict[str, Any] = {
        "module": 0, "num_bytes": 4_240_000, "num_parameters": 4, "first_parameter": "head.4.bias",
        "last_parameter": "head.2.weight", "first_ready_ns": 550 * US, "ready_ns": 5640 * US, "launched_ns": 5860 * US,
        "started_ns": 5920 * US, "finished_ns": 13390 * US, "transfer_ns": 5680 * US,
        "slowest_parameter": "head.2.weight", "slowest_parameter_delay_ns": 90 * US, "late_rank": 0,
        "late_by_ns": 5750 * US, **changes,
    }  # fmt: skip
    return BucketRow(index=index, **given)


def report(**changes: Any) -> Report:
    """Make a report of two ranks, two steps, two buckets, two findings, a note."""
    job = Job(
        name="demo", command=("python", "train.py", "--epochs", "1"), world_size=2, num_ranks_read=2, hosts=("node",),
        device="cpu", backend="gloo", torch="2.13.0+cpu", modules=(Module("ConvNet", 16, 5_790_000, 2, 25.0, None),),
    )  # fmt: skip
    findings = (
        Finding(
            "buffers-broadcast",
            "12 buffers of 4 BatchNorm layers are broadcast in every step",
            "3.9 kB take 3.18 ms per step, and every rank waits for rank 0",
            "DistributedDataParallel(model, forward_sync_buffers=False).",
            3_180_000,
        ),
        Finding("set-epoch-never-called", "Every epoch has the same order", "why", "what", None, is_correctness=True),
        Finding("unused-parameters", "2 parameters never get a gradient", "why", "what", None),
    )
    given: dict[str, Any] = {
        "format": 1, "ddpprof": "0.1.0", "job": job, "missing": ("1 collective(s) still ran",),
        "ranks": (
            rank(0, step(12, 48_000, 9_000, 2_500, 0, 9_000), step(13, 50_000, 9_200, 2_900, 100, 8_000),
                 recording_cost=RecordingCost(66_750_000, 67_000_000, 67_050_000, 1.004, 4, 0.1, 31_500_000)),
            rank(1, step(12, 56_000, 18_000, 9_000, 4_420, 1_000), step(13, 55_000, 16_000, 8_000, None, 2_000)),
        ),
        "buckets": (
            bucket(0),
            bucket(1, num_bytes=1_560_000, num_parameters=12, first_parameter="features.3.1.weight", late_rank=None,
                   last_parameter="features.0.0.weight", ready_ns=40_310_000, launched_ns=40_860_000,
                   started_ns=None, finished_ns=None, slowest_parameter=None),
        ),
        "findings": findings, "across": None, "overlap_slowdown": None,
        "kernels": (KernelSummary(Kernel("gemm", "[2,1,1][128,1,1]"), "backward", 2, 8, 40 * US, 5 * US, 0.1),),
        **changes,
    }  # fmt: skip
    return Report(**given)


def across(name: str = "node-a", **changes: Any) -> AcrossRanks:
    """Make a report of two ranks on two hosts; rank 1 is late in its backward pass."""
    collective = CollectiveSummary(
        kind="all_reduce", group=name, num_ranks=2, at_least_bytes=1 << 20, below_bytes=1 << 21, num_calls=4,
        num_bytes=6_240_000, num_ranks_read=2, transfer_ns=13_000 * US, shared_transfer_ns=12_500 * US,
        waiting_ns=5_700 * US, algbw_bytes_per_s=1.248e8, busbw_bytes_per_s=1.248e8,
    )  # fmt: skip
    unsized = replace(
        collective, kind="broadcast", group=None, at_least_bytes=None, below_bytes=None, num_bytes=None,
        algbw_bytes_per_s=None, busbw_bytes_per_s=None,
    )  # fmt: skip
    straggler = Straggler(1, 5_750 * US, OwnTimePart.BACKWARD, 5_500 * US, 8, 9, 7, 0.0004)
    given: dict[str, Any] = {
        "num_matched": 6,
        "clock": CommonClock(
            at_ns=10**18,
            ranks=(RankClock(0, name, 0, 0.0, 0, 6), RankClock(1, "node-b", 1_500_000, 0.0, 250_000, 6, 80_000)),
            hosts=(HostClock(name, 1, 0, 0.0, 0), HostClock("node-b", 1, 1_500_000, 12.5, 250_000, 80_000)),
        ),
        "waiting": (RankWaiting(0, 6, 1, 5_700 * US, 11_000 * US, 34_000 * US), RankWaiting(1, 6, 5, 0, 0, 100)),
        "collectives": (collective, unsized),
        "stragglers": Stragglers(
            9, 60_000 * US, (RankLateness(0, 1, -5_750 * US, 1.0), RankLateness(1, 8, 5_750 * US, 0.0004)), (straggler,)
        ),
        "late_gradients": (
            LateGradients(1, (LateGradient(0, name, "head.2.weight", 5_400 * US, 5_400 * US, 9),)),
        ),
        **changes,
    }  # fmt: skip
    return AcrossRanks(**given)


def slowdown(name: str = "void at::native::elementwise_kernel<4, float>(int, float)") -> OverlapSlowdownReport:
    kernel = Kernel(name, "[2,1,1][128,1,1]")
    return OverlapSlowdownReport(
        reason=None, ratio=1.12, lost_ns=3_000 * US, covered_ns=30_000 * US, known_share=0.9, knows_input_shapes=True,
        num_steps=4, kernels=(SlowedKernel(kernel, 1.2, 12, 8, 20_000 * US, 2_800 * US),),
    )  # fmt: skip


def gpu_report(**changes: Any) -> Report:
    """Make a report of an accelerator's trace: why it idled, buckets without names."""
    made = report(**{"overlap_slowdown": slowdown(), "across": across(), **changes})
    idle = Idle(6_000 * US, 1_500 * US, 500 * US)
    ranks = tuple(replace(r, steps=tuple(replace(s, idle=idle) for s in r.steps)) for r in made.ranks)
    nameless = {"num_parameters": None, "first_parameter": None, "last_parameter": None, "slowest_parameter": None}
    buckets = tuple(replace(b, **nameless, ready_ns=None) for b in made.buckets)
    outside = (
        OutsideCalls(Purpose.FEW_NUMBERS, Place.AFTER_BACKWARD, "all_reduce", 2, 8, 900 * US, 850 * US),
        OutsideCalls(Purpose.BARRIER, Place.AFTER_OPTIMIZER, "barrier", 1, None, 400 * US, 400 * US),
    )
    job = replace(made.job, device="gpu", backend="nccl", modules=())
    return replace(made, job=job, ranks=ranks, buckets=buckets, findings=(), outside=outside)


def light_report() -> Report:
    parts = RecordedBreakdown(12_000_000, 40_000_000, 1_000_000, 200_000, 3_000_000)
    steps = tuple(LightStepReport(number, "light", 56_200_000, parts) for number in (4, 6))
    off = LightStepReport(5, "off", 56_000_000, None)
    calls = (
        RpcCalls("server", "lookup", "sync", 8, 1_100 * US, 64, 512),
        RpcCalls("server", "push", "async", 1, None, 576, None),
    )
    rpc = RankRpc(0, 8, 9_000 * US, 1_500 * US, calls)
    return report(
        ranks=(rank(0, light_steps=(*steps, off), whole=None),), buckets=(), findings=(), missing=("rank 1 is absent",),
        across=None, kernels=(), rpc=(rpc,),
    )  # fmt: skip


def hostile_report(name: str) -> Report:
    made, waits = report(), across(name)
    module = replace(made.job.modules[0], name=name, comm_hook=name)
    job = replace(made.job, name=name, command=(name,), backend=name, torch=name, hosts=(name,), modules=(module,))
    return replace(
        made,
        job=job,
        missing=(name,),
        buckets=(bucket(0, first_parameter=name, last_parameter=name, slowest_parameter=name), bucket(1)),
        findings=(Finding("rule", name, name, name, None),),
        across=replace(waits, collectives=tuple(replace(one, kind=name) for one in waits.collectives)),
        overlap_slowdown=slowdown(name),
        outside=(OutsideCalls(Purpose.BARRIER, Place.AFTER_OPTIMIZER, name, 1, None, 400 * US, 400 * US),),
        rpc=(RankRpc(0, 8, 9_000 * US, 1_500 * US, (RpcCalls(name, name, name, 1, None, 576, None),)),),
    )


def data_parallel_report(name: str = "ConvNet") -> Report:
    """Make a report of one recorded process with two accelerators."""
    made = gpu_report()
    loads = (
        DeviceLoad(0, 48_000 * US, 4_000 * US, 900 * US, 52_000 * US),
        DeviceLoad(1, 40_000 * US, 4_000 * US, 0, 1),
    )
    steps = DataParallelStep(1, 3_000 * US, 900 * US, 700 * US, 2_500 * US, 6_000 * US)
    module = DataParallelModule(name, (0, 1), 16, 5_790_000)
    uses = (DeviceUse(0, True, 3 * 10**9, 4 * 10**9, 5 * 10**9, 80 * 10**9), DeviceUse(1, False, None, 1, 2, None))
    memory = (RankMemory(0, "node", 1_234_567_890, 2 * 10**9, uses),)
    return replace(
        made, ranks=(replace(made.ranks[0], devices=loads),), across=None, outside=None, memory=memory,
        data_parallel=DataParallelReport(0, (module,), steps),
    )  # fmt: skip


def compare_runs(a: Report, b: Report) -> Comparison:
    """Compare one run of each."""
    return compare(RunSet((a,)), RunSet((b,)))


def comparison_page(a: Report, b: Report) -> str:
    """The page of a comparison of one run of each."""
    found = compare_runs(a, b)
    return result_page("A and B", ComparisonFile(found, ()), comparison_sections(found))
