"""What changes are predicted to give back: see `predictions` and `replayed_runs` for the run."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from predictions import MIB, UNIT, profile
from replayed_runs import MODULE, in_turn, known, light
from reports import report
from tables import ddp_module, record, run

from ddpprof.engine.finding import Predictions
from ddpprof.model import BackwardPass, DdpModule, Rank, RecordedStep
from ddpprof.predict import Setting
from ddpprof.predict.predict import predict
from ddpprof.report import Report
from ddpprof.report.build import build_report
from ddpprof.report.whatif import _Changes, predict_changes, ranks_to_replay
from ddpprof.topics.ranks.stragglers import OwnTimePart, Straggler


def late(rank: int, part: OwnTimePart | None = OwnTimePart.BACKWARD) -> Straggler:
    return Straggler(rank, UNIT, part, UNIT, num_last=9, num_steps=10, since_step=None, p_value=1e-6)


def test_each_change_alone() -> None:
    """Of 20, two are after the last gradient, in which the second bucket of two is sent; half the bytes take one.

    To add 16-bit numbers, gloo takes 1.3 ns per byte more, on each of two ranks for half of the bytes.
    """
    found = predict_changes(known(), ())
    assert found.compression is not None
    assert found.compression.gain_ns == pytest.approx(UNIT - MIB * 1.3 / 2, rel=1e-3)
    assert found.compression.low_ns <= found.compression.gain_ns <= found.compression.high_ns
    assert found.best_buckets is not None
    assert (found.best_buckets.argument, found.best_buckets.predicted) == ("", None), "parameters cannot be divided"
    assert found.best_buckets.bucket_bytes == (2 * MIB, 2 * MIB)
    assert found.bucket_views is not None
    assert (found.without_unused_search, found.without_straggler) == (None, None)


def test_the_best_buckets_that_are_found() -> None:
    """One bucket of all is sent from 14 to 18; of two the first is there at 14, and the second at 16."""
    whole = ddp_module((2 * MIB, 2 * MIB), [[1, 0]], bucket_cap_mb=25.0)
    steps = [light(number, num_buckets=1) for number in (1, 2)]
    best = predict_changes(known(steps, [whole]), ()).best_buckets
    assert best is not None
    assert (best.argument, best.bucket_bytes) == ("bucket_cap_mb=None", (2 * MIB, 2 * MIB))
    assert best.predicted is not None
    assert best.predicted.gain_ns == pytest.approx(2 * UNIT, rel=1e-2)


def test_a_compiled_model_gets_no_other_buckets() -> None:
    """``torch.compile`` cuts it where buckets end, so with others its gradients would come at other times."""
    found = predict_changes(known(is_compiled=True), ())
    assert (found.best_buckets, found.compression is None) == (None, False)


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        pytest.param({"gradient_as_bucket_view": True}, "bucket_views", id="views-already"),
        pytest.param({"comm_hook": "fp16_compress_hook"}, "compression", id="a-hook-already"),
        pytest.param({}, "without_unused_search", id="nothing-is-searched"),
    ],
)
def test_what_the_run_has_already_is_no_change(module: dict[str, Any], absent: str) -> None:
    made = ddp_module((2 * MIB, 2 * MIB), [[1], [0]], bucket_cap_mb=2.0, **module)
    assert getattr(predict_changes(known(modules=[made]), ()), absent) is None


def test_a_static_graph_where_ddp_searches() -> None:
    searching = ddp_module((2 * MIB, 2 * MIB), [[1], [0]], bucket_cap_mb=2.0, find_unused_parameters=True)
    found = predict_changes(known(modules=[searching]), ()).without_unused_search
    assert found is not None
    assert found.gain_ns == 0, "buckets are in the order of gradients already"


def _timed_as(step: RecordedStep, other: RecordedStep) -> tuple[BackwardPass, ...]:
    """The step's backward pass, with the buckets of the other's."""
    return (structs.replace(step.passes[0], buckets=other.passes[0].buckets),)


def straggling(part: OwnTimePart | None) -> Predictions:
    """Rank 1 has its gradients 4 later than the others, and all their buckets as well."""
    steps, later = [light(1), light(2)], [light(1, late=4), light(2, late=4)]
    ready = [structs.replace(step, passes=_timed_as(step, after), optimizers=after.optimizers, end_ns=after.end_ns)
             for step, after in zip(steps, later, strict=True)]  # fmt: skip
    run = known(steps, num_ranks=3)
    return predict_changes(replace(run, recorded={0: ready, 1: later, 2: ready}), [late(1, part)])


def test_without_the_straggler_gradients_come_when_the_others_have_them() -> None:
    found = straggling(OwnTimePart.BACKWARD).without_straggler
    assert found is not None
    assert found.gain_ns == pytest.approx(4 * UNIT, rel=1e-3)


@pytest.mark.parametrize(
    "part", [OwnTimePart.DATA, OwnTimePart.FORWARD, OwnTimePart.OPTIMIZER, OwnTimePart.OTHER, None]
)
def test_what_all_ranks_lose_elsewhere_is_not_predicted(part: OwnTimePart | None) -> None:
    assert straggling(part).without_straggler is None


@pytest.mark.parametrize(
    ("steps", "modules", "num_ranks"),
    [
        pytest.param((light(1),), (MODULE,), 2, id="one-light-step"),
        pytest.param((light(1), light(2)), (MODULE,), 1, id="one-rank"),
        pytest.param(
            (light(1), light(2)), (ddp_module([MIB] * 65, [[index] for index in range(65)]),), 2, id="many-buckets"
        ),
    ],
)
def test_where_it_cannot_be_told_nothing_is_predicted(
    steps: Sequence[RecordedStep], modules: Sequence[DdpModule], num_ranks: int
) -> None:
    assert predict_changes(known(steps, modules, num_ranks), ()) == Predictions()


def test_of_several_modules_only_what_concerns_the_whole_step_is_predicted() -> None:
    """Over twice the bandwidth the last bucket of each module takes 1 less, and nothing is accumulated."""
    steps = [in_turn(number) for number in (1, 2)]
    found = predict_changes(known(steps, (MODULE, MODULE)), ())
    assert found.double_link is not None
    assert found.double_link.gain_ns / UNIT == pytest.approx(2, abs=0.01)
    assert (found.best_buckets, found.no_sync, found.accumulation) == (None, None, None)


def test_where_a_second_module_is_hardly_trained_no_buckets_are_advised_either() -> None:
    """The rules would compare them with those of both modules."""
    steps = [in_turn(1), *(light(number) for number in range(2, 13))]
    assert predict_changes(known(steps, (MODULE, MODULE)), ()).best_buckets is None


def test_a_hook_of_one_module_is_one_of_the_job() -> None:
    steps = [in_turn(number) for number in (1, 2)]
    hooked = structs.replace(MODULE, comm_hook="powerSGD_hook")
    found = predict_changes(known(steps, (MODULE, hooked)), ())
    assert (found.compression, found.double_link) == (None, None)


@pytest.mark.parametrize(
    ("num_ranks", "stragglers", "ranks"),
    [
        (2, [], [0, 1]),
        (16, [], list(range(16))),
        (17, [], list(range(0, 17, 2))),
        (1000, [], list(range(0, 1000, 63))),
        (1000, [64, 999], sorted([*range(0, 1000, 63), 64, 999])),
        (4, [9], [0, 1, 2, 3]),
    ],
)
def test_of_many_ranks_a_few_are_read_and_those_that_are_late(
    num_ranks: int, stragglers: list[int], ranks: list[int]
) -> None:
    assert ranks_to_replay(range(num_ranks), [late(rank) for rank in stragglers]) == ranks


def test_of_many_steps_a_few_are_replayed() -> None:
    few, many = known([light(1), light(2)]), known([light(number) for number in range(1, 400)])
    assert predict_changes(many, ()).compression == predict_changes(few, ()).compression


def reported(**settings: Any) -> Report:
    steps = [light(1), light(2)]
    module = ddp_module((2 * MIB, 2 * MIB), [[1], [0]], bucket_cap_mb=2.0, **settings)
    return build_report(run(*(Rank(rank, None, record(rank, [module], steps)) for rank in range(2))))


def test_a_search_whose_gain_is_uncertain_is_reported_without_a_promise() -> None:
    (finding,) = reported(find_unused_parameters=True, unused=(), num_lacking_passes=0).findings
    assert (finding.rule, finding.gain_ns, finding.predicted) == ("find-unused-for-nothing", None, None)
    assert not finding.is_noise


def test_accumulation_saves_communication_alone() -> None:
    """Of a step of 20, 2 are exposed communication, which four batches have once, and 4 the optimizer."""
    made = profile()
    changes = _Changes(made, predict(made, Setting()), report().job, 0.0, has_one_module=True)
    accumulated = changes.predictions(None).accumulation
    assert accumulated is not None
    assert accumulated.gain_ns / UNIT == pytest.approx(2 - 2 / 4)
