"""Reports built by hand, for tests of what renders them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ddpprof.findings import Finding
from ddpprof.measures.breakdown import Breakdown
from ddpprof.measures.bucket_table import BucketRow
from ddpprof.measures.cost import RecordingCost
from ddpprof.measures.recorded import RecordedBreakdown
from ddpprof.measures.wrapper import WrapperCost
from ddpprof.report import DeviceWork, Job, LightStepReport, Module, RankReport, Report, StepReport

GOLDEN = Path(__file__).parent / "golden"
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
    parts = Breakdown(forward, backward, exposed, optimizer, 200 * US, 300 * US, idle * US)
    return StepReport(
        step=number, duration_ns=parts.step_ns, compute_ns=compute * US, comm_ns=comm * US, overlap_ns=overlap * US,
        exposed_ns=exposed, trailing_ns=None if trailing is None else trailing * US, copy_ns=0, num_comm_kernels=3,
        parts=parts, torch_times=None,
        wrapper=WrapperCost(450 * US, 0, 410 * US, 2820 * US, 360 * US, None),
    )  # fmt: skip


def rank(number: int, *steps: StepReport, **changes: Any) -> RankReport:
    given: dict[str, Any] = {
        "host": "node", "ended": "finished", "whole": DeviceWork(1, 1, 1, 0, 0, 3), "light_steps": (),
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
    """Two ranks, two steps, two buckets, two findings, a note."""
    job = Job(
        name="demo", command=("python", "train.py", "--epochs", "1"), world_size=2, num_ranks_read=2, hosts=("node",),
        device="cpu", backend="gloo", torch="2.13.0+cpu", modules=(Module("ConvNet", 16, 5_790_000, 2, 25.0, None),),
    )  # fmt: skip
    findings = (
        Finding(
            "buffers-broadcast",
            "12 buffers of 4 BatchNorm layers are broadcast before every forward",
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
        "findings": findings, **changes,
    }  # fmt: skip
    return Report(**given)


def light_report() -> Report:
    parts = RecordedBreakdown(12_000_000, 40_000_000, 1_000_000, 200_000, 3_000_000)
    steps = tuple(LightStepReport(number, "light", 56_200_000, parts) for number in (4, 6))
    off = LightStepReport(5, "off", 56_000_000, None)
    return report(
        ranks=(rank(0, light_steps=(*steps, off), whole=None),), buckets=(), findings=(), missing=("rank 1 is absent",)
    )  # fmt: skip


def hostile_report(name: str) -> Report:
    made = report()
    module = replace(made.job.modules[0], name=name, comm_hook=name)
    job = replace(made.job, name=name, command=(name,), backend=name, torch=name, hosts=(name,), modules=(module,))
    return replace(
        made,
        job=job,
        missing=(name,),
        buckets=(bucket(0, first_parameter=name, last_parameter=name, slowest_parameter=name), bucket(1)),
        findings=(Finding("rule", name, name, name, None),),
    )
