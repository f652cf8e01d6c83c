"""The interface of a topic, which combines the measures, rules and report sections for one question about a job.

`report/topics.py` lists the topics. Other code uses only this interface, and does not depend on a particular topic.
Other packages provide topics through entry points in the group ``ddpprof.topics``. Each entry point refers to a
`Topic`.

`find` returns the findings of all topics, sorted by priority.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar, cast

from ddpprof.engine.finding import Finding, Predicted, Predictions, calibrated, within
from ddpprof.engine.numbers import Declared, declared_in
from ddpprof.errors import DdpprofError
from ddpprof.layout import ABSENT, Column, Section, Table, clean, megabytes, ms, notes
from ddpprof.model import DdpModule, OtherFile, Rank, Record
from ddpprof.model.backends import ON_HOST
from ddpprof.model.json_files import Outcome, TriedChange
from ddpprof.model.whole_run import WholeRun

_OfRank = TypeVar("_OfRank")
_OfRun = TypeVar("_OfRun")

Chapter = Literal[
    "ending", "job", "notes", "times", "step", "devices", "buckets", "collectives", "ranks", "slowdown", "whole-run",
    "cost", "recording", "findings",
]  # fmt: skip
"""chapters of the report, in order; topics add sections to the chapters. The first three chapters are about the job"""

_WORTH_SAYING = 0.01
"""a finding is reported if its gain is at least this fraction of the step"""


@dataclass(frozen=True, slots=True)
class View:
    """The data of a run that rules use.

    Times are in ns per step. They are means over the usual steps on the rank with the lowest time, because the times of
    other ranks include waiting for a slower rank.
    """

    world_size: int | None
    step_ns: int | None
    step_noise_ns: int | None = None
    """half the width of the 95 % interval of `step_ns`, in ns; ``None`` if there are too few steps for an interval"""
    backend: str | None = None
    modules: tuple[DdpModule, ...] = ()
    comm_ns: int | None = None
    exposed_ns: int | None = None
    trailing_ns: int | None = None
    data_ns: int | None = None
    """time that the training thread waits for data"""
    buffer_sync_ns: int | None = None
    unused_search_ns: int | None = None
    copy_out_ns: int | None = None
    launch_bound_ns: int | None = None
    """time that the accelerator is idle because the host launches kernels too late; excludes `host_read_ns`"""
    profiler_ns: int | None = None
    """time that the profiler adds to a step on an accelerator; ``None`` if no step ran without the profiler"""
    profiled_ratio: float = 1.0
    """duration of a profiled step divided by that of an unrecorded step, on CPU; 1 if they may differ by chance"""
    host_read_ns: int | None = None
    """time that the accelerator is idle because the host waited for a result from it before launching more work"""
    optimizer_ns: int | None = None
    """time of optimizer steps that is not hidden behind other computation"""
    num_micro_steps: int = 1
    """number of batches whose gradients are accumulated in a step"""
    trains_beside_ddp: bool = False
    """whether optimizers update parameters whose gradients DDP does not average; the script itself may average these
    gradients
    """
    ended_well: bool = True
    """``False`` if the job was interrupted or failed"""
    joins: bool = False
    """whether ranks may have different numbers of batches, as with DDP's ``join()``"""
    group_size: int | None = None
    """number of ranks with which a rank averages its gradients, including itself; the minimum over all ranks"""
    device: str | None = None
    """device type, such as ``"cpu"`` or ``"cuda"``"""
    is_compiled: bool = False
    """whether the model is compiled by torch.compile, which splits its graph at bucket boundaries"""
    has_cuda: bool = True
    """``False`` if the job uses an accelerator that does not support CUDA or HIP"""
    takes_cap_lists: bool = True
    """whether DDP accepts a list of caps, and the list takes effect"""
    could_take_cap_lists: bool = True
    """whether DDP accepts a list of caps, even if torch.compile makes it ineffective"""
    framework: str | None = None
    """framework that creates the DDP module; ``None`` if the script creates it"""
    cores_per_rank: float | None = None
    """number of CPU cores per rank, on the host with the fewest per rank"""
    num_threads: int | None = None
    """number of CPU threads that a rank uses for computation; the maximum over all ranks"""
    records: Mapping[int, Record] = field(default_factory=dict)
    """record of each rank, without the recorded steps"""
    link_bits_per_s: int | None = None
    """speed of the link between hosts, if given by the user"""
    whole_run: WholeRun | None = None
    tried: tuple[TriedChange, ...] = ()
    predictions: Predictions = field(default_factory=Predictions)
    shown: Mapping[str, Any] = field(default_factory=dict)
    """topic name → results of the topic for the run; see `__getitem__`"""

    def __getitem__(self, topic: Topic[Any, _OfRun]) -> _OfRun | None:
        """Return the results of a topic; ``None`` if the topic has none or comes later in the list of topics."""
        return cast("_OfRun | None", self.shown.get(topic.name))

    @property
    def shares_cores(self) -> bool:
        """Whether the ranks compute on CPU cores, which they share with communication and other work."""
        return self.backend in ON_HOST

    @property
    def is_one_group(self) -> bool:
        """Whether all ranks average their gradients together."""
        return self.group_size == self.world_size

    def module(self, index: int) -> DdpModule | None:
        """Return the module, or ``None`` if the rank was killed before it recorded the module."""
        return self.modules[index] if 0 <= index < len(self.modules) else None

    def without_profiler(self, took_ns: int) -> int:
        """Return how long computation takes in an unrecorded step if it takes `took_ns` in a profiled step."""
        return round(took_ns / self.profiled_ratio)

    def worth(self, gain_ns: int | None, predicted: Predicted | None = None) -> bool:
        """Return True if every known gain is large enough for a finding.

        `gain_ns`: measured upper bound of the gain.
        """
        gains = [gain_ns, None if predicted is None else predicted.gain_ns]
        least = min((gain for gain in gains if gain is not None), default=0)
        return least > 0 and bool(self.step_ns) and least >= _WORTH_SAYING * (self.step_ns or 0)


class ModuleView(Protocol):
    """The attributes of a DDP module that sections use."""

    @property
    def comm_hook(self) -> str | None: ...


class ReportView(Protocol):
    """The attributes of the report that sections use, in addition to the results of their own topic."""

    @property
    def modules(self) -> Sequence[ModuleView]: ...

    @property
    def usual_steps(self) -> tuple[int, ...]:
        """Numbers of the profiled steps over which tables average; empty if they average over all profiled steps."""

    @property
    def on_accelerator(self) -> bool: ...

    @property
    def findings(self) -> tuple[Finding, ...]: ...

    def trace_command(self, *options: str) -> str:
        """Return the command that records the run again, with further options."""

    def __getitem__(self, topic: Topic[Any, _OfRun]) -> _OfRun | None:
        """Return the results of a topic in the report; ``None`` if the topic has none."""


@dataclass(frozen=True, slots=True)
class TableSchema(Generic[_OfRun]):
    """One table of `Report.tables`, with a column for each declared number of its rows."""

    name: str
    """name of the table, of its attribute in `Tables`, and of its Parquet file"""
    description: str
    row: type
    rows: Callable[[_OfRun, ReportView], Iterable[Any]]
    """function that returns the table's rows from the results of the topic"""

    @property
    def columns(self) -> tuple[Declared, ...]:
        return declared_in(self.row)


@dataclass(frozen=True, slots=True)
class FileMeasures(Generic[_OfRun]):
    """Measurements of a job by another tool, read from the tool's file."""

    measured: _OfRun
    backend: str | None
    steps_ns: Mapping[int, int]
    """step number → duration of the step"""
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Topic(Generic[_OfRank, _OfRun]):
    """The measures, rules and sections for one question. ``_OfRun`` is the type of its results for a run.

    A topic either measures each rank (`of_rank`) and combines the results (`of_ranks`), or derives its results from
    the results of other topics (`of_run`). A topic with the same name as a field of the report may consist of sections
    only.
    """

    name: str
    """name of the topic; also the name of the field of `Report` with the topic's results, if there is such a field"""
    rules: tuple[Callable[[_OfRun, View], Iterator[Finding]], ...] = ()
    sections: Mapping[Chapter, Callable[[_OfRun, ReportView], Iterable[Section]]] = field(default_factory=dict)
    tables: tuple[TableSchema[_OfRun], ...] = ()
    advice: Mapping[str, str] = field(default_factory=dict)
    """rule of another topic → advice that replaces the rule's advice"""
    of_rank: Callable[[Rank, Sequence[int], Sequence[DdpModule]], _OfRank | None] | None = None
    """function that measures the steps with the given indices on one rank, given the DDP modules of the job; it returns
    ``None`` if there is nothing to measure
    """
    of_ranks: Callable[[Sequence[_OfRank]], _OfRun | None] | None = None
    """function that combines the results of `of_rank` for one or more ranks; ``None`` if `report/build.py` combines
    them
    """
    rank_type: Any = None
    """type of the result of `of_rank`; required unless the result is ``None``"""
    run_type: Any = None
    """type of the topic's results for a run, such as ``tuple[Row, ...]``; needed only for topics of other packages"""
    of_run: Callable[[View], _OfRun | None] | None = None
    """function that derives the results from the view, which contains the results of earlier topics"""
    file: str | None = None
    """name of a file type of another tool, if the topic measures such files"""
    of_file: Callable[[OtherFile], FileMeasures[_OfRun] | None] | None = None
    """function that measures a file of another tool; it returns ``None`` if another topic measures this file"""


GROUP = "ddpprof.topics"


@cache
def further_topics() -> dict[str, Topic[Any, Any]]:
    """Return the topics provided by other installed packages, by entry point name.

    Raises `DdpprofError` if a topic cannot be imported, or does not declare the types of its measures.
    """
    return {one.name: _loaded(one) for one in sorted(_entries(), key=lambda one: one.name)}


def _entries() -> Sequence[Any]:
    """Return the entry points of topics.

    ``importlib.metadata`` is imported only if needed, because the import takes 25 ms.
    """
    if not _may_have_topics():
        return ()
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP))


def _may_have_topics() -> bool:
    installed = (one for folder in sys.path for one in Path(folder).glob("*-info/entry_points.txt"))
    try:
        return any(GROUP.encode() in one.read_bytes() for one in installed)
    except OSError:
        return True


def _loaded(entry: Any) -> Topic[Any, Any]:
    package = entry.dist.name if entry.dist is not None else entry.value
    try:
        topic = entry.load()
    except Exception as error:  # the code of other packages may raise anything
        why = f"cannot be imported ({error})"
        raise DdpprofError(f"the topic {entry.name} of {package} {why}. {_WHAT_TO_DO}") from error
    if not isinstance(topic, Topic) or None in (topic.of_rank, topic.of_ranks, topic.rank_type, topic.run_type):
        lacks = "does not define of_rank, of_ranks, rank_type or run_type"
        raise DdpprofError(f"the topic {entry.name} of {package} {lacks}. {_WHAT_TO_DO}")
    return replace(topic, name=entry.name)


_WHAT_TO_DO = "Uninstall the package, or report this to its authors."


@cache
def versions() -> tuple[str, ...]:
    """Return the names and versions of packages that provide topics. Cached summaries depend on them."""
    found = [one.dist for one in _entries()]
    return tuple(sorted({f"{one.name} {one.version}" for one in found if one is not None}))


_UNITS = {"_ns": (" ms", ms), "_bytes": (" MB", megabytes)}
"""suffix of a column name → suffix of the column's heading, and function that formats the column's values"""


def number_table(title: str, rows: Sequence[Any]) -> Table:
    """Return a table of `rows`, which are instances of one dataclass, with a column for each declared number.

    Times are shown in ms and sizes in MB. The meanings of the columns are listed below the table.
    """
    kind: type = type(rows[0]) if rows else type(None)
    declared = declared_in(kind) if rows else ()
    headings = [_heading(one) for one in declared]
    columns = [Column(name, is_number=one.kind is not str) for name, one in zip(headings, declared, strict=True)]
    cells = tuple(tuple(_cell(one, one.value(row)) for one in declared) for row in rows)
    meanings = [f"{name}: {one.meaning}" for name, one in zip(headings, declared, strict=True)]
    return Table(title, tuple(columns), cells, notes(*meanings))


def _unit_of(one: Declared) -> str | None:
    return next((unit for unit in _UNITS if one.column.endswith(unit)), None)


def _heading(one: Declared) -> str:
    unit = _unit_of(one)
    if unit is None:
        return one.column.removeprefix("num_").replace("_", " ")
    return one.column.removesuffix(unit).replace("_", " ") + _UNITS[unit][0]


def _cell(one: Declared, value: Any) -> str:
    if value is None:
        return ABSENT
    unit = _unit_of(one)
    if unit is not None:
        return _UNITS[unit][1](value)
    return f"{value:.2f}" if one.kind is float else clean(str(value))


_NOISE_OF_MEASURED = 0.015
"""a gain measured by `ddpprof try` may be due to chance if it is smaller than this fraction of the step"""
_LARGE = 0.05
"""an uncertain gain is worth trying if it may be at least this fraction of the step"""
_ROUNDS_TO_NOTHING_NS = 5_000
"""gains smaller than this are rounded to 0.00 ms in the report"""


def find(view: View, topics: Iterable[Topic[Any, Any]]) -> tuple[Finding, ...]:
    """Return the findings of all topics, sorted by `in_order`."""
    used = [(topic, shown) for topic in topics if (shown := view[topic]) is not None]
    advice = {rule: words for topic, _ in used for rule, words in topic.advice.items()}
    return in_order((one for topic, shown in used for rule in topic.rules for one in rule(shown, view)), view, advice)


def in_order(findings: Iterable[Finding], view: View, advice: Mapping[str, str]) -> tuple[Finding, ...]:
    """Sort the findings: errors that break or distort training, then gains, then other findings, then noise.

    Among the gains, changes that do not affect the results of training come before changes that round gradients. Gains
    from rules that trials often did not confirm come after these two groups. Gains that only a replay could predict
    come after the other findings if the run could not be replayed, and are never the first fix. Among the noise,
    changes that are worth trying come first; of these, changes that round gradients come last.

    If several findings recommend the same change, only the first of them is returned. Such findings share an entry of
    `Predictions`. `advice`: advice that replaces a rule's own advice, by rule.
    """
    found: dict[object, Finding] = {}
    for finding in findings:
        bounded = _measured(_bounded(finding), view)
        noted = replace(
            bounded,
            advice=advice.get(finding.rule, finding.advice),
            is_noise=is_noise(bounded, view),
            is_worth_trying=is_worth_trying(bounded, view),
        )
        found.setdefault(finding if finding.predicted is None else id(finding.predicted), noted)
    beyond = [finding for finding in found.values() if not finding.is_noise]
    first = sorted((one for one in beyond if one.comes_first), key=lambda one: not one.is_correctness)
    known = [finding for finding in beyond if finding.expected_ns is not None]
    told = [finding for finding in known if not finding.is_guess]
    gains = [
        *_by_gain([finding for finding in told if finding.is_trusted and not finding.is_lossy]),
        *_by_gain([finding for finding in told if finding.is_trusted and finding.is_lossy]),
        *_by_gain([finding for finding in told if not finding.is_trusted]),
    ]
    others = [finding for finding in beyond if finding.expected_ns is None and not finding.comes_first]
    guesses = _by_gain([finding for finding in known if finding.is_guess])
    noise = sorted(
        (one for one in found.values() if one.is_noise), key=lambda one: (not one.is_worth_trying, one.is_lossy)
    )
    return (*first, *gains, *others, *guesses, *noise)


def _bounded(finding: Finding) -> Finding:
    """Return the finding with a calibrated prediction, and with its gain limited to `cause_ns`."""
    if finding.gain_ns is None:
        return finding
    gain_ns, predicted = finding.gain_ns, finding.predicted
    if predicted is not None:
        wider = calibrated(finding.rule, predicted)
        gain_ns = gain_ns if wider is predicted else max(gain_ns, wider.high_ns)
        predicted = within(wider, finding.cause_ns)
    return replace(
        finding,
        gain_ns=gain_ns if finding.cause_ns is None else min(gain_ns, finding.cause_ns),
        predicted=predicted,
    )


def _measured(finding: Finding, view: View) -> Finding:
    """Return the finding with the gain measured by `ddpprof try`, if there is one."""
    found = [one.measured for one in view.tried if (one.rule, one.code) == (finding.rule, finding.code)]
    return replace(finding, measured=found[-1]) if found else finding


def _by_gain(findings: Sequence[Finding]) -> list[Finding]:
    """Sort by gain, largest first. Findings whose intervals overlap keep the order of the rules.

    Two runs of the same job therefore recommend the same change first.
    """
    left = sorted(findings, key=lambda f: f.expected_ns or 0, reverse=True)
    ordered: list[Finding] = []
    while left:
        may_be_first = [finding for finding in left if _most_ns(finding) >= _least_ns(left[0])]
        ordered.append(min(may_be_first, key=findings.index))
        left.remove(ordered[-1])
    return ordered


def _least_ns(finding: Finding) -> int:
    """Return the minimum gain, in ns per step. If only an upper bound is known, half of that bound is assumed."""
    return (finding.expected_ns or 0) // 2 if finding.predicted is None else finding.predicted.low_ns


def _most_ns(finding: Finding) -> int:
    return (finding.expected_ns or 0) if finding.predicted is None else finding.predicted.high_ns


def is_noise(finding: Finding, view: View) -> bool:
    """Return True if the finding may be due to chance, or if its change did not help when tried.

    A measured cost is also noise if it is so small that another run might not report it.
    """
    gain_ns = finding.expected_ns
    if finding.gives_nothing or finding.is_noise or gain_ns is None:
        return finding.gives_nothing or finding.is_noise
    if finding.measured is not None and finding.measured.outcome in (Outcome.CONFIRMED, Outcome.SMALLER):
        return False
    if finding.predicted is not None:
        return may_be_chance(finding.predicted, view.step_noise_ns)
    return gain_ns < max(_ROUNDS_TO_NOTHING_NS, _NOISE_OF_MEASURED * (view.step_ns or 0))


def is_worth_trying(finding: Finding, view: View) -> bool:
    """Return True if the predicted gain is large but uncertain, and `ddpprof try` can measure it."""
    if finding.predicted is None or finding.change is None or finding.is_decided:
        return False
    is_uncertain = not finding.is_noise and may_be_chance(finding.predicted, view.step_noise_ns)
    return is_uncertain and finding.predicted.gain_ns >= max(_LARGE * (view.step_ns or 0), view.step_noise_ns or 0, 1)


def may_be_chance(predicted: Predicted, step_noise_ns: int | None) -> bool:
    """Return True if a predicted gain may be due to chance.

    This is the case if the step may become longer, or if the gain is smaller than the noise of the step and may be less
    than half as large as predicted.
    """
    gain_ns, low_ns = predicted.gain_ns, predicted.low_ns
    if gain_ns < _ROUNDS_TO_NOTHING_NS or low_ns <= 0:
        return True
    return gain_ns < (step_noise_ns or 0) and 2 * low_ns < gain_ns
