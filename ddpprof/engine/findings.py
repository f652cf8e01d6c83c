"""The findings of a run: those of all topics, in the order in which a user should read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ddpprof.engine.finding import Finding, Predicted, within
from ddpprof.engine.topic import Topic, View
from ddpprof.model.json_files import Outcome

_NOISE_OF_MEASURED = 0.02
"""fraction of the step; a smaller measured gain may be chance"""
_ROUNDS_TO_NOTHING_NS = 5_000
"""gains smaller than this are shown as 0.00 ms"""


def find(view: View, topics: Iterable[Topic[Any, Any]]) -> tuple[Finding, ...]:
    """Return the findings of all topics that have any, in the order of `in_order`."""
    used = [(topic, shown) for topic in topics if (shown := view[topic]) is not None]
    advice = {rule: words for topic, _ in used for rule, words in topic.advice.items()}
    return in_order((one for topic, shown in used for rule in topic.rules for one in rule(shown, view)), view, advice)


def in_order(findings: Iterable[Finding], view: View, advice: Mapping[str, str]) -> tuple[Finding, ...]:
    """Sort findings: first broken or distorted training, then gains, then the rest, and noise last.

    Among the gains, changes that keep the results of the training come before changes that round gradients, and rules
    whose advice often saves less than promised come later. Gains that only a replay could confirm come last if the run
    could not be replayed.

    If one change addresses several findings, only the first of them is returned. Rules that recommend the same change
    use the same entry of `Predictions`. `advice`: rule → advice that replaces its own.
    """
    found: dict[object, Finding] = {}
    for finding in findings:
        bounded = _measured(_bounded(finding), view)
        noted = replace(bounded, advice=advice.get(finding.rule, finding.advice), is_noise=is_noise(bounded, view))
        found.setdefault(finding if finding.predicted is None else id(finding.predicted), noted)
    beyond = [finding for finding in found.values() if not finding.is_noise]
    first = sorted((one for one in beyond if one.comes_first), key=lambda one: not one.is_correctness)
    known = [finding for finding in beyond if finding.expected_ns is not None]
    told = [finding for finding in known if not finding.is_guess]
    gains = [
        *_by_gain([finding for finding in told if finding.is_trusted and not finding.is_lossy]),
        *_by_gain([finding for finding in told if finding.is_trusted and finding.is_lossy]),
        *_by_gain([finding for finding in told if not finding.is_trusted]),
        *_by_gain([finding for finding in known if finding.is_guess]),
    ]
    others = [finding for finding in beyond if finding.expected_ns is None and not finding.comes_first]
    return (*first, *gains, *others, *(finding for finding in found.values() if finding.is_noise))


def _bounded(finding: Finding) -> Finding:
    """Return the finding with its gain limited to its cause."""
    if finding.cause_ns is None or finding.gain_ns is None:
        return finding
    predicted = None if finding.predicted is None else within(finding.predicted, finding.cause_ns)
    return replace(finding, gain_ns=min(finding.gain_ns, finding.cause_ns), predicted=predicted)


def _measured(finding: Finding, view: View) -> Finding:
    """Return the finding with the measured gain of its change, if `ddpprof try` has tried it."""
    code = None if finding.change is None else finding.change.code
    found = [one.measured for one in view.tried if (one.rule, one.code) == (finding.rule, code)]
    return replace(finding, measured=found[-1]) if found else finding


def _by_gain(findings: Sequence[Finding]) -> list[Finding]:
    """Sort by gain, largest first; gains whose intervals overlap stay in the order of the rules.

    This way, two runs of one job name the same change first.
    """
    left = sorted(findings, key=lambda f: f.expected_ns or 0, reverse=True)
    ordered: list[Finding] = []
    while left:
        may_be_first = [finding for finding in left if _most_ns(finding) >= _least_ns(left[0])]
        ordered.append(min(may_be_first, key=findings.index))
        left.remove(ordered[-1])
    return ordered


def _least_ns(finding: Finding) -> int:
    """Return the minimum gain, ns per step; if only an upper bound is known, half of it."""
    return (finding.expected_ns or 0) // 2 if finding.predicted is None else finding.predicted.low_ns


def _most_ns(finding: Finding) -> int:
    return (finding.expected_ns or 0) if finding.predicted is None else finding.predicted.high_ns


def is_noise(finding: Finding, view: View) -> bool:
    """Return True if the finding may be due to chance, its rule says so, or its change did not help when tried.

    A measured cost may be due to chance if it is so close to the threshold that another run might not report it.
    """
    gain_ns = finding.expected_ns
    if finding.gives_nothing or finding.is_noise or gain_ns is None:
        return finding.gives_nothing or finding.is_noise
    if finding.measured is not None and finding.measured.outcome in (Outcome.CONFIRMED, Outcome.SMALLER):
        return False
    if finding.predicted is not None:
        return may_be_chance(finding.predicted, view.step_noise_ns)
    return gain_ns < max(_ROUNDS_TO_NOTHING_NS, _NOISE_OF_MEASURED * (view.step_ns or 0))


def may_be_chance(predicted: Predicted, step_noise_ns: int | None) -> bool:
    """Return True if a prediction may be due to chance.

    This is so if the change may cost time, or if the gain is below the noise of the step and may be less than half of
    the predicted one.
    """
    gain_ns, low_ns = predicted.gain_ns, predicted.low_ns
    if gain_ns < _ROUNDS_TO_NOTHING_NS or low_ns <= 0:
        return True
    return gain_ns < (step_noise_ns or 0) and 2 * low_ns < gain_ns
