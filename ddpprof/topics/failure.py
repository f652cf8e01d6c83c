"""Find which rank caused a job to fail, and which ranks failed as a consequence.

A rank records how it ended, for example ``"finished"`` or ``"failed: …"``. A killed rank cannot do so, but its parent
process may have recorded its exit code. The cause is the rank that failed first with an error of its own. Ranks that
lost a peer, timed out waiting for a peer, or ended without a message are consequences.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from ddpprof.engine.topic import ReportView, Topic
from ddpprof.layout import Line, Section, clean, count
from ddpprof.model import DdpModule, ProcessExit, Record
from ddpprof.model.backends import backend_of, refusal_of_shared_gpu
from ddpprof.model.hang import Fault, Verdict
from ddpprof.model.json_files import last_exit_of_job, oom_kills_seen
from ddpprof.model.record import error_in
from ddpprof.topics.error_words import CRASHES, NOT_KNOWN, advice_on_error, killer_sentence, shortened, signal_name
from ddpprof.topics.hang_words import verdict_in_short, verdict_lines
from ddpprof.topics.hangs import CRASH_AT_EXIT, SAME_COLLECTIVES
from ddpprof.topics.whole_run import WHOLE_RUN
from ddpprof.words import listed, ranks_in_words

_OF_A_LOST_PEER = re.compile(
    r"closed by peer|Connection (?:reset|refused|closed)|Broken pipe|NCCL|DistBackendError|DistNetworkError|"
    r"timed out|Timed out|SignalException"
)
"""pattern for errors on ranks that failed because another rank ended"""
_OF_A_LOST_CONNECTION = re.compile(r"closed by peer|Connection reset|Broken pipe")
_OF_A_MISSING_PEER = re.compile(r"Timed out waiting \d+ ?ms for (?:recv|send)|Watchdog caught collective|DDP.*timeout")
"""pattern for errors on ranks that failed because another rank did not take part in a collective"""


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How one rank ended."""

    rank: int
    host: str
    ended: str | None
    """``"finished"``, ``"interrupted"`` or ``"failed: …"``; ``None`` if the process could not record how it ended"""
    is_consequence: bool
    """True if the rank failed because it lost the connection to another rank"""
    num_steps: int | None = None
    """number of steps that the rank finished"""
    unix_ns: int | None = None
    """time at which the rank ended or, if that was not recorded, at which its end was noticed or its last step ended"""
    exit_code: int | None = None
    """exit code as seen by the parent process, or -N if signal N ended the process"""
    pid: int | None = None
    collective: str | None = None
    """collective that the script was calling when the rank ended, if any"""
    place: str | None = None
    """line of the user's code at which the rank ended, if known"""
    num_oom_kills: int | None = None
    """number of processes on the rank's host that the kernel ended because memory was full; see `ProcessExit`"""
    backend: str | None = None
    """backend of the rank's process group, if known"""
    parameters: tuple[str, ...] = ()
    """names of the parameters listed in DDP's error message, if known"""
    in_checkpoint: bool = False
    """True if the error was raised in the backward pass of a ``torch.utils.checkpoint`` with ``use_reentrant=True``"""
    searches: bool = False
    """True if DDP was constructed with ``find_unused_parameters=True``"""

    @property
    def error(self) -> str | None:
        """The error message with which the rank ended."""
        return error_in(self.ended)

    @property
    def failed(self) -> bool:
        """Whether the rank ended with an error of its own, or with a nonzero exit code as after ``sys.exit(5)``."""
        if self.error is not None or self.ended == "interrupted":
            return self.error is not None
        return self.exit_code not in (None, 0, -signal.SIGTERM)  # launchers send SIGTERM to the remaining ranks

    @property
    def died_at_exit(self) -> bool:
        """Whether the process crashed after the end of the script."""
        return self.ended == "finished" and -(self.exit_code or 0) in CRASHES

    @property
    def lost_a_connection(self) -> bool:
        """Whether the rank's error says that its connection to another rank was lost."""
        return self.ended is not None and _OF_A_LOST_CONNECTION.search(self.ended) is not None

    @property
    def waited_for_a_peer(self) -> bool:
        """Whether the rank's error says that another rank did not take part in a collective in time."""
        return self.ended is not None and _OF_A_MISSING_PEER.search(self.ended) is not None


@dataclass(frozen=True, slots=True)
class Failure:
    """A job that failed."""

    first: RankEnd | None
    """rank that failed first; ``None`` if unknown because every failed rank reports that it lost another rank"""
    others: tuple[RankEnd, ...]
    """other failed ranks, in order of time, followed by ranks that ended without an error message"""
    finished: tuple[RankEnd, ...]
    """ranks that ended successfully"""


def is_of_a_lost_peer(error: str) -> bool:
    """Return whether this error may be a consequence of another rank's failure."""
    return _OF_A_LOST_PEER.search(error) is not None and refusal_of_shared_gpu(error) is None


def rank_end(record: Record, modules: Sequence[DdpModule] | None = None) -> RankEnd:
    """Return what the rank recorded about its end. `modules`: used instead of the DDP modules in `record`, if given."""
    error = error_in(record.ended)
    lost = error is not None and is_of_a_lost_peer(error)
    when = record.ended_unix_ns if record.ended is not None else record.last_step_unix_ns
    end = RankEnd(record.rank, record.host, record.ended, lost, record.num_steps, when, pid=record.pid)
    modules = record.modules if modules is None else modules
    searches = [bool(module.settings.get("find_unused_parameters")) for module in modules]
    return replace(
        end,
        collective=record.ended_in,
        place=record.ended_place,
        backend=record.backend,
        parameters=record.parameters_in_error(modules),
        in_checkpoint=record.ended_in_checkpoint,
        searches=searches == [True],
    )


def with_exits(ends: Sequence[RankEnd], exits: Sequence[ProcessExit]) -> tuple[RankEnd, ...]:
    """Add the exit codes that parent processes recorded to what is known of how the ranks ended."""

    def seen(end: RankEnd) -> RankEnd:
        found = next((one for one in exits if one.exit_code and _is_of(one, end)), None)
        end = replace(end, num_oom_kills=oom_kills_seen(found, end.host, 0, exits))
        if found is None:
            return end
        when = end.unix_ns if end.ended is not None or found.unix_ns is None else found.unix_ns
        return replace(end, exit_code=found.exit_code, unix_ns=when)

    return tuple(map(seen, ends))


def find_failure(ends: Sequence[RankEnd], exits: Sequence[ProcessExit]) -> Failure | None:
    """Return how the job failed; ``None`` if it did not fail, was interrupted, or may still be running."""
    job = last_exit_of_job(exits)
    if job is not None and (job.interrupted or job.exit_code == 0):
        return None  # the failure was caught, or torchrun has restarted the job
    if any(end.ended == "interrupted" for end in ends):
        return None
    seen = (*with_exits(ends, exits), *_known_by_exit_alone(ends, exits))
    failed = sorted((end for end in seen if end.failed), key=_when)
    silent = [end for end in seen if end.ended is None and not end.failed]
    if not failed and not (silent and job is not None):
        return None
    finished = tuple(end for end in seen if end.ended in ("finished", "stopped") and not end.failed)
    own = [end for end in failed if not end.is_consequence]
    first = own[0] if own else None if finished else _only_one_that_was_lost(failed, silent)
    return Failure(first, tuple(end for end in (*failed, *silent) if end is not first), finished)


def _is_of(one: ProcessExit, end: RankEnd) -> bool:
    """Return whether the exit belongs to the rank's process in this attempt, rather than in an earlier attempt.

    If only the rank is known, the process must have exited no earlier than the recorded end or last step of the rank.
    """
    if (one.host, one.pid) == (end.host, end.pid):
        return True
    return one.rank == end.rank and (one.unix_ns is None or end.unix_ns is None or one.unix_ns >= end.unix_ns)


def _known_by_exit_alone(ends: Sequence[RankEnd], exits: Sequence[ProcessExit]) -> list[RankEnd]:
    """Return a `RankEnd` for each rank that has an exit code but no readable record."""
    known = {end.rank for end in ends}
    unknown = {one.rank: one for one in exits if one.rank is not None and one.rank not in known and one.exit_code}
    return [
        RankEnd(
            rank=rank,
            host=one.host or "",
            ended=one.error,
            is_consequence=one.error is not None and is_of_a_lost_peer(one.error),
            place=one.place,
            unix_ns=one.unix_ns,
            exit_code=one.exit_code,
            pid=one.pid,
            num_oom_kills=one.num_oom_kills,
        )
        for rank, one in sorted(unknown.items())
    ]


def _only_one_that_was_lost(failed: Sequence[RankEnd], silent: Sequence[RankEnd]) -> RankEnd | None:
    """Return the only rank that ended silently, if all failed ranks lost a connection; otherwise ``None``."""
    unseen = [end for end in silent if end.exit_code is None]
    if len(unseen) == len(silent) == 1 and failed and all(end.lost_a_connection for end in failed):
        return unseen[0]
    return None


def _when(end: RankEnd) -> int:
    return end.unix_ns if end.unix_ns is not None else 1 << 62


_MOST_LISTED = 8
"""maximum number of ranks or parameters that a sentence names"""


def failure_lines(failure: Failure, report: ReportView) -> Iterable[Section]:
    for text in _sentences(failure, {one.rule for one in report.findings}, _diagnosis(failure, report)):
        yield Line(text, is_warning=True)


def hang_line(report: ReportView) -> Iterator[Section]:
    """Yield a line that says where and why the job hung, for the first screen."""
    hang = _hang(report)
    if hang is not None and (report[FAILURE] is None or (hang.resumed_unix_ns is None and not hang.has_failed)):
        goes_on = "" if hang.resumed_unix_ns is None else " The job continued later."
        yield Line(f"{verdict_in_short(hang, is_over=True)}{goes_on} More: --section whole-run", is_warning=True)


def has_failed_or_hung(report: ReportView) -> bool:
    """Return True if the job failed or hung, and did not continue afterwards."""
    hang = _hang(report)
    return report[FAILURE] is not None or (hang is not None and hang.resumed_unix_ns is None)


def _hang(report: ReportView) -> Verdict | None:
    run = report[WHOLE_RUN]
    return None if run is None else run.hang


def _diagnosis(failure: Failure, report: ReportView) -> Verdict | None:
    """Return the launcher's verdict on the failed job, unless it is about the error that `failure` contains."""
    hang, first = _hang(report), failure.first
    if hang is None or not hang.is_of_failed_job:
        return None
    is_known = hang.fault is Fault.DIED and first is not None and first.rank == hang.rank and first.error is not None
    return None if is_known else hang


def failure_sentence(failure: Failure, report: ReportView) -> str:
    """Return the first sentence of the verdict on a failed job."""
    diagnosis = _diagnosis(failure, report)
    return _first_sentence(failure) if diagnosis is None else verdict_in_short(diagnosis, is_over=True)


def _first_sentence(failure: Failure) -> str:
    named = _named(failure)
    if named is None:
        return "The job failed, and no rank reported why."
    return f"The job failed: rank {named.rank} {_how(named)}."


def _named(failure: Failure) -> RankEnd | None:
    """Return the rank to report first: the cause if known, otherwise a rank that recorded its failure."""
    return failure.first or next((end for end in failure.others if end.failed), None)


def _sentences(failure: Failure, found: Set[str], diagnosis: Verdict | None) -> Iterator[str]:
    """Yield the sentences of the verdict. `found`: names of the rules that reported findings."""
    if diagnosis is not None:
        yield from verdict_lines(diagnosis, is_over=True)
        rest = [end for end in (failure.first, *failure.others) if end is not None and end.rank != diagnosis.rank]
    else:
        rest = [end for end in failure.others if end is not _named(failure)]
        yield from _on_the_first(failure, rest)
    lost, silent = [end for end in rest if end.failed], [end for end in rest if not end.failed]
    then = "then " if failure.first is not None else "also "
    for end in lost[:_MOST_LISTED]:
        yield f"Rank {end.rank} {then}{_how(end)}."
    if len(lost) > _MOST_LISTED:
        yield f"{len(lost) - _MOST_LISTED} more ranks failed in the same way."
    ended = [end for end in silent if end.exit_code == -signal.SIGTERM]
    silent = [end for end in silent if end not in ended]
    if ended:
        yield f"{_ranks(ended)} {'was' if len(ended) == 1 else 'were'} still running{_progress(ended)}, and {_ENDED}."
    if silent:
        they_were = "it was" if len(silent) == 1 else "they were"
        yield f"{_ranks(silent)} ended without a message{_progress(silent)}: {they_were} {_WITHOUT_A_WORD}."
    if failure.first is None and failure.finished:
        yield (
            f"{_ranks(failure.finished)} had finished{_progress(failure.finished)}."
            f"{'' if 'skipped-backward' in found else _UNEVEN}"
        )
    elif diagnosis is None and failure.first is None and any(end.waited_for_a_peer for end in failure.others):
        yield (
            "A collective times out when another rank does not take part in it: check what the other ranks were doing."
        )


def _on_the_first(failure: Failure, rest: Sequence[RankEnd]) -> Iterator[str]:
    """Yield the sentences about the rank that is reported first. `rest`: all other ranks."""
    yield _first_sentence(failure)
    first, named = failure.first, _named(failure)
    if named is not None and named.error is not None and named.place is not None:
        yield f"Rank {named.rank} was at {clean(named.place)}."
    if named is not None and (advice := _advice(named)) is not None:
        yield advice
    if named is not None:
        yield from _on_a_crash(named, rest)
    killer = None if first is None else killer_sentence(first.error, first.exit_code, first.num_oom_kills)
    if killer is not None:
        yield killer
    elif first is not None and first.ended is None and first.exit_code is None:
        yield f"Rank {first.rank} may have been killed.{f' {NOT_KNOWN}' if first.num_oom_kills is None else ''}"


def _on_a_crash(named: RankEnd, others: Sequence[RankEnd]) -> Iterator[str]:
    if named.died_at_exit:
        yield CRASH_AT_EXIT
    if _may_be_of_gloo(named):
        for end in (named, *(end for end in others if end.place is not None)):
            inside = f"in {end.collective}" if end.collective else ""
            at = f"at {clean(end.place)}" if end.place else ""
            yield f"Rank {end.rank} was {', '.join(filter(None, (inside, at)))}."
        yield f"Gloo aborts a process in this way if it receives more data than expected. {SAME_COLLECTIVES}"


def _advice(end: RankEnd) -> str | None:
    return None if end.error is None else _advice_on_ddp_error(end) or advice_on_error(end.error)


def _advice_on_ddp_error(end: RankEnd) -> str | None:
    """Return advice on the parameters that the error message names; ``None`` if it names no parameters."""
    said = end.error or ""
    if not end.parameters:
        return None
    if "our training graph has changed" in said:
        named = _parameters(end, "did not contribute to the loss in this step, but did in the first step")
        return f"{named}, which static_graph=True does not allow. Pass find_unused_parameters=True instead."
    if "Expected to have finished reduction" in said:
        named = _parameters(end, "did not contribute to the loss in the previous step")
        them = "it" if len(end.parameters) == 1 else "them"
        return (
            f"{named}: use {them} in every forward pass. Or remove {them}, freeze {them} before wrapping "
            "(parameter.requires_grad_(False)), or pass find_unused_parameters=True to DistributedDataParallel."
        )
    if "Expected to mark a variable ready only once" in said:
        return f"{_parameters(end, 'got a gradient twice in one backward pass')}{_cause_of_second_gradient(end)}"
    return None


def _parameters(end: RankEnd, what: str) -> str:
    number = len(end.parameters)
    who = "1 parameter" if number == 1 else f"{number} parameters"
    return f"{who} ({listed(end.parameters, _MOST_LISTED)}) {what}"


def _cause_of_second_gradient(end: RankEnd) -> str:
    if end.in_checkpoint:
        return (
            ", because checkpoint(…, use_reentrant=True) runs its own backward pass. Pass use_reentrant=False to "
            "torch.utils.checkpoint.checkpoint."
        )
    if end.searches:
        return (
            ". With find_unused_parameters=True, DDP considers a parameter unused if the output of forward() does "
            "not depend on it. Either use the parameter only inside the wrapped module's forward() (not, for example, "
            "in the loss), or remove find_unused_parameters=True."
        )
    return (
        ". Use every parameter within one forward() and one backward() per step: call backward() on the sum of the "
        "losses. Or pass static_graph=True if every step uses the same parameters in the same way."
    )


def _may_be_of_gloo(end: RankEnd) -> bool:
    """Return whether gloo may have aborted the process, which then ended with SIGABRT during a collective."""
    return end.exit_code == -signal.SIGABRT and backend_of(end.backend).aborts and end.collective is not None


_UNEVEN = (
    " If ranks have different numbers of batches, ranks with more batches wait for the other ranks: shard the data "
    "evenly."
)
_ENDED = "got SIGTERM, which launchers send to all ranks when a rank fails"
_WITHOUT_A_WORD = (
    "killed, for example by SIGKILL or the out-of-memory killer; ended by the launcher, which ends all ranks when "
    "a rank fails; or ended by os._exit()"
)


def _how(end: RankEnd) -> str:
    if end.error is not None:
        error = shortened(end.error.removeprefix("failed: "))
        return f"failed{_after(end)}: {clean(error, most=300).rstrip('.')}"
    code = end.exit_code or 0
    if code == -signal.SIGKILL:
        return f"was killed by SIGKILL{_after(end)}"
    if code < 0:
        died = f"died with {signal_name(-code)}"
        return f"finished its script{_after(end)}, and then {died}" if end.died_at_exit else f"{died}{_after(end)}"
    if code > 0:
        return f"ended with exit code {code}{_after(end)}"
    return f"ended without a message{_after(end)}"


def _after(end: RankEnd) -> str:
    return "" if end.num_steps is None else f" after {count(end.num_steps, 'step')}"


def _progress(ends: Sequence[RankEnd]) -> str:
    known = sorted({end.num_steps for end in ends if end.num_steps is not None})
    if not known or any(end.num_steps is None for end in ends):
        return ""
    return f" after {count(known[0], 'step')}" if len(known) == 1 else f" after {known[0]} to {known[-1]} steps"


def _ranks(ends: Sequence[RankEnd]) -> str:
    return ranks_in_words([end.rank for end in ends]).capitalize()


FAILURE: Topic[Any, Failure] = Topic("failure", sections={"ending": failure_lines})
