"""When may chance have made a finding? Then another run of the same job might not have it."""

from __future__ import annotations

from ddpprof.findings.finding import Finding, Observed
from ddpprof.findings.predictions import Predicted

_NOISE_OF_MEASURED = 0.02
"""fraction of the step; a measured gain below it may be chance"""
_ROUNDS_TO_NOTHING_NS = 5_000
"""gains below it are shown as 0.00 ms"""


def is_noise(finding: Finding, o: Observed) -> bool:
    """Return whether chance may have made the finding, or its rule says so.

    A measured cost may be chance if it is so near the threshold for findings that another run might not report it.
    """
    gain_ns = finding.expected_ns
    if finding.is_noise or gain_ns is None:
        return finding.is_noise
    if finding.predicted is not None:
        return may_be_chance(finding.predicted, o.step_noise_ns)
    return gain_ns < max(_ROUNDS_TO_NOTHING_NS, _NOISE_OF_MEASURED * (o.step_ns or 0))


def may_be_chance(predicted: Predicted, step_noise_ns: int | None) -> bool:
    """Return whether a prediction may be chance.

    It may be if the change may cost time, or if the gain is below the noise of the step and may be less than half of
    what is predicted.
    """
    gain_ns, low_ns = predicted.gain_ns, predicted.low_ns
    if gain_ns < _ROUNDS_TO_NOTHING_NS or low_ns <= 0:
        return True
    return gain_ns < (step_noise_ns or 0) and 2 * low_ns < gain_ns
