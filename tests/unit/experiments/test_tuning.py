"""What becomes of the settings that were tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from experiments import MS, choice, kept_tuning, result, steps, tuning, tuning_report
from msgspec.structs import replace as replace_struct
from predictions import network
from replayed_runs import MODULE, known

from ddpprof.errors import DdpprofError
from ddpprof.experiments.plan import Trial
from ddpprof.experiments.trials import Steps, TrialResult
from ddpprof.experiments.tuning import Fate, TuneReport, code_of, is_losing, knobs_of, shortlisted, start_spread
from ddpprof.layout import Line, Table
from ddpprof.predict.candidates import Candidate
from ddpprof.predict.replay import Cost, Link
from ddpprof.render.sections.experiments import tuning_sections
from ddpprof.report import Job

CAP = Candidate({"bucket_cap_mb": 5})
HOOK = Candidate({}, "fp16_compress_hook")
SAME = {0: ((2.0,), (1.5,))}
OTHER = {0: ((2.0,), (1.25,))}


def test_the_best_is_the_fastest_beyond_noise_or_a_shorter_one_as_good() -> None:
    report = tuning_report()
    assert isinstance(report, TuneReport)
    assert report.best == 0
    assert [one.fate for one in report.tried] == [Fate.TRIED, Fate.TRIED, Fate.LOSING, Fate.REFUSED]
    assert [len(one.rounds_ns) for one in report.tried] == [3, 3, 2, 1]
    assert report.now.step_ns == 100 * MS


def test_steps_are_counted() -> None:
    report = tuning(choice(CAP), *steps(0, 100, 100, 100), *steps(1, 120))
    assert report.num_steps == 12 + 4 * 9
    assert report.exhaustive_steps == 20 * 3 * 9


@pytest.mark.parametrize(
    ("results", "fate"),
    [
        pytest.param([*steps(0, 100), *steps(1, 300)], Fate.TRIED, id="one-start-is-no-evidence"),
        pytest.param([*steps(0, 100, 101), *steps(1, 300)], Fate.TRIED, id="nor-is-one-against-two"),
        pytest.param([*steps(0, 100, 101), *steps(1, 120, 121)], Fate.LOSING, id="two-starts-of-both"),
        pytest.param([*steps(0, 100, 130), *steps(1, 120, 156)], Fate.TRIED, id="starts-as-it-is-differ-as-much"),
        pytest.param([*steps(0, 100, 101), *steps(1, 120, 160)], Fate.TRIED, id="its-own-starts-differ-as-much"),
    ],
)
def test_a_setting_is_given_up_only_if_starts_differ_by_less(results: list[TrialResult], fate: Fate) -> None:
    assert tuning(choice(CAP), *results).tried[0].fate is fate


def test_a_setting_that_is_no_longer_clearly_slower_is_measured_again() -> None:
    """A machine that turns out to be noisy has not shown that the setting is slower."""
    begun = kept_tuning(choice(CAP), *steps(0, 100, 101), *steps(1, 115, 116))
    assert begun.stopped() == {1}
    later = kept_tuning(choice(CAP), *steps(0, 100, 101, 150), *steps(1, 115, 116))
    assert (later.stopped(), later.next_trial()) == (set(), Trial(1, 2))


def test_the_leader_and_the_job_as_it_is_are_measured_again_first() -> None:
    listed = choice(CAP, HOOK, Candidate({"bucket_cap_mb": 50}))
    first = [*steps(0, 100), *steps(1, 90), *steps(2, 40), *steps(3, 110)]
    order = []
    for _ in range(4):
        trial = kept_tuning(listed, *first).next_trial()
        assert trial is not None
        order.append(trial)
        first.append(result(trial.variant, trial.round, (100,) * 6))
    assert order == [Trial(2, 1), Trial(0, 1), Trial(3, 1), Trial(1, 1)]


def test_a_noisy_machine_is_told_instead_of_a_verdict() -> None:
    """One start of the unchanged job was lucky, as in a tuning of a newcomer that ended with "nothing beats it"."""
    report = tuning(choice(CAP), *steps(0, 383.8, 1112.9, 1013), *steps(1, 642.63, 700, 1100))
    said = "\n".join(line.text for line in tuning_sections(report) if isinstance(line, Line))
    assert [one.fate for one in report.tried] == [Fate.TRIED]
    assert "Cannot tell whether a setting is faster" in said
    assert "step times on this machine varied by 2.9× between runs of the same setting" in said
    assert "with --rounds 10" in said
    [table] = [section for section in tuning_sections(report) if isinstance(section, Table)]
    assert "(trials vary too much to tell)" in table.rows[1][2]


def test_a_steady_machine_shows_that_nothing_is_faster() -> None:
    report = tuning(choice(CAP), *steps(0, 100, 101, 99), *steps(1, 99, 101, 100))
    [said, *_] = [line.text for line in tuning_sections(report) if isinstance(line, Line)]
    assert said == (
        "No setting is faster than the unchanged job (100 ms per step): 3 rounds are enough to detect a gain of 10%. "
        "Change nothing."
    )


@pytest.mark.parametrize(
    ("candidate", "fate", "best"),
    [
        pytest.param(CAP, Fate.REFUSED, None, id="it-should-keep-them"),
        pytest.param(HOOK, Fate.TRIED, 0, id="it-was-allowed-not-to"),
    ],
)
def test_a_setting_that_changes_losses_is_refused_unless_that_was_allowed(
    candidate: Candidate, fate: Fate, best: int | None
) -> None:
    results = [*steps(0, 100, 100, 100), *steps(1, 80, 80, 80)]
    losses = {one.trial: OTHER if one.trial.variant else SAME for one in results}
    report = tuning(choice(candidate), *results, losses=losses, profile_losses=SAME)
    assert (report.tried[0].fate, report.best) == (fate, best)


def test_a_setting_that_fails_is_named() -> None:
    failed = result(1, 0, problem="exit code 1: no")
    report = tuning(choice(CAP, HOOK), *steps(0, 100, 100, 100), failed, *steps(2, 99, 99, 99))
    assert report.tried[0].fate is Fate.FAILED
    assert report.missing == ("bucket_cap_mb=5, round 1: exit code 1: no",)


def test_rounds_that_have_not_been_run_are_said() -> None:
    assert tuning(choice(CAP), *steps(0, 100), *steps(1, 99)).missing == ("1 of 3 rounds have been run",)


def intervals(report: TuneReport) -> list[float]:
    """Their widths, as ratios."""
    return [one.ratio.high / one.ratio.low for one in report.tried if one.ratio and one.ratio.high and one.ratio.low]


def test_a_round_that_is_not_over_does_not_count_yet() -> None:
    """The job as it is has been run in the fourth round, and nothing else."""
    three = [*steps(0, 100, 104, 99), *steps(1, 90, 91, 92), *steps(2, 95, 99, 93)]
    begun = [*steps(0, 100, 104, 99, 250), *three[3:]]
    assert intervals(tuning(choice(CAP, HOOK), *begun, rounds=4)) == intervals(
        tuning(choice(CAP, HOOK), *three, rounds=4)
    )


def test_a_setting_that_was_given_up_still_counts_among_those_that_may_be_fast_by_accident() -> None:
    results = [*steps(0, 100, 104, 99), *steps(1, 90, 91, 92)]
    alone = tuning(choice(CAP), *results)
    beside = tuning(choice(CAP, HOOK), *results, *steps(2, 150, 151))
    assert beside.tried[1].fate is Fate.LOSING
    assert intervals(beside)[0] > intervals(alone)[0]


def test_what_was_behind_one_that_failed_is_measured_on() -> None:
    failed = result(1, 3, problem="exit code 1: no")
    results = [*steps(0, 100, 101, 99, 100), *steps(1, 60, 60, 60), failed, *steps(2, 80, 80.5)]
    begun = kept_tuning(choice(CAP, HOOK), *results, rounds=4)
    assert begun.next_trial() == Trial(2, 2)


@pytest.mark.parametrize(
    ("framework", "arguments", "code"),
    [
        (
            None,
            {},
            (
                "ddp.register_comm_hook(ddp.process_group, default_hooks.fp16_compress_hook), "
                "from torch.distributed.algorithms.ddp_comm_hooks"
            ),
        ),
        (
            None,
            {"bucket_cap_mb": 5},
            (
                "ddp = DistributedDataParallel(model, bucket_cap_mb=5); ddp.register_comm_hook("
                "ddp.process_group, default_hooks.fp16_compress_hook), from torch.distributed.algorithms.ddp_comm_hooks"
            ),
        ),
        (
            "accelerate",
            {"bucket_cap_mb": 5},
            (
                "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs("
                "bucket_cap_mb=5, comm_hook=DDPCommunicationHookType.FP16)])"
            ),
        ),
        (
            "transformers",
            {"bucket_cap_mb": 5},
            (
                "TrainingArguments(ddp_bucket_cap_mb=5), and fp16_compress_hook, which can be set with "
                "register_comm_hook, but not through transformers"
            ),
        ),
    ],
)
def test_the_line_to_write_holds_the_hook(framework: str | None, arguments: dict[str, float], code: str) -> None:
    job = Job("run", (), 2, 2, (), "cpu", "gloo", "2.13.0", (), framework=framework)
    assert code_of(Candidate(arguments, "fp16_compress_hook"), job) == code


@pytest.mark.parametrize(
    ("framework", "code"),
    [
        (None, "DistributedDataParallel(model, bucket_cap_mb=5)"),
        ("transformers", "TrainingArguments(ddp_bucket_cap_mb=5)"),
    ],
)
def test_without_a_hook_none_is_in_the_code(framework: str | None, code: str) -> None:
    job = Job("job", (), 2, 2, (), "cpu", "gloo", "2.13", (), framework=framework)
    assert code_of(CAP, job) == code


def test_a_network_that_was_measured_is_the_job_s_own() -> None:
    """However fast it is, the unchanged job takes as long as it took."""
    for ns_per_byte in (0.3, 1.0, 3.0):
        listed, unpredicted = shortlisted(known(), network(Link(Cost(0.0, ns_per_byte))), 4, allow_lossy=False)
        assert unpredicted is None
        assert listed.now.forecast is not None
        measured_ns = shortlisted(known(), None, 4, allow_lossy=False)[0].now.forecast
        assert measured_ns is not None
        assert listed.now.forecast.step_ns == pytest.approx(measured_ns.step_ns)


def test_a_network_among_other_ranks_is_refused() -> None:
    with pytest.raises(DdpprofError, match="--network was measured with 8 ranks, but the job has 2"):
        shortlisted(known(), network(world_size=8), 4, allow_lossy=False)


@pytest.mark.parametrize(
    ("version", "has_lists"), [("2.13.0+cpu", True), ("3.0", True), ("2.9.1", False), ("2.12", False), (None, False)]
)
def test_lists_of_caps_only_where_torch_has_them(version: str | None, has_lists: bool) -> None:
    job = replace(known().report.job, torch=version)
    assert knobs_of(MODULE, job, allow_lossy=False).accepted.lists is has_lists


@pytest.mark.parametrize(
    ("module", "num_micro_steps", "arguments"),
    [
        pytest.param({"graph_is_static": True, "unused": ("p0",)}, 1, {"static_graph": True}, id="always-the-same"),
        pytest.param({"graph_is_static": True, "unused": ("p0",)}, 2, {}, id="gradients-accumulate"),
        pytest.param({"graph_is_static": True, "unused": ()}, 2, {"find_unused_parameters": False}, id="none-unused"),
        pytest.param({"graph_is_static": False, "unused": ("p0",)}, 1, {}, id="it-changes"),
        pytest.param({"graph_is_static": True, "unused": (), "settings": {}}, 1, {}, id="no-search"),
    ],
)
def test_a_search_that_is_not_needed_is_left_out(
    module: dict[str, Any], num_micro_steps: int, arguments: dict[str, bool]
) -> None:
    searching = {"settings": {"find_unused_parameters": True}, "num_lacking_passes": None, **module}
    made = knobs_of(
        replace_struct(MODULE, **searching),
        replace(known().report.job, num_micro_steps=num_micro_steps),
        allow_lossy=False,
    )
    assert made.without_search == arguments


@pytest.mark.parametrize(
    ("own", "others", "spread", "losing"),
    [
        pytest.param([(103.0,) * 6] * 2, [(100.0,) * 6] * 2, 0.0, True, id="beyond-2-percent"),
        pytest.param([(300.0,) * 6], [(100.0,) * 6], 0.0, False, id="one-start-tells-nothing"),
        pytest.param([(101.5,) * 6] * 2, [(100.0,) * 6] * 2, 0.0, False, id="as-good"),
        pytest.param([(103.0,) * 6] * 2, [(100.0,) * 6] * 2, 0.05, False, id="starts-differ-by-more"),
        pytest.param(
            [(90.0, 95, 103, 110, 115, 120)] * 2, [(90.0, 92, 100, 110, 118, 119)] * 2, 0.0, False, id="noise"
        ),
        pytest.param([(50.0,) * 6] * 2, [(100.0,) * 6] * 2, 0.0, False, id="winning"),
        pytest.param([()], [(100.0,) * 6], 0.0, False, id="not-run"),
        pytest.param(
            [(50.0,), (200.0,) * 6, (200.0,) * 6], [(), (100.0,) * 6, (100.0,) * 6], 0.0, True, id="only-rounds-of-both"
        ),
        pytest.param([(111.0,)] * 2, [(100.0,)] * 2, 0.0, True, id="one-time-10-percent"),
        pytest.param([(109.0,)] * 2, [(100.0,)] * 2, 0.0, False, id="one-time-9-percent"),
    ],
)
def test_a_variant_loses_where_it_is_slower_beyond_doubt(
    own: list[Steps], others: list[Steps], spread: float, losing: bool
) -> None:
    assert is_losing(own, others, spread) is losing


def test_starts_differ_as_their_medians_do() -> None:
    assert start_spread([(100.0, 1.0, 200.0), (), (150.0,)]) == 0.5
    assert start_spread([]) == 0.0
