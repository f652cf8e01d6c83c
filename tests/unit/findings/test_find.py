"""All rules together."""

import pytest
from msgspec.structs import replace
from observations import BUFFERS, HELD, LATE, MS, loader, observed
from tables import ddp_module

from ddpprof.findings import RULES, Finding, Observed, find, noise
from ddpprof.findings.predictions import Predicted
from ddpprof.measures.kernels.devices import DeviceLoad
from ddpprof.model.whole_run import NonfiniteSteps


@pytest.mark.parametrize("step_ns", [0, None])
def test_a_step_without_length_gives_nothing_back(step_ns: int | None) -> None:
    names = (
        "exposed_ns",
        "trailing_ns",
        "data_ns",
        "buffer_sync_ns",
        "unused_search_ns",
        "copy_out_ns",
        "slowdown_lost_ns",
        "launch_bound_ns",
    )
    everything = dict.fromkeys(names, 0)
    module = replace(HELD, num_buffers=1, settings={"broadcast_buffers": True})
    assert find(observed(module, LATE, step_ns=step_ns, **everything)) == ()


@pytest.mark.parametrize("step_ns", [0, None])
def test_without_the_length_of_a_step_no_part_of_it_is_worth_saying(step_ns: int | None) -> None:
    times = dict.fromkeys(("data_ns", "launch_bound_ns", "slowdown_lost_ns", "copy_out_ns"), 9 * MS)
    loads = tuple(DeviceLoad(device, ns, 0, 0, ns) for device, ns in enumerate((9 * MS, 0)))
    assert find(observed(HELD, LATE, step_ns=step_ns, device_loads=loads, exposed_ns=9 * MS, **times)) == ()


def test_most_first_and_unknown_gains_last() -> None:
    module = ddp_module(**BUFFERS, broadcast_buffers=True, unused=("p0",))
    o = observed(module, data_ns=9 * MS, buffer_sync_ns=3 * MS, copy_out_ns=20 * MS, loaders={0: (loader(),)})
    assert [(f.rule, f.gain_ns) for f in find(o)] == [
        ("gradient-copies", 20 * MS), ("idle-for-data", 9 * MS), ("buffers-broadcast", 3 * MS),
        ("unused-parameters", None),
    ]  # fmt: skip


def test_a_broken_training_before_all_gains() -> None:
    o = observed(ddp_module(), copy_out_ns=20 * MS, nonfinite={0: NonfiniteSteps(3, 9, follows_finite=True), 1: None})
    assert [f.rule for f in find(o)] == ["nonfinite-loss", "gradient-copies"]


def test_nothing_known_nothing_found() -> None:
    assert find(Observed(world_size=None, step_ns=None)) == ()
    assert len(RULES) == len(set(RULES))


@pytest.mark.parametrize(
    ("gain_ns", "prediction", "noise_ns", "is_noise"),
    [
        pytest.param(3 * MS, None, None, False, id="measured"),
        pytest.param(1_500_000, None, None, True, id="near-the-least-worth-saying"),
        pytest.param(3 * MS, None, 10 * MS, False, id="a-part-is-not-as-noisy-as-the-step"),
        pytest.param(9 * MS, Predicted(5 * MS, 1 * MS, 9 * MS), None, False, id="surely-a-gain"),
        pytest.param(9 * MS, Predicted(5 * MS, 0, 9 * MS), None, True, id="perhaps-no-gain"),
        pytest.param(9 * MS, Predicted(5 * MS, 1 * MS, 9 * MS), 6 * MS, True, id="less-than-the-noise-of-the-step"),
        pytest.param(4_000, Predicted(3_000, 1_000, 4_000), None, True, id="rounds-to-nothing"),
        pytest.param(6_000, Predicted(5_000, 1_000, 6_000), None, False, id="rounds-to-something"),
        pytest.param(None, None, 10 * MS, False, id="without-a-gain"),
    ],
)
def test_what_may_be_noise(
    gain_ns: int | None, prediction: Predicted | None, noise_ns: int | None, is_noise: bool
) -> None:
    finding = Finding("rule", "title", "evidence", "advice", gain_ns, predicted=prediction)
    assert noise.is_noise(finding, observed(step_noise_ns=noise_ns)) is is_noise


def test_gains_that_may_be_equal_stand_in_the_order_of_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    def rules(*gains: tuple[str, int, int, int]) -> None:
        made = [
            Finding(name, name, "", "", high, predicted=Predicted(gain, low, high)) for name, gain, low, high in gains
        ]
        monkeypatch.setattr("ddpprof.findings.RULES", (lambda _: iter(made),))

    def order() -> list[str]:
        return [finding.rule for finding in find(observed())]

    rules(("first", 5 * MS, 3 * MS, 7 * MS), ("second", 6 * MS, 4 * MS, 8 * MS))
    assert order() == ["first", "second"]
    rules(("first", 6 * MS, 4 * MS, 8 * MS), ("second", 5 * MS, 3 * MS, 7 * MS))
    assert order() == ["first", "second"]
    rules(("first", 3 * MS, 2 * MS, 4 * MS), ("second", 9 * MS, 8 * MS, 10 * MS))
    assert order() == ["second", "first"]
    rules(("first", 3 * MS, -2 * MS, 8 * MS), ("second", 2 * MS, 1 * MS, 3 * MS))
    assert order() == ["second", "first"], "what may be a loss comes last"
    small, large = ("small", 4_000_000, 3_900_000, 4_200_000), ("large", 5_000_000, 4_500_000, 5_500_000)
    rules(small, large, ("vague", 3 * MS, 1 * MS, 12 * MS))
    assert order() == ["large", "small", "vague"], "what a vague one gives at most does not make it the largest"
