"""Rules about single ranks."""

from dataclasses import replace

import pytest
from observations import MS, observed, only

from ddpprof.engine.topic import View
from ddpprof.report.topics import find_all
from ddpprof.topics.ranks.rules import Lateness, slow_rank
from ddpprof.topics.ranks.stragglers import LateGradient, OwnTimePart, Straggler


def late(
    rank: int, late_ns: int, part: OwnTimePart | None = OwnTimePart.BACKWARD, since_step: int | None = None
) -> Straggler:
    return Straggler(rank, late_ns, part, late_ns, num_last=9, num_steps=10, since_step=since_step, p_value=1e-6)


def test_a_straggler_costs_what_it_is_later_than_the_next() -> None:
    gradients = {1: (LateGradient(0, "c.weight", "d.weight", 190 * MS, 190 * MS, 10),)}
    finding = only(observed(stragglers=(late(1, 200 * MS, since_step=7), late(3, 150 * MS)), late_gradients=gradients))
    assert (finding.rule, finding.gain_ns) == ("straggler", 50 * MS)
    assert finding.title == "All ranks wait for rank 1 in its backward pass"
    assert finding.evidence == (
        "it is late by 200 ms per step; it arrived last in 9 of 10 steps since step 7; the gradient of c.weight is "
        "ready 190 ms late, after the gradient of d.weight; also late, but by less: rank 3"
    )


@pytest.mark.parametrize(
    ("part", "title", "advice"),
    [
        (OwnTimePart.DATA, "to get its data", "DataLoader workers"),
        (OwnTimePart.OTHER, "between its steps", "logging"),
        (OwnTimePart.FORWARD, "in its forward pass", "clocks and temperature"),
        (None, "for rank 1", "clocks and temperature"),
    ],
)
def test_what_to_look_at_depends_on_where_a_rank_is_late(part: OwnTimePart | None, title: str, advice: str) -> None:
    finding = only(observed(stragglers=(late(1, 20 * MS, part),)))
    assert finding.title.endswith(title)
    assert advice in finding.advice
    assert finding.gain_ns == 20 * MS


@pytest.mark.parametrize(
    ("backend", "step_ms", "since_step", "is_noise"),
    [
        pytest.param("gloo", 100, None, True, id="on-cores-for-a-second"),
        pytest.param("gloo", 1000, None, False, id="on-cores-for-10-seconds"),
        pytest.param("gloo", 22, None, False, id="by-more-than-other-work-can-do"),
        pytest.param("gloo", 22, 7, True, id="as-much-but-only-of-late"),
        pytest.param("nccl", 100, None, False, id="on-a-device-of-its-own"),
    ],
)
def test_a_rank_that_was_late_for_less_than_other_work_lasts_is_no_advice(
    backend: str, step_ms: int, since_step: int | None, is_noise: bool
) -> None:
    finding = only(
        observed(stragglers=(late(1, 20 * MS, since_step=since_step),), step_ns=step_ms * MS, backend=backend)
    )
    assert finding.is_noise is is_noise
    assert ("other work on its cores may be the cause" in finding.evidence) is is_noise


@pytest.mark.parametrize(
    ("own_ms", "watched_s", "is_noise"),
    [
        pytest.param({0: 10, 1: 28, 2: 12}, 30, False, id="late-all-along"),
        pytest.param({0: 10, 1: 28, 2: 12}, 9, True, id="for-less-time-than-other-work-lasts"),
        pytest.param({0: 10, 1: 20, 2: 12}, 30, True, id="less-late-than-when-it-was-recorded"),
        pytest.param({0: 10, 2: 12}, 30, True, id="unknown"),
        pytest.param({1: 28}, 30, True, id="nobody-to-compare-with"),
    ],
)
def test_the_whole_run_tells_whether_a_rank_is_late_by_chance(
    own_ms: dict[int, int], watched_s: int, is_noise: bool
) -> None:
    own_ns = {rank: [ms * MS] * 10 for rank, ms in own_ms.items()}
    stragglers = (late(1, 20 * MS),)
    finding = only(
        observed(
            stragglers=stragglers, step_ns=100 * MS, backend="gloo", own_ns=own_ns, watched_ns=watched_s * 1000 * MS
        )
    )
    assert finding.is_noise is is_noise
    assert (
        "over the whole run (30 s) it was late by 17.0 ms per step" in finding.evidence
    ) is not is_noise or watched_s < 10


@pytest.mark.parametrize(
    ("own_ms", "since_step", "is_noise"),
    [
        pytest.param({0: 10, 1: 51, 2: 10}, None, False, id="more-than-five-times-as-long"),
        pytest.param({0: 10, 1: 49, 2: 10}, None, True, id="less"),
        pytest.param({0: 1, 1: 11, 2: 1}, None, True, id="by-no-more-than-it-may-wait-for-its-core"),
        pytest.param({0: 1, 1: 12, 2: 1}, None, False, id="by-more"),
        pytest.param({0: 5, 1: 51, 2: 11}, None, True, id="not-of-the-next-slowest"),
        pytest.param({0: 10, 1: 51, 2: 10}, 7, True, id="since-a-step"),
        pytest.param({1: 51}, None, True, id="nobody-to-compare-with"),
    ],
)
def test_a_rank_that_takes_far_longer_by_itself_is_slow_in_few_steps(
    own_ms: dict[int, int], since_step: int | None, is_noise: bool
) -> None:
    """Ranks may take 10 ms by themselves in a step of 100 ms, most of which is communication."""
    own_ns = {rank: [ms * MS] * 10 for rank, ms in own_ms.items()}
    stragglers = (late(1, 40 * MS, since_step=since_step),)
    given = observed(stragglers=stragglers, step_ns=100 * MS, backend="gloo", own_ns=own_ns, watched_ns=1000 * MS)
    assert only(given).is_noise is is_noise


@pytest.mark.parametrize(
    ("own_ms", "watched_s", "num_steps", "known", "found"),
    [
        pytest.param(
            {0: [70] * 10, 1: [100] * 10}, 12, 120, False, "30.0 ms per step longer than that of the other", id="two"
        ),
        pytest.param(
            {0: [70] * 10, 1: [100] * 10, 2: [80] * 10}, 12, 120, False, "20.0 ms per step longer than that of any",
            id="several",
        ),
        pytest.param({0: [70] * 9, 1: [70] * 3 + [100] * 6}, 12, 120, False, "20.0 ms per step", id="from-a-step-on"),
        pytest.param({0: [96] * 10, 1: [100] * 10}, 12, 120, False, None, id="hardly-more"),
        pytest.param({0: [70, 100] * 5, 1: [70, 70, 100, 130, 100] * 2}, 12, 120, False, None, id="by-chance"),
        pytest.param({0: [70] * 10, 1: [70] * 9 + [900]}, 12, 120, False, None, id="in-one-stretch"),
        pytest.param({0: [70] * 10, 1: [100] * 10}, 9, 90, False, None, id="a-short-run"),
        pytest.param({0: [7000] * 6, 1: [10000] * 6}, 60, 6, False, None, id="few-steps"),
        pytest.param({0: [70] * 4, 1: [100] * 4}, 60, 60, False, None, id="few-stretches"),
        pytest.param({0: [70] * 10, 1: [100] * 9}, 60, 60, False, None, id="other-steps"),
        pytest.param({0: [70] * 10, 1: [100] * 10}, 12, 120, True, None, id="recorded-steps-tell"),
        pytest.param({1: [100] * 10}, 12, 120, False, None, id="one-is-known"),
    ],
)  # fmt: skip
def test_without_recorded_steps_the_whole_run_names_a_slow_rank(
    own_ms: dict[int, list[int]], watched_s: int, num_steps: int, known: bool, found: str | None
) -> None:
    given = observed(
        own_ns={rank: [one * MS for one in ms] for rank, ms in own_ms.items()},
        watched_ns=watched_s * 1000 * MS,
        watched_steps=num_steps,
        steps_tell_stragglers=known,
        step_ns=None,
    )
    findings = find_all(given)
    assert [(one.rule, one.title) for one in findings] == (
        [("slow-rank", "All ranks wait for rank 1")] if found else []
    )
    assert all(found is not None and found in one.evidence for one in findings)


def test_a_rank_is_not_blamed_while_another_takes_longer_in_all() -> None:
    """Rank 0 evaluates in some steps, and rank 1 takes longer in all other steps."""
    lateness = Lateness(own_ns={0: [70 * MS] * 10, 1: [100 * MS] * 10}, watched_ns=12_000 * MS, watched_steps=120)
    view = View(2, None)
    assert [one.rule for one in slow_rank(lateness, view)] == ["slow-rank"]
    assert [one.rule for one in slow_rank(replace(lateness, mean_own_ns={0: 90 * MS, 1: 101 * MS}), view)] == [
        "slow-rank"
    ]
    assert list(slow_rank(replace(lateness, mean_own_ns={0: 130 * MS, 1: 101 * MS}), view)) == []


@pytest.mark.parametrize(
    ("busy", "part", "slept_ms"),
    [
        pytest.param({0: 0.5, 1: 0.2}, OwnTimePart.FORWARD, 40, id="it-computes-less"),
        pytest.param({0: 0.5, 1: 0.6, 2: 0.4}, None, 25, id="it-computes-somewhat-longer"),
        pytest.param({0: 0.5, 1: 0.71}, OwnTimePart.FORWARD, None, id="it-computes-longer-by-half-of-it"),
        pytest.param({0: 0.5, 1: 0.2}, OwnTimePart.DATA, None, id="workers-may-be-held-up"),
        pytest.param({1: 0.2}, OwnTimePart.FORWARD, None, id="nobody-to-compare-with"),
        pytest.param({0: 0.5}, OwnTimePart.FORWARD, None, id="unknown"),
    ],
)
def test_a_rank_that_does_nothing_is_not_late_because_of_other_work(
    busy: dict[int, float], part: OwnTimePart | None, slept_ms: int | None
) -> None:
    """It is late by 40 ms of a step of 100 ms."""
    finding = only(observed(stragglers=(late(1, 40 * MS, part),), step_ns=100 * MS, backend="gloo", busy_shares=busy))
    assert finding.is_noise is (slept_ms is None)
    assert (f"for about {slept_ms}.0 ms of this time, its training thread neither ran" in finding.evidence) is (
        slept_ms is not None
    )
    assert ("py-spy dump" in finding.advice) is (slept_ms is not None)


def test_a_rank_that_does_nothing_in_a_small_part_of_the_step_may_be_late_by_chance() -> None:
    busy = {0: 0.5, 1: 0.5}
    finding = only(observed(stragglers=(late(1, 9 * MS),), step_ns=100 * MS, backend="gloo", busy_shares=busy))
    assert finding.is_noise


def test_a_rank_that_sleeps_long_in_long_steps_is_not_late_by_chance() -> None:
    """As in `analyses/advice`: 50 ms of sleep in steps of 500 ms, recorded for less than 10 s."""
    busy = {0: 0.5, 1: 0.51}
    finding = only(observed(stragglers=(late(1, 50 * MS),), step_ns=500 * MS, backend="gloo", busy_shares=busy))
    assert not finding.is_noise
    assert "for about 45.0 ms of this time, its training thread neither ran nor waited for a core" in finding.evidence


def test_it_says_how_many_steps_would_tell() -> None:
    finding = only(observed(stragglers=(late(1, 20 * MS),), step_ns=100 * MS, backend="gloo"))
    assert finding.evidence.endswith(
        "these steps lasted only 1.0 s, so other work on its cores may be the cause; to find out, record at least "
        "10 s of steps: ddpprof trace --no-profiler --steps 100"
    )
    assert finding.longer_recording == "--no-profiler --steps 100"
