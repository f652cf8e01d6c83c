"""Find out what is wrong with the job in a run directory, for the launcher and for ``ddpprof diagnose``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ddpprof import rundir
from ddpprof.load.record import load_exits
from ddpprof.model import ProcessExit
from ddpprof.model.hang import Standstill, Verdict
from ddpprof.model.json_files import last_exit_of_job
from ddpprof.model.pulse import Ended
from ddpprof.monitor.evidence import RankEvidence, gather, record_of
from ddpprof.monitor.hang_detector import HangDetector, Overdue
from ddpprof.monitor.judge import judge, judge_exit, judge_records
from ddpprof.monitor.pulse_files import read_heads, read_verdict


@dataclass(frozen=True, slots=True)
class Examination:
    """Result of `examine`."""

    verdict: Verdict | None = None
    """``None`` if nothing is wrong"""
    overdue: Overdue | None = None
    """step that no rank has completed in time, if the job is running"""
    standstill: Standstill | None = None
    """why the overdue step is not a hang"""
    evidence: tuple[RankEvidence, ...] = ()
    """evidence that was used to find out whether the job is still running"""
    is_over: bool = False
    was_interrupted: bool = False
    hung_at_last: bool = False
    """whether the verdict is about the hang that ended the job"""


def examine(directory: Path, detector: HangDetector | None = None, missed_s: float = 0.0) -> Examination:
    """Examine a job that is running, or that has ended or should have ended. Raises ``OSError``.

    `detector`: the launcher's detector, which has watched the job from the beginning. If it is given, the job is
    assumed to be running. `missed_s`: see `HangDetector.look`.
    """
    evidence: tuple[RankEvidence, ...] = ()
    if detector is None:
        evidence = gather(directory)
        ended = _examine_end(directory, evidence)
        if ended is not None:
            return ended
        detector = HangDetector(directory)
    overdue = detector.look(missed_s)
    if overdue is None:
        lingers = judge_exit(gather(directory, records=False)) if _all_have_ended(directory) else None
        return Examination(lingers, evidence=evidence)
    found = detector.diagnose(overdue)
    if isinstance(found, Verdict):
        return Examination(found, overdue, evidence=evidence)
    return Examination(None, overdue, found, evidence)


def _examine_end(directory: Path, evidence: tuple[RankEvidence, ...]) -> Examination | None:
    """Return the result for a job that has ended; ``None`` if it is running."""
    if not evidence:  # it may have failed before its ranks had pulses
        records = (record_of(directory, rank) for rank in rundir.ranks_in(directory))
        early = judge_records([one for one in records if one is not None], load_exits(directory))
        return Examination(early, is_over=True)
    job = last_exit_of_job(load_exits(directory))
    was_interrupted = job is not None and job.interrupted
    is_over = all(one.has_ended or one.is_dead or (was_interrupted and _is_left(one, job)) for one in evidence)
    some_died = any(one.is_dead for one in evidence)
    hang = hung_at_last(directory) if is_over or some_died else None
    if hang is not None:
        return Examination(hang, evidence=evidence, is_over=is_over, hung_at_last=True)
    if some_died and not was_interrupted:
        return Examination(judge(evidence), evidence=evidence, is_over=is_over)
    lingers = judge_exit(evidence)
    if lingers is None and not is_over:
        return None
    return Examination(lingers, evidence=evidence, is_over=is_over, was_interrupted=was_interrupted)


def hung_at_last(directory: Path) -> Verdict | None:
    """Return the verdict on the hang that ended the job; ``None`` if the job did not end in a hang."""
    verdict, job = read_verdict(directory), last_exit_of_job(load_exits(directory))
    ended_well = job is None or (job.exit_code == 0 and not job.interrupted)
    if ended_well and _all_have_ended(directory):
        return None  # the job continued after the hang
    return None if verdict is None or verdict.resumed_unix_ns is not None else verdict


def _all_have_ended(directory: Path) -> bool:
    """Return True if every rank with a pulse has finished training."""
    return all(head.state.ended == Ended.FINISHED for head in read_heads(directory, 1))


def _is_left(rank: RankEvidence, job: ProcessExit | None) -> bool:
    """Return True if the launcher on the rank's host has ended and the rank's process no longer exists."""
    return job is not None and job.host in (None, rank.identity.host) and rank.process is None
