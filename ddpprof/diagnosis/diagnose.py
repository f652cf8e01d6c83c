"""The verdict on the run in a directory, while it hangs or afterwards."""

from __future__ import annotations

import time
from pathlib import Path

from ddpprof.diagnosis.evidence import RankEvidence, gather
from ddpprof.diagnosis.hang_detector import HangDetector, Overdue
from ddpprof.diagnosis.judge import judge
from ddpprof.model.hang import Verdict

_STACKS_S = 2.5
"""seconds for the ranks to write where they stand, which they do once their step is overdue"""


def diagnose_overdue(directory: Path, overdue: Overdue, detector: HangDetector) -> Verdict | None:
    """Return what holds a job up whose step is overdue; ``None`` if it pauses on purpose, or has gone on.

    Ranks that can still write where they stand get some seconds for it.
    """
    deadline = time.monotonic() + _STACKS_S
    evidence = gather(directory, records=False)
    while _lacks_stacks(evidence) and time.monotonic() < deadline:
        time.sleep(0.2)
        evidence = gather(directory, records=False)
    if _has_gone_on(evidence, overdue) or detector.is_on_purpose(evidence, overdue):
        return None
    evidence = gather(directory)
    return None if _has_gone_on(evidence, overdue) else judge(evidence)


def _has_gone_on(evidence: tuple[RankEvidence, ...], overdue: Overdue) -> bool:
    """Return whether a rank has ended the step, or all ranks have ended."""
    training = [one.state.step for one in evidence if not one.has_ended]
    return not training or max(training) > overdue.step


def _lacks_stacks(evidence: tuple[RankEvidence, ...]) -> bool:
    return any(not (one.stack or one.has_ended or one.is_dead or one.is_silent) for one in evidence)
