"""The report: the measures of a run as one tree.

The JSON report has the same fields; ``ddpprof schema`` prints its schema. ``None`` means unknown. Times are in ns, and
sizes in bytes.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from statistics import fmean, median
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from ddpprof.engine.finding import Finding
from ddpprof.engine.numbers import DEVICE, HOST
from ddpprof.engine.topic import Topic
from ddpprof.model.whole_run import WholeRun
from ddpprof.predict import AcceptedCaps, accepted_caps
from ddpprof.statistics import mean_known, median_known
from ddpprof.topics.attempts import AttemptSummary
from ddpprof.topics.bound import Bound, BoundBy, WhatHelps, WouldHelp
from ddpprof.topics.buckets.steps import BucketRow
from ddpprof.topics.compiled_graphs import CompiledGraphs
from ddpprof.topics.devices import DataParallelReport
from ddpprof.topics.failure import Failure
from ddpprof.topics.horovod import HorovodSummary
from ddpprof.topics.kernels import KernelSummary
from ddpprof.topics.link_limit import LinkLimit
from ddpprof.topics.memory import RankMemory
from ddpprof.topics.overlap_slowdown import OverlapSlowdownReport
from ddpprof.topics.own_reduction import OwnReduction
from ddpprof.topics.ranks.across import AcrossRanks
from ddpprof.topics.rpc import RankRpc
from ddpprof.topics.script_code import ScriptLine
from ddpprof.topics.script_collectives import OutsideCalls
from ddpprof.topics.steps.measure import TIMED_MODES, LightStepReport, RankReport, StepReport, profiler_cost

if TYPE_CHECKING:
    import pyarrow as pa


class ShownInNotebooks:
    """Base class of results. Jupyter shows them as HTML, and ``print`` shows a short summary.

    `ddpprof.render.notebook` renders both forms.
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        """Define `_repr_pretty_` in the subclass; otherwise, IPython would prefer the ``__repr__`` of the subclass."""
        cls._repr_pretty_ = ShownInNotebooks._repr_pretty_  # type: ignore[method-assign]

    def _repr_html_(self) -> str:
        from ddpprof.render.notebook import as_html

        return as_html(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the summary in an IPython terminal. `cycle`: whether a container contains itself."""
        printer.text("…" if cycle else str(self))

    def __str__(self) -> str:
        from ddpprof.render.notebook import as_text

        return as_text(self)


__all__ = [
    "REPORT_FORMAT",
    "Bound",
    "BoundBy",
    "Job",
    "LightStepReport",
    "Module",
    "RankReport",
    "Report",
    "StepReport",
    "WhatHelps",
    "WouldHelp",
]


_OfRun = TypeVar("_OfRun")

REPORT_FORMAT = 3
"""version of the JSON report; increased if a field is removed or changes its meaning, but not if a field is added"""


@dataclass(frozen=True, slots=True)
class Module:
    """One DDP module in the report."""

    name: str
    num_parameters: int
    parameter_bytes: int
    num_buckets: int
    bucket_cap_mib: float | None
    comm_hook: str | None
    settings: Mapping[str, str] = field(default_factory=dict)
    """arguments of DDP's constructor → values, as text"""


@dataclass(frozen=True, slots=True)
class Job:
    """The job to which the run belongs."""

    name: str
    command: tuple[str, ...]
    world_size: int | None
    num_ranks_read: int
    hosts: tuple[str, ...]
    device: str | None
    backend: str | None
    torch: str | None
    modules: tuple[Module, ...]
    num_steps: int | None = None
    """total number of training steps; ``None`` if unknown"""
    num_micro_steps: int | None = None
    """number of batches whose gradients are accumulated in a step; ``None`` if ddpprof did not record the run"""
    recorded_with: tuple[str, ...] = ()
    """arguments of ``ddpprof trace`` with which the recording can be repeated; empty if unknown"""
    framework: str | None = None
    """framework that created the DDP module: ``"transformers"``, ``"lightning"``, ``"fabric"``, ``"accelerate"``"""
    is_compiled: bool = False
    """True if the job used torch.compile"""
    only_watched: bool = False
    """True if no steps were recorded in detail, as with ``ddpprof watch``"""
    group_ranks: tuple[int, ...] | None = None
    """ranks with which the lowest rank averages its gradients; ``None`` if these are all ranks of the job, or if
    unknown
    """
    round_trip_ns: Annotated[int | None, HOST] = None
    """longest round trip of a message from a rank to the host of the job's key-value store"""
    spare_cores: float | None = None
    """number of unused CPU cores per rank, on the host with the fewest; ``None`` if unknown"""
    ranks_per_core: float | None = None
    """number of ranks per CPU core, on the host with the most; ``None`` if unknown"""
    is_of_torchrun: bool = False
    """True if torchrun started the ranks"""
    num_launches: int = 0
    """number of ddpprof processes that started ranks; a job on several hosts may have one for each host or rank"""

    @property
    def one_command_starts_it(self) -> bool:
        """Whether repeating the command on one host starts all ranks, as with mpirun; if unknown, ``False``."""
        return len(self.hosts) < 2 or self.num_launches == 1

    def averages(self, rank: int) -> bool:
        """Return True if a rank averages its gradients with the lowest rank."""
        return self.group_ranks is None or rank in self.group_ranks

    @property
    def num_averaging(self) -> int | None:
        """Number of ranks that average their gradients together."""
        return self.world_size if self.group_ranks is None else len(self.group_ranks)

    @property
    def accepted_caps(self) -> AcceptedCaps:
        """The kinds of bucket caps that can be passed to the DDP module."""
        return accepted_caps(self.torch, self.framework, self.is_compiled)

    @property
    def takes_cap_lists(self) -> bool:
        """Whether the versions of PyTorch and the framework accept a list of caps."""
        return accepted_caps(self.torch, self.framework, is_compiled=False).lists

    def trace_command(self, *options: str) -> str:
        """Return the command that records the run again, with further options."""
        return " ".join(("ddpprof trace", *options, shlex.join(self.trace_words)))

    @property
    def trace_words(self) -> tuple[str, ...]:
        """Arguments of ``ddpprof trace`` that record the run again; an example if the script itself recorded it."""
        if self.recorded_with:
            return self.recorded_with
        is_on_one_host = self.is_of_torchrun and len(self.hosts) == 1
        launcher = ("--nproc-per-node", str(self.world_size)) if is_on_one_host and self.world_size else ()
        return (*launcher, "train.py")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tables:
    """The tables of one report, as Arrow tables, which pandas, Polars and DuckDB can read without copying.

    The name of a column includes its unit, and the metadata of its field has a description.
    """

    steps: pa.Table
    light_steps: pa.Table
    ranks: pa.Table
    buckets: pa.Table
    collectives: pa.Table
    kernels: pa.Table
    findings: pa.Table
    further: Mapping[str, pa.Table]
    """name of a topic from another package → table of the topic"""

    def __iter__(self) -> Iterator[tuple[str, pa.Table]]:
        """Yield names and tables, so that ``dict(tables)`` contains all tables."""
        yield from ((one.name, getattr(self, one.name)) for one in fields(self) if one.name != "further")
        yield from self.further.items()

    def __repr__(self) -> str:
        return f"Tables({', '.join(f'{name}: {table.num_rows} rows' for name, table in self)})"


@dataclass(frozen=True, slots=True)
class Report(ShownInNotebooks):
    format: int
    ddpprof: str
    job: Job
    missing: tuple[str, ...]
    """messages that say which data the report lacks, and why"""
    ranks: tuple[RankReport, ...]
    buckets: tuple[BucketRow, ...]
    """gradient buckets, from ddpprof's recording or, if there is no recording, from the traces"""
    findings: tuple[Finding, ...]
    kernels: Annotated[tuple[KernelSummary, ...], DEVICE] = ()
    """kernels that take the most time on the first rank with a trace"""
    overlap_slowdown: Annotated[OverlapSlowdownReport | None, DEVICE] = None
    across: AcrossRanks | None = None
    outside: Annotated[tuple[OutsideCalls, ...] | None, DEVICE] = None
    """collectives that DDP does not call: medians per step, on the rank with the least exposed time"""
    data_parallel: Annotated[DataParallelReport | None, DEVICE] = None
    memory: tuple[RankMemory, ...] = ()
    rpc: Annotated[tuple[RankRpc, ...], HOST] = ()
    """calls through ``torch.distributed.rpc`` on each rank"""
    horovod: HorovodSummary | None = None
    """summary of a Horovod timeline, if the report was made from one; most other fields are then empty"""
    attempts: tuple[AttemptSummary, ...] = ()
    """attempts of a job that torchrun restarted; the other fields describe one of these attempts"""
    bound: Bound | None = None
    """what limits the step; ``None`` if little communication is exposed, or if unknown"""
    usual_steps: tuple[int, ...] = ()
    """numbers of the profiled steps over which the tables average; see `topics.steps.breakdown`"""
    failure: Failure | None = None
    """how the job failed; ``None`` if no failure is known"""
    own_reduction: Annotated[OwnReduction | None, DEVICE] = None
    """gradient reduction by the script's own hooks instead of DDP: per step, on the rank with the least exposed time"""
    compiled_graphs: Annotated[CompiledGraphs | None, HOST] = None
    """how torch.compile splits the DDP module into graphs; ``None`` if the module is not compiled"""
    times: Mapping[str, str] = field(default_factory=dict)
    """on an accelerator, name of each field → its clock: ``"host"`` for launch times, ``"device"`` for
    execution times
    """
    script_lines: Annotated[tuple[ScriptLine, ...], HOST] = ()
    """longest-running lines of the script in a step, on the rank on which they take the most time; empty on an
    accelerator
    """
    link_limit: LinkLimit | None = None
    """the link between the ranks, its speed and the bandwidth reached; ``None`` if nothing is known about the link"""
    whole_run: Annotated[WholeRun | None, HOST] = None
    """summary of the whole training; ``None`` if no rank wrote a pulse file"""
    further: Mapping[str, Any] = field(default_factory=dict)
    """name of a topic from another package → results of the topic"""

    @property
    def tables(self) -> Tables:
        """The report as Arrow tables, created on each access. Raises `DdpprofError` if pyarrow is not installed."""
        from ddpprof.report.topics import make_tables

        return make_tables(self)

    @property
    def ranks_together(self) -> tuple[RankReport, ...]:
        """Ranks that average their gradients with the lowest rank. Other ranks may train a different model."""
        return tuple(rank for rank in self.ranks if self.job.averages(rank.rank))

    @property
    def step_ns(self) -> int | None:
        """Duration of a step, in ns: the median of the steps that ran without the profiler.

        All steps of the run are used if enough of their times are known; otherwise, some of the first steps.
        On an accelerator, or if all steps ran with the profiler, this is the mean of the profiled steps.
        """
        run, timed_ns = self.whole_run, self.timed_steps_ns
        if timed_ns:
            return (run.usual_step_ns if run is not None else None) or round(median(timed_ns))
        light = median_known(step.duration_ns for rank in self.ranks for step in rank.light_steps)
        whole_ns = run.steps.median_ns if run is not None and run.steps is not None else None
        return next((ns for ns in (self.profiled_step_ns, light, whole_ns) if ns is not None), None)

    @property
    def timed_steps_ns(self) -> list[float]:
        """Durations of the steps without the profiler, in ns, as means over the ranks. Empty on an accelerator."""
        by_number: dict[int, list[int]] = {}
        for step in (step for rank in self.ranks_together for step in rank.light_steps if step.mode in TIMED_MODES):
            by_number.setdefault(step.step, []).append(step.duration_ns)
        return [] if self.times else [fmean(of_ranks) for _, of_ranks in sorted(by_number.items())]

    @property
    def profiled_step_ns(self) -> int | None:
        """Mean duration of the profiled steps over which tables average, in ns."""
        return mean_known(step.duration_ns for rank in self.ranks_together for step in self.averaged(rank))

    @property
    def profiler_ns(self) -> int:
        """Time that the profiler adds to a step, in ns; 0 if unknown."""
        if self.on_accelerator:
            return profiler_cost(self.ranks_together, self.usual_steps) or 0
        return max(0, (self.profiled_step_ns or 0) - (self.step_ns or 0))

    def averaged(self, rank: RankReport) -> tuple[StepReport, ...]:
        """Return the steps of the rank over which tables average."""
        return rank.averaged(self.usual_steps)

    @property
    def modules(self) -> tuple[Module, ...]:
        return self.job.modules

    @property
    def on_accelerator(self) -> bool:
        return bool(self.times)

    def trace_command(self, *options: str) -> str:
        """Return the command that records the run again, with further options."""
        return self.job.trace_command(*options)

    def __getitem__(self, topic: Topic[Any, _OfRun]) -> _OfRun | None:
        """Return the results of a topic, or ``None`` if the report has none."""
        return cast("_OfRun | None", getattr(self, topic.name, None) or None)
