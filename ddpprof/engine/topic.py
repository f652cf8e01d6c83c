"""The interface of a topic: everything about one question about a job, from the measure to the words.

`report/topics.py` lists the topics. Other code only uses this interface, and names no single topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar, cast

from ddpprof.engine.finding import Finding
from ddpprof.engine.numbers import Declared, declared_in
from ddpprof.engine.predictions import Predicted, Predictions
from ddpprof.layout import Section
from ddpprof.model import DdpModule, OtherFile, Rank, Record
from ddpprof.model.backends import ON_HOST
from ddpprof.model.tried import TriedChange
from ddpprof.model.whole_run import WholeRun

_OfRank = TypeVar("_OfRank")
_OfRun = TypeVar("_OfRun")

Chapter = Literal[
    "ending", "job", "notes", "times", "step", "devices", "buckets", "collectives", "ranks", "slowdown", "whole-run",
    "cost", "recording", "findings",
]  # fmt: skip
"""places of the report in which topics have sections, in order; ``ending`` to ``notes`` are about the job"""

_WORTH_SAYING = 0.01
"""minimum fraction of the step for a finding"""


@dataclass(frozen=True, slots=True)
class View:
    """The data of a run that rules use.

    Times are ns per step: means over the usual steps, on the rank with the lowest one.

    The lowest, because what other ranks take beyond it is waiting for a slower rank.
    """

    world_size: int | None
    step_ns: int | None
    step_noise_ns: int | None = None
    """half of the 95 % interval of `step_ns`, ns; ``None`` if there are too few steps for an interval"""
    backend: str | None = None
    modules: tuple[DdpModule, ...] = ()
    comm_ns: int | None = None
    exposed_ns: int | None = None
    trailing_ns: int | None = None
    data_ns: int | None = None
    """time that training waits for its data"""
    buffer_sync_ns: int | None = None
    unused_search_ns: int | None = None
    copy_out_ns: int | None = None
    launch_bound_ns: int | None = None
    """time that the accelerator waits for the host's launches, without `host_read_ns`"""
    host_read_ns: int | None = None
    """time that it waits for launches because the host waited for one of its results before"""
    optimizer_ns: int | None = None
    """time of the optimizers' steps that is not hidden behind other computation"""
    num_micro_steps: int = 1
    """number of batches that a step accumulates"""
    trains_beside_ddp: bool = False
    """whether optimizers train parameters whose gradients DDP does not average, so that the script may need to do so"""
    joins: bool = False
    """whether ranks may have different numbers of batches, as within DDP's ``join()``"""
    group_size: int | None = None
    """number of ranks that average their gradients together; the minimum over all ranks"""
    device: str | None = None
    """torch's device type: ``"cpu"`` or ``"cuda"``"""
    is_compiled: bool = False
    """whether torch.compile has compiled the model, which it splits where buckets end"""
    has_cuda: bool = True
    """whether an accelerator, if there is one, supports CUDA or HIP"""
    takes_cap_lists: bool = True
    """whether a user can effectively set a separate cap for each bucket"""
    could_take_cap_lists: bool = True
    """whether a user can set a separate cap for each bucket, even if torch.compile does not follow all of them"""
    framework: str | None = None
    """framework whose options make the DDP module; ``None`` if the script makes it"""
    cores_per_rank: float | None = None
    """number of cores per rank on the host with the fewest cores per rank"""
    num_threads: int | None = None
    """number of threads with which a rank computes on its host; the maximum over all ranks"""
    records: Mapping[int, Record] = field(default_factory=dict)
    """rank → the facts recorded about it, without its steps"""
    whole_run: WholeRun | None = None
    tried: tuple[TriedChange, ...] = ()
    predictions: Predictions = field(default_factory=Predictions)
    shown: Mapping[str, Any] = field(default_factory=dict)
    """topic name → its results for the run; see `__getitem__`"""

    def __getitem__(self, topic: Topic[Any, _OfRun]) -> _OfRun | None:
        """Return a topic's results; ``None`` if it has none, or comes later in the list of topics."""
        return cast("_OfRun | None", self.shown.get(topic.name))

    @property
    def shares_cores(self) -> bool:
        """Return True if the ranks compute on CPU cores, which the machine also uses for other work."""
        return self.backend in ON_HOST

    @property
    def is_one_group(self) -> bool:
        """Return True if all ranks average their gradients together."""
        return self.group_size == self.world_size

    def module(self, index: int) -> DdpModule | None:
        """Return a module; ``None`` if a killed rank left steps that use it, but no description of it."""
        return self.modules[index] if 0 <= index < len(self.modules) else None

    def worth(self, gain_ns: int | None, predicted: Predicted | None = None) -> bool:
        """Return True if the gain is large enough for a finding.

        `gain_ns` is a measured bound; both gains must be large enough.
        """
        gains = [gain_ns, None if predicted is None else predicted.gain_ns]
        least = min((gain for gain in gains if gain is not None), default=0)
        return least > 0 and bool(self.step_ns) and least >= _WORTH_SAYING * (self.step_ns or 0)


class ModuleView(Protocol):
    """A DDP module, as sections see it."""

    @property
    def comm_hook(self) -> str | None: ...


class ReportView(Protocol):
    """The report, as the sections of a topic see it beside what the topic itself shows."""

    @property
    def modules(self) -> Sequence[ModuleView]: ...

    @property
    def usual_steps(self) -> tuple[int, ...]:
        """Return the numbers of the profiled steps that tables average over; empty if these are all."""

    @property
    def on_accelerator(self) -> bool: ...

    @property
    def findings(self) -> tuple[Finding, ...]: ...

    def trace_command(self, *options: str) -> str:
        """Return the command that records such a run again, with further options."""

    def __getitem__(self, topic: Topic[Any, _OfRun]) -> _OfRun | None:
        """Return what a topic shows, if the report has a field of its name; ``None`` if it shows nothing."""


@dataclass(frozen=True, slots=True)
class TableSchema(Generic[_OfRun]):
    """One table of `Report.tables`; it has a column for every number that its rows declare."""

    name: str
    """name of the attribute of `Tables`, and of the Parquet file"""
    description: str
    row: type
    rows: Callable[[_OfRun, ReportView], Iterable[Any]]
    """takes what the topic shows"""

    @property
    def columns(self) -> tuple[Declared, ...]:
        return declared_in(self.row)


@dataclass(frozen=True, slots=True)
class FileMeasures(Generic[_OfRun]):
    """Measures of a job that come from another tool's file."""

    measured: _OfRun
    backend: str | None
    steps_ns: Mapping[int, int]
    """step number → duration"""
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Topic(Generic[_OfRank, _OfRun]):
    """The measures, rules and sections of one question. ``_OfRun`` is the type of its results for a run.

    It either measures each rank (`of_rank`, then `of_ranks`), or takes all results from what is already known
    (`of_run`). A topic whose name is a field of the report may have sections only.
    """

    name: str
    """also the name of the field of `Report` with its results, if there is one"""
    rules: tuple[Callable[[_OfRun, View], Iterator[Finding]], ...] = ()
    sections: Mapping[Chapter, Callable[[_OfRun, ReportView], Iterable[Section]]] = field(default_factory=dict)
    tables: tuple[TableSchema[_OfRun], ...] = ()
    advice: Mapping[str, str] = field(default_factory=dict)
    """rule of another topic → advice that replaces that rule's advice"""
    of_rank: Callable[[Rank, Sequence[int], Sequence[DdpModule]], _OfRank | None] | None = None
    """measures a rank in the steps with these indices, given the job's modules; ``None`` if there is nothing to measure
    """
    of_ranks: Callable[[Sequence[_OfRank]], _OfRun | None] | None = None
    """combines the results of `of_rank` of one or more ranks; ``None`` if `report/build.py` does"""
    rank_type: Any = None
    """type of the result of `of_rank`; required if the result is not ``None``"""
    run_type: Any = None
    """type of its results, such as ``tuple[Row, ...]``; only needed for topics of other packages"""
    of_run: Callable[[View], _OfRun | None] | None = None
    """takes its results from the view, which contains the topics before this one"""
    file: str | None = None
    """name of the file type that it reads instead of ranks, if any"""
    of_file: Callable[[OtherFile], FileMeasures[_OfRun] | None] | None = None
    """measures a file; ``None`` if the file belongs to another topic"""
