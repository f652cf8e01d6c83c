"""Experiments made by hand: a plan, and the results of its trials."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddpprof.experiments.plan import Experiment, ExperimentKind, Trial, Variant, write_plan
from ddpprof.experiments.results import ExperimentReport, build_experiment
from ddpprof.experiments.trials import StepParts, TrialResult, WrapperParts
from ddpprof.experiments.tuning import TuneReport, Tuning, TuningPlan
from ddpprof.predict.candidates import Candidate, Forecast
from ddpprof.render.html.result_pages import result_page
from ddpprof.render.sections.experiments import experiment_sections
from ddpprof.report import Job

MS = 1_000_000

PLAN = Experiment(
    format=1,
    kind=ExperimentKind.SWEEP,
    command=("train.py", "--lr", "0.1"),
    as_module=False,
    is_wrapped=False,
    variants=(
        Variant(1, "a=1", 1.0, True, True, "a", "b=2", ("a",), {"x": "y"}, {"V": "w"}, {"dim": 1}, True, 5, 2),
        Variant(2),
    ),
    rounds=2,
    skip_first=5,
    timed_steps=20,
)  # fmt: skip


def planned(kind: ExperimentKind, *variants: Variant, **changes: Any) -> Experiment:
    return replace(PLAN, kind=kind, variants=variants, **changes)


def job(world_size: int = 1, **changes: Any) -> Job:
    given: dict[str, Any] = {
        "name": "run", "command": ("train.py",), "num_ranks_read": world_size, "hosts": ("node",), "device": "cpu",
        "backend": "gloo", "torch": "2.13", "modules": (), **changes,
    }  # fmt: skip
    return Job(world_size=world_size, **given)


def result(variant: int, number: int, *blocks_ms: tuple[float, ...], **changes: Any) -> TrialResult:
    """Return a trial of a variant in a round, with blocks of step times."""
    blocks = tuple(tuple(ms * MS for ms in block) for block in blocks_ms)
    return TrialResult(Trial(variant, number), blocks, job=job(), **changes)


def parts(
    wrapper: float = 0, transfer: float = 0, waiting: float = 0, data: float = 0, compute: float = 0
) -> StepParts:
    """Return the parts of a step, given in ms."""
    return StepParts(*(ms * MS for ms in (wrapper, transfer, waiting, data, compute)))


def overhead_report(**changes: Any) -> ExperimentReport:
    """Make a report of steps of 12 ms with DDP and 10 without; its parts explain 1.5 ms."""
    without = {"without_ddp_ns": ((10 * MS, 10 * MS), (10 * MS,))}
    wrapper = WrapperParts(*(ms * MS for ms in (0.25, 0, 0.5, 0.125, 0.25, 0.125)))
    given = {"parts": parts(wrapper=1.25, transfer=0.25, compute=10.5), "wrapper": wrapper, **without, **changes}
    results = [result(0, number, (12, 12), (12,), **given) for number in range(3)]
    report = build_experiment(planned(ExperimentKind.OVERHEAD, Variant(1, ddp_blocks=2), rounds=3), results)
    assert report is not None
    return report


def scaling_report() -> ExperimentReport:
    """Alone 10 ms. Two processes: weak 14 ms, strong 8 of which 5 would be ideal."""
    shared = "--batch-size=64 in total"
    variants = (Variant(1, without_ddp=True), Variant(2), Variant(1, shared, without_ddp=True), Variant(2, shared))
    times = (10, 14, 10, 8)
    made = (
        parts(compute=9, data=1),
        parts(wrapper=1, transfer=1.5, waiting=0.5, data=1, compute=10),
        parts(compute=9, data=1),
        parts(wrapper=0.5, transfer=1, waiting=0.25, data=0.5, compute=5.75),
    )
    transfers, samples = (None, 12 * MS, None, 2 * MS), (32, 64, 32, 32)
    results = [
        result(
            variant,
            number,
            (times[variant],) * 3,
            parts=made[variant],
            slowdown_ns=0.5 * MS if variant else None,
            transfer_ns=transfers[variant],
            num_samples=samples[variant],
        )
        for number in range(3)
        for variant in range(4)
    ]
    results = [replace(one, job=job(variants[one.trial.variant].nproc)) for one in results]
    report = build_experiment(planned(ExperimentKind.SCALE, *variants, rounds=3), results)
    assert report is not None
    return report


def sweep_report(varied: str = "--batch-size", is_work: bool = True) -> ExperimentReport:
    """One process: 4 ms + 1 ms per sample; two: 12 ms + 0.5 ms, so that they cross at 16 samples."""
    variants, results = [], []
    for size in (4, 8, 16, 32):
        for nproc, constant, slope in ((1, 4.0, 1.0), (2, 12.0, 0.5)):
            took = (constant + slope * size * nproc,) * 3
            results += [replace(result(len(variants), number, took), job=job(nproc)) for number in range(2)]
            label = f"{varied}={size}"
            variants.append(Variant(nproc, label, float(size), is_share=is_work, is_work=is_work, varied=varied))
    report = build_experiment(planned(ExperimentKind.SWEEP, *variants), results)
    assert report is not None
    return report


def choice(*candidates: Candidate, **changes: Any) -> TuningPlan:
    """The job as it is, these, and as many others that there are twenty settings."""
    untried = tuple(Candidate({"bucket_cap_mb": 100 + number}) for number in range(19 - len(candidates)))
    return replace(TuningPlan((Candidate(), *candidates), untried, True, None, 12, 9), **changes)


def kept_tuning(choice: TuningPlan, *results: TrialResult, rounds: int = 3, **changes: Any) -> Tuning:
    """Return a tuning on two ranks whose losses never change. `changes`: other fields of `Tuning`."""
    variants = tuple(Variant(2, one.label) for one in choice.candidates)
    same = dict.fromkeys(range(2), ((2.0,), (1.5,), (1.25,)))
    losses = {one.trial: same for one in results}
    given: dict[str, Any] = {"losses": losses, "profile_losses": same, "profile_ns": (), **changes}
    return Tuning(planned(ExperimentKind.TUNE, *variants, rounds=rounds), choice, job(2), results, **given)


def tuning(choice: TuningPlan, *results: TrialResult, rounds: int = 3, **changes: Any) -> TuneReport:
    report = kept_tuning(choice, *results, rounds=rounds, **changes).tune_report()
    assert report is not None
    return report


def steps(variant: int, *rounds_ms: float) -> list[TrialResult]:
    """Six steps of each round."""
    return [result(variant, number, (ms,) * 6) for number, ms in enumerate(rounds_ms)]


def tuning_report() -> ExperimentReport:
    """One bucket 100 ms; of 5 MB 80, and views of them 79 to 81; of 1 MB 125; the hook changes losses."""
    forecast = Forecast(78 * MS, 70 * MS, 86 * MS)
    view = {"bucket_cap_mb": 5, "gradient_as_bucket_view": True}
    listed = choice(
        Candidate({"bucket_cap_mb": 5}, None, forecast, 6),
        Candidate(view, None, forecast, 6),
        Candidate({"bucket_cap_mb": 1}, None, forecast, 24),
        Candidate({"bucket_cap_mb_list": [0.25, 5]}, None, forecast, 7),
    )
    tried = [*steps(0, 100, 101, 99), *steps(1, 80, 81, 79.5), *steps(2, 81, 80.5, 79), *steps(3, 125, 126)]
    tried += steps(4, 90)
    changed = dict.fromkeys(range(2), ((2.0,), (1.5001,), (1.25,)))
    same = dict.fromkeys(range(2), ((2.0,), (1.5,), (1.25,)))
    losses = {one.trial: changed if one.trial.variant == 4 else same for one in tried}
    return tuning(listed, *tried, losses=losses)


def experiment_page(title: str, report: ExperimentReport) -> str:
    return result_page(title, report, experiment_sections(report))


def plan_of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write an experiment of another user, whose command leaves a file ``it-ran`` in the folder."""
    variant = Variant(1, variables={"LD_PRELOAD": "theirs.so"}, any_number=True)
    command = ("sh", "-c", f"touch {folder / 'it-ran'}; exit 3")
    theirs = folder / "theirs"
    theirs.mkdir()
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "their-cache"))
        write_plan(theirs, replace(planned(ExperimentKind.SWEEP, variant, rounds=1), command=command, is_wrapped=True))
    return theirs
