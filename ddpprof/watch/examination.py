"""What is wrong with the job in a run directory? The launcher's watch and ``ddpprof diagnose`` both ask here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddpprof import rundir
from ddpprof.load.exits import load_exits
from ddpprof.model import ProcessExit
from ddpprof.model.hang import Standstill, Verdict
from ddpprof.model.process_exit import last_exit_of_job
from ddpprof.model.pulse import Ended
from ddpprof.watch.evidence import RankEvidence, gather, record_of
from ddpprof.watch.hang_detector import HangDetector, Overdue
from ddpprof.watch.judge import judge, judge_exit, judge_records
from ddpprof.watch.pulse_files import read_heads, read_verdict


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found about a job."""

    verdict: Verdict | None = None
    """what is wrong; ``None`` if nothing is"""
    overdue: Overdue | None = None
    """step that no rank ends, if the job runs"""
    standstill: Standstill | None = None
    """why that is no hang"""
    is_over: bool = False
    was_interrupted: bool = False
    hung_at_last: bool = False
    """whether the verdict is about the hang in which the job ended"""


def examine_running(directory: Path, detector: HangDetector, missed_s: float = 0.0) -> Examination:
    """Look at a job that runs, or whose processes do not exit. `missed_s`: see `HangDetector.look`."""
    overdue = detector.look(missed_s)
    if overdue is None:
        return Examination(judge_exit(gather(directory, records=False)) if all_have_ended(directory) else None)
    found = detector.diagnose(overdue)
    if isinstance(found, Verdict):
        return Examination(found, overdue)
    return Examination(None, overdue, found)


def examine(directory: Path, evidence: Sequence[RankEvidence]) -> Examination:
    """Look at a job that runs or has ended."""
    job = last_exit_of_job(load_exits(directory))
    was_interrupted = job is not None and job.interrupted
    is_over = all(one.has_ended or one.is_dead or (was_interrupted and _is_left(one, job)) for one in evidence)
    some_died = any(one.is_dead for one in evidence)
    hang = hung_at_last(directory) if is_over or some_died else None
    if hang is not None:
        return Examination(hang, is_over=is_over, hung_at_last=True)
    if some_died and not was_interrupted:
        return Examination(judge(evidence), is_over=is_over)
    lingers = judge_exit(evidence)
    if lingers is not None or is_over:
        return Examination(lingers, is_over=is_over, was_interrupted=was_interrupted)
    return examine_running(directory, HangDetector(directory))


def examine_end(directory: Path) -> Verdict | None:
    """Return why a job has ended badly; ``None`` if it has not, or hung before, of which was spoken then."""
    evidence = gather(directory)
    early = None if evidence else failed_early(directory)
    if early is not None:
        return early
    if not any(one.is_dead for one in evidence) or hung_at_last(directory) is not None:
        return None
    return judge(evidence)


def failed_early(directory: Path) -> Verdict | None:
    """Return the verdict on a job that failed before its ranks had pulses, or even a run; ``None`` if it did not."""
    if not (rundir.is_run(directory) or (directory / rundir.EXITS_FILE).is_file()):
        return None
    records = (record_of(directory, rank) for rank in rundir.ranks_in(directory))
    return judge_records([one for one in records if one is not None], load_exits(directory))


def hung_at_last(directory: Path) -> Verdict | None:
    """Return the verdict on the hang in which the job ended, if it did."""
    verdict, job = read_verdict(directory), last_exit_of_job(load_exits(directory))
    ended_well = job is None or (job.exit_code == 0 and not job.interrupted)
    if ended_well and all_have_ended(directory):
        return None  # it went on, and exited in the end or is looked at now
    return None if verdict is None or verdict.resumed_unix_ns is not None else verdict


def all_have_ended(directory: Path) -> bool:
    """Return whether every rank has finished training, as far as they have pulses."""
    return all(head.state.ended == Ended.FINISHED for head in read_heads(directory, 1))


def _is_left(rank: RankEvidence, job: ProcessExit | None) -> bool:
    """Return whether the job's first process has ended on the rank's host, and the rank is no longer there."""
    return job is not None and job.host in (None, rank.identity.host) and rank.process is None
