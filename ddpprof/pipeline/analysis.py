"""Analyze a run: select its ranks, summarize them, and build the report."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ddpprof.errors import DdpprofError
from ddpprof.files import Location, location
from ddpprof.load.file_bytes import DEFAULT_LIMITS, Limits
from ddpprof.load.rank import RankFiles, record_or_none
from ddpprof.load.run import complete, find_parts
from ddpprof.model import DdpModule, RecordedStep, StepMode
from ddpprof.pipeline.entry import (
    Cache,
    Progress,
    RankTask,
    Watch,
    cache_of,
    num_bytes,
    read_about,
    read_drawing,
    read_here,
    read_summary,
)
from ddpprof.pipeline.workers import processes_for, read_in_processes
from ddpprof.predict import BucketCaps, Setting
from ddpprof.ranks_and_steps import Numbers
from ddpprof.report import Report
from ddpprof.report.build import Reduced, reduce_summary
from ddpprof.report.run_profile import NO_BENCHES, KnownRun, profile_run
from ddpprof.report.topics import RankSummary, RunSummary, merge_summaries, of_each
from ddpprof.report.whatif import Asked, WhatIf, build_whatif, ranks_to_replay
from ddpprof.topics.ranks.across import RecordedSteps
from ddpprof.topics.ranks.own_time import StepProgress, measure_recorded_progress
from ddpprof.topics.ranks.stragglers import find_stragglers
from ddpprof.topics.steps.timeline import Drawing, DrawnRank, Timeline, draw_timeline, file_name
from ddpprof.topics.steps.view import STEPS
from ddpprof.words import ranks_in_words


@dataclass(frozen=True, slots=True)
class Selection:
    ranks: tuple[RankFiles, ...]
    left_out: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    """messages for the report about ranks that were not read"""


def select_ranks(files: Sequence[RankFiles], ranks: Numbers | None, sample: int | None) -> Selection:
    """Select the given ranks (all ranks if ``None``), but at most `sample`.

    Raises `DdpprofError` if no rank is left.
    """
    if ranks is not None and any(one.rank is None for one in files):
        raise DdpprofError("--only-ranks selects ranks of a run or a folder, but this is a single trace.")
    wanted = [one for one in files if ranks is None or one.rank in ranks]
    there = Numbers.of(one.rank for one in files if one.rank is not None)
    known = f"rank{'s' if there.are_several else ''} {there}"
    if files and not wanted:
        raise DdpprofError(f"no such rank: the run has {known}.")
    lacking = ranks.without(one.rank for one in files if one.rank is not None) if ranks and there else Numbers(())
    notes = (f"{_ranks(lacking)} requested, but the run has {known}",) if lacking else ()
    late: list[int] = []
    if sample is not None and sample < len(wanted):
        late = _suspects(wanted)[: max(1, sample // 2)]
        wanted = _sampled(wanted, late, sample)
    if len(wanted) == len(files):
        return Selection(tuple(files), notes=notes)
    how = "" if sample is None else f"; {_named(late)} in the light recording" if late else ", evenly spaced"
    left_out = frozenset(one.rank for one in files if one not in wanted and one.rank is not None)
    note = f"only {len(wanted)} of {len(files)} ranks {'was' if len(wanted) == 1 else 'were'} read, as requested{how}"
    return Selection(tuple(wanted), left_out, (note, *notes))


def _ranks(numbers: Numbers) -> str:
    return f"ranks {numbers} were" if numbers.are_several else f"rank {numbers} was"


def _named(late: Sequence[int]) -> str:
    return f"{ranks_in_words(late)} {'are' if len(late) > 1 else 'is'} late"


def _sampled(files: Sequence[RankFiles], late: Sequence[int], sample: int) -> list[RankFiles]:
    """Return the late ranks, and evenly spaced other ranks, including the first and the last rank."""
    others = [one for one in files if one.rank not in late]
    number = sample - len(late)
    last = len(others) - 1
    even = {round(place * last / max(1, number - 1)) for place in range(number)}
    chosen = {*late, *(others[place].rank for place in even)}
    return [one for one in files if one.rank in chosen]


def _suspects(files: Iterable[RankFiles]) -> list[int]:
    """Return the ranks that delay other ranks according to light recording, longest delay first."""
    progress = {one.rank: _progress(one) for one in files if one.rank is not None}
    found = find_stragglers({rank: rows for rank, rows in progress.items() if rows})
    return [one.rank for one in found.stragglers] if found is not None else []


def _progress(files: RankFiles) -> list[StepProgress]:
    """Return the progress of the rank in lightly recorded steps. On an accelerator, host times are only approximate."""
    record = record_or_none(files)
    steps = [step for step in record.steps if step.mode is StepMode.LIGHT] if record is not None else []
    return [row for step in steps if (row := measure_recorded_progress(step)) is not None]


_MERGED_AT_ONCE = 32
"""maximum number of summaries that are merged at a time, because summaries are large before they are merged"""


@dataclass(frozen=True, slots=True)
class AnalysisOptions:
    """Options that select the data to read, and the processes that read it."""

    ranks: Numbers | None = None
    """ranks to read; ``None`` for all"""
    steps: Container[int] | None = None
    sample: int | None = None
    """maximum number of ranks to read; a sample of this size is read from a larger run"""
    use_cache: bool = True
    jobs: int | None = None
    """number of processes that read; ``None`` for as many as CPU cores and memory allow"""
    scheduler: str | None = None
    """address of the Dask scheduler whose workers read the ranks; ``None`` to read them in processes on this machine"""
    limits: Limits = DEFAULT_LIMITS
    further_parts: tuple[Location, ...] = ()
    """further parts of the run, if its hosts do not share a file system"""
    link_bits_per_s: int | None = None
    """speed of the link between hosts, as given by the user"""


ALL = AnalysisOptions()


@dataclass(frozen=True, slots=True)
class TracedRank:
    """A rank with a trace: its summary, the data to draw its timeline, and the trace files in time order."""

    summary: RankSummary
    about: DrawnRank
    files: tuple[Location, ...]


@dataclass(frozen=True, slots=True)
class Analysis:
    """The analysis of a run. Use it only while the context of `analysed` is open, because it reads from disk."""

    _reduced: Reduced
    _cache: Cache
    _ranks: tuple[RankFiles, ...]
    modules: tuple[DdpModule, ...]

    @property
    def report(self) -> Report:
        return self._reduced.report

    def to_replay(self, also: Collection[int] = ()) -> KnownRun:
        """Return the input for predictions: a selection of the ranks that includes the ranks in `also`."""
        late = self.report.across.stragglers if self.report.across is not None else None
        ranks = [one.rank for one in self.report.ranks_together]
        chosen = {*ranks_to_replay(ranks, late.stragglers if late is not None else ()), *also}
        recorded = _recorded_by(self._ranks, None)(sorted(chosen & {one.rank for one in self._ranks} - {None}))
        passes = {rank: found for rank, found in self._reduced.passes.items() if rank in chosen}
        return KnownRun(self.report, self.modules, recorded, passes)

    def drawings(self, ranks: Container[int] | None = None) -> Iterator[Drawing]:
        """Yield the drawings of the profiled steps in the report, for all ranks or only for `ranks`."""
        for one in self._ranks:
            if ranks is None or one.rank is None or one.rank in ranks:
                drawing = read_drawing(self._cache.path(one))
                if drawing is not None and (ranks is None or drawing.about.rank in ranks):
                    yield drawing

    def traced_ranks(self) -> Iterator[TracedRank]:
        """Yield the ranks that have a trace."""
        for one in self._ranks:
            drawing = read_drawing(self._cache.path(one))
            if drawing is not None:
                (summary,) = read_summary(self._cache.path(one)).ranks
                by_name = {file_name(path): path for path in one.traces}
                yield TracedRank(summary, drawing.about, tuple(by_name[name] for name in drawing.about.files))

    def timeline(self, steps: Container[int] | None = None, ranks: Container[int] | None = None) -> Timeline:
        """Return the timeline of the profiled steps in the report, or only of the given steps and ranks."""
        return draw_timeline(list(self.drawings(ranks)), self.report, self._reduced.buckets, steps)


@contextmanager
def analysed(path: Location, choice: AnalysisOptions = ALL, watch: Watch = lambda _step: None) -> Iterator[Analysis]:
    """Analyze a run. `watch`: called with the progress. Raises `NotARun`, `BadTrace` and `DdpprofError`."""
    files = find_parts([path, *choice.further_parts], choice.limits)
    selection = select_ranks(files.ranks, choice.ranks, choice.sample)
    modules = _modules(files.ranks)
    with cache_of(path, modules, choice.steps, keep=choice.use_cache) as cache:
        with _interruption_told(selection.ranks, cache):
            summary, failed = _map(selection.ranks, modules, choice, cache, watch)
        ranks = tuple(one for one in selection.ranks if one.rank not in failed)
        missing = [text for _, texts in sorted({**summary.missing, **failed}.items()) for text in texts]
        run = complete(files, summary.ranks, missing, selection.left_out)
        run = replace(run, link_bits_per_s=choice.link_bits_per_s)
        run = replace(run, missing=(*selection.notes, *_on_steps(choice.steps, summary, ranks, cache), *run.missing))
        reduced = reduce_summary(run, modules, summary, _recorded_by(ranks, choice.steps))
        yield Analysis(reduced, cache, ranks, modules)


@contextmanager
def _interruption_told(ranks: Sequence[RankFiles], cache: Cache) -> Iterator[None]:
    """Add to a ``KeyboardInterrupt`` a message about the ranks that have been read."""
    before = {one.rank: cache.written_ns(one) for one in ranks}
    try:
        yield
    except KeyboardInterrupt as interrupt:
        num_new = sum(cache.written_ns(one) not in (None, before[one.rank]) for one in ranks)
        if not cache.is_kept or len(ranks) < 2 or not num_new:
            raise
        raise KeyboardInterrupt(
            f"interrupted. {num_new} of {len(ranks)} ranks were newly read, and their results are kept. Run the same "
            "command again to read the remaining ranks."
        ) from interrupt


def _map(
    ranks: Sequence[RankFiles], modules: tuple[DdpModule, ...], choice: AnalysisOptions, cache: Cache, watch: Watch
) -> tuple[RunSummary, dict[int, tuple[str, ...]]]:
    """Read the ranks that have no cache entry. Return the merged summary of all ranks, and errors by rank."""
    known: list[RankFiles] = []
    tasks = []
    for one in ranks:
        if cache.holds(one):
            known.append(one)
        else:
            tasks.append(RankTask(one, modules, choice.steps, choice.limits))
    cache.tidy()
    if choice.scheduler is not None and tasks:
        from ddpprof.pipeline.workers import run_on_cluster

        made, failed = run_on_cluster(tasks, cache, choice.scheduler, watch)
    else:
        made, failed = None, _read(tasks, cache, choice.jobs, watch)
    if made is None:
        known += [task.files for index, task in enumerate(tasks) if index not in failed]
    if failed and len(failed) == len(ranks):
        raise DdpprofError(f"no rank could be read: {failed[0]}.")
    without = {(rank := tasks[index].files.rank or 0): (f"rank {rank}: {why}",) for index, why in failed.items()}
    return _merged(known, cache, made or RunSummary()), {**without}


def _read(tasks: Sequence[RankTask], cache: Cache, jobs: int | None, watch: Watch) -> dict[int, str]:
    """Write a cache entry for each rank. Return the errors of failed tasks, by index.

    `jobs`: number of processes; ``None`` for as many as possible.
    """
    sizes = [num_bytes(task.files) for task in tasks]
    num_processes, per_rank = processes_for(tasks, sizes, jobs)
    progress = Progress(watch, [task.files for task in tasks], sizes)
    if num_processes < 2:
        return read_here(tasks, cache, per_rank, progress)
    return read_in_processes(tasks, cache, num_processes, per_rank, progress)


def _merged(ranks: Sequence[RankFiles], cache: Cache, merged: RunSummary) -> RunSummary:
    for first in range(0, len(ranks), _MERGED_AT_ONCE):
        some = [read_summary(cache.path(one)) for one in ranks[first : first + _MERGED_AT_ONCE]]
        merged = merge_summaries([merged, *some])
    return merged


def _modules(ranks: Sequence[RankFiles]) -> tuple[DdpModule, ...]:
    """Return the DDP modules of the first rank that recorded them; they are the same on every rank."""
    records = map(record_or_none, ranks)
    return next((record.modules for record in records if record is not None and record.modules), ())


def _recorded_by(ranks: Sequence[RankFiles], steps: Container[int] | None) -> RecordedSteps:
    by_number = {one.rank: one for one in ranks}

    def recorded(numbers: Sequence[int]) -> Mapping[int, Sequence[RecordedStep]]:
        records = {number: record_or_none(by_number[number]) for number in numbers}
        return {
            number: [step for step in record.steps_to_replay if steps is None or step.number in steps]
            for number, record in records.items()
            if record is not None
        }

    return recorded


def _on_steps(
    steps: Container[int] | None, summary: RunSummary, ranks: Sequence[RankFiles], cache: Cache
) -> tuple[str, ...]:
    """Return messages about the selected steps. Raises `DdpprofError` if no rank has any selected step."""
    if steps is None:
        return ()
    reports = of_each(STEPS, summary.ranks).values()
    numbers = {step.step for one in reports for step in one.steps}
    numbers |= {step.step for one in reports for step in one.light_steps}
    if not numbers:
        there = Numbers.of(number for one in ranks for number in read_about(cache.path(one)).steps)
        known = f"step{'s' if there.are_several else ''} {there}" if there else "no steps"
        raise DdpprofError(f"no such step: the run has {known}.")
    return (f"only {len(numbers)} step{'s were' if len(numbers) > 1 else ' was'} measured, as requested",)


def whatif(path: str | Location, bucket_cap_mb: Sequence[float] = ()) -> WhatIf:
    """Predict the step time of a run with each of these bucket caps. By default, a series of caps is used.

    Raises `DdpprofError` if the run does not have enough data. ``ddpprof whatif`` has more options than this function.
    """
    with analysed(location(path) if isinstance(path, str) else path) as analysis:
        profiled = profile_run(analysis.to_replay(), NO_BENCHES)
        asked = Asked(Setting(), "", tuple(map(BucketCaps, bucket_cap_mb)))
        return build_whatif(analysis.report.job, profiled, asked, analysis.report.step_ns)
