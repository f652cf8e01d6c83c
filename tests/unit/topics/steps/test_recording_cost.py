"""ddpprof's own cost, from steps recorded in different modes."""

import pytest
from reports import rank, step
from tables import recorded

from ddpprof.topics.steps.measure import (
    LightStepReport,
    RecordingCost,
    measure_recording_cost,
    profiled_ratio,
    profiler_cost,
)


def steps(*modes_and_durations: tuple[str, int], first: int = 0) -> list:
    return [recorded(first + i, 0, duration, mode) for i, (mode, duration) in enumerate(modes_and_durations)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param([], None, id="nothing"),
        pytest.param(
            steps(("off", 100), ("light", 110), ("off", 200), ("light", 210)),
            RecordingCost(150, 160, None, pytest.approx((1.1 * 1.05) ** 0.5), 2, 100 / 150, None),
            id="pairs-hold-against-drift",
        ),
        pytest.param(
            steps(("off", 600), ("light", 110), ("light", 660), ("off", 100)),
            RecordingCost(350, 385, None, pytest.approx(1.1), 2, 500 / 350, None),
            id="every-second-step-is-longer",
        ),
        pytest.param(
            steps(("off", 100), ("light", 110), ("off", 5000)),
            RecordingCost(2550, 110, None, pytest.approx(1.1), 1, 4900 / 2550, None),
            id="no-step-is-in-two-pairs",
        ),
        pytest.param(
            steps(("off", 100)) + steps(("light", 110), first=7),
            RecordingCost(100, 110, None, None, 0, None, None),
            id="not-neighbours",
        ),
        pytest.param(
            steps(("profiled", 150), ("profiled", 170)),
            RecordingCost(None, None, 160, None, 0, None, None),
            id="profiled-only",
        ),
        pytest.param(
            steps(("off", 0), ("light", 0), ("off", 0)),
            RecordingCost(0, 0, None, None, 0, None, None),
            id="a-clock-that-stands-still",
        ),
    ],
)
def test_recording_cost(given: list, expected: RecordingCost | None) -> None:
    assert measure_recording_cost(given, None) == expected


def test_the_profilers_ratio_is_to_bare_steps() -> None:
    cost = measure_recording_cost(steps(("off", 100), ("profiled", 130)), 7)
    assert cost is not None
    assert (cost.profiled_ratio, cost.profiler_pause_ns) == (1.3, 7)
    without = measure_recording_cost(steps(("profiled", 130)), 7)
    assert without is not None
    assert without.profiled_ratio is None


def light(*durations: int, mode: str = "light") -> tuple[LightStepReport, ...]:
    return tuple(LightStepReport(number, mode, duration, None) for number, duration in enumerate(durations))


PROFILED = (step(12, 48_000, 9_000, 2_500, 0, 9_000), step(13, 50_000, 9_200, 2_900, 100, 8_000))
PROFILED_NS = sum(one.duration_ns for one in PROFILED) // 2


@pytest.mark.parametrize(
    ("others", "cost_ns"),
    [
        pytest.param(((), ()), None, id="all-steps-profiled"),
        pytest.param((light(PROFILED_NS - 3, PROFILED_NS - 7, PROFILED_NS - 5), ()), 5, id="median"),
        pytest.param((light(PROFILED_NS - 9), light(PROFILED_NS - 4)), 4, id="least-of-the-ranks"),
        pytest.param((light(PROFILED_NS + 9), ()), 0, id="not-faster-without"),
        pytest.param((light(1, mode="baseline"), ()), None, id="not-without-ddp"),
    ],
)
def test_how_much_longer_profiled_steps_are(
    others: tuple[tuple[LightStepReport, ...], ...], cost_ns: int | None
) -> None:
    ranks = [rank(number, *PROFILED, light_steps=of_rank) for number, of_rank in enumerate(others)]
    assert profiler_cost(ranks, (12, 13)) == cost_ns


def test_how_many_times_as_long_profiled_steps_are() -> None:
    """Of all ranks, the smallest ratio counts, and one within the spread of the unrecorded steps counts as 1."""
    slower, much_slower, by_chance = (
        RecordingCost(100, 100, ns, 1.0, 4, spread, None) for ns, spread in ((130, 0.1), (160, 0.1), (130, 0.4))
    )
    assert profiled_ratio([rank(0, recording_cost=much_slower), rank(1, recording_cost=slower)], None) == 1.3
    assert profiled_ratio([rank(0, recording_cost=much_slower), rank(1, recording_cost=by_chance)], None) == 1
    assert profiled_ratio([rank(0, recording_cost=much_slower), rank(1, recording_cost=None)], None) == 1
    assert profiled_ratio([], None) == 1
    profiled = [rank(0, *PROFILED, recording_cost=by_chance), rank(1, *PROFILED[:1])]
    assert profiled_ratio(profiled, PROFILED[0].duration_ns // 2) == pytest.approx(2, rel=1e-3)
    assert profiled_ratio(profiled, PROFILED[0].duration_ns * 2) == 1
