"""Times are those of the script's own clock, which on a GPU is that of events on the device."""

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import pytest
from bootstraps import bootstrap_interval

from ddpprof.doctor.checks import Context, Setup
from ddpprof.doctor.installation import Trained, ddpprof_command, run_command
from ddpprof.load.run import load_run
from ddpprof.report import Report
from ddpprof.report.build import build_report
from ddpprof.topics.buckets.steps import bucket_steps

Train = Callable[..., Trained]

PROFILED = 10
SHORT = ("--skip-first", "3", "--cost-steps", "0", "--steps", "10")
WITH_LIGHT_STEPS = ("--skip-first", "3", "--cost-steps", "8", "--steps", "10")


def report(trained: Trained) -> Report:
    return build_report(load_run(trained.run))


def test_steps_their_parts_and_what_follows_the_window(train: Train, setup: Setup) -> None:
    """On a CPU steps are some 50 ms long, for the 0.3 ms of ddpprof between two steps are no part of them."""
    around = 60 if setup.device == "cpu" else 110
    window = ("--skip-first", str(around), "--cost-steps", "0", "--warmup", "1", "--steps", str(PROFILED))
    trained = train("timed.py", "--batch=2048", f"--steps={2 * around + PROFILED + 1}", trace=window)
    own_ns: list[int] = [0, *trained.told["steps_ns"]]  # by number; only the end of step 0 is known
    steps = [step for step in report(trained).ranks[0].steps if step.parts is not None]
    assert abs(median(step.duration_ns / own_ns[step.step] - 1 for step in steps)) <= 0.02
    assert max(abs(1 - step.parts.step_ns / step.duration_ns) for step in steps if step.parts) <= 0.02
    low, _ = bootstrap_interval(np.divide, own_ns[around + PROFILED + 3 :], own_ns[around // 2 : around])
    assert low <= 1.02, "part of the recording stays active"


def test_the_recorded_step_replayed_with_its_own_settings(train: Train, context: Context, ranks_at_once: int) -> None:
    run = train("timed.py", "--width=1024", "--batch=128", trace=WITH_LIGHT_STEPS).run
    said = run_command(context, ddpprof_command("whatif", str(run), "--format", "json"), 60)
    assert abs(json.loads(said)["replay_error"]) < 0.10


def test_a_rank_that_is_late_by_a_known_time(train: Train, ranks_at_once: int) -> None:
    slow = ranks_at_once - 1
    options = (f"--slow-rank={slow}", "--delay-s=0.1", "--width=64", "--batch=8", "--steps=26")
    across = report(train("timed.py", *options, trace=WITH_LIGHT_STEPS)).across
    assert across is not None
    assert across.stragglers is not None
    assert [one.rank for one in across.stragglers.stragglers] == [slow]
    assert across.stragglers.stragglers[0].late_ns == pytest.approx(100e6, rel=0.10)


def test_buckets_as_a_comm_hook_of_the_script_sees_them(train: Train, setup: Setup, ranks_at_once: int) -> None:
    """Events on the device do not time gloo, which takes the gradients to the host."""
    trained = train("hooked.py", "--steps=20", trace=SHORT)
    steps: list[list[dict[str, Any]]] = trained.told["steps"]
    shown = [(row.index, row.num_bytes) for row in report(trained).buckets]
    assert shown == [(one["index"], one["num_bytes"]) for one in steps[-1]]
    if setup.device == "cpu" or setup.backend == "nccl":
        ratios = bucket_ratios(trained, steps, since_launch=setup.device == "cpu")
        assert sorted(ratios) == sorted(index for index, _ in shown)
        assert [median(of_bucket) for of_bucket in ratios.values()] == pytest.approx([1.0] * len(shown), abs=0.05)


def bucket_ratios(trained: Trained, steps: list[list[dict[str, Any]]], since_launch: bool) -> dict[int, list[float]]:
    """Return by bucket how long its all-reduces on rank 0 took according to the trace, as ratio to the hook's times.

    `since_launch`: the hook's time counts from the launch, which gloo's threads may pick up late.
    """
    found: dict[int, list[float]] = {}
    first = load_run(trained.run).ranks[0]
    for row in bucket_steps(first, first.record.modules if first.record is not None else ()):
        began = row.launched_ns if since_launch else row.started_ns
        if began is not None and row.finished_ns is not None:
            (noted,) = (one for one in steps[row.step] if one["index"] == row.index)
            found.setdefault(row.index, []).append((row.finished_ns - began) / noted["ns"])
    return found


def test_exposed_communication_is_what_a_step_is_longer_than_under_no_sync(train: Train, own_gpus: None) -> None:
    """Steps with and without `no_sync` alternate. Ranks that share cores take them from each other."""
    trained = train("unsynced.py", "--steps=40", trace=("--skip-first", "20", "--cost-steps", "0", "--steps", "10"))
    exposed_ns = median(step.exposed_ns for step in report(trained).ranks[0].measured_steps)
    low, high = bootstrap_interval(np.subtract, trained.told["with_ns"], trained.told["without_ns"])
    assert low <= exposed_ns <= high


def test_a_line_that_reads_the_device_and_the_time_that_it_then_idles(train: Train, setup: Setup) -> None:
    """The host sleeps for 20 ms after the read, while nothing is queued."""
    if setup.device == "cpu":
        pytest.skip("it needs a GPU")
    trained = train("reading.py", "--delay-s=0.02", "--steps=26", trace=WITH_LIGHT_STEPS)
    made = report(trained)
    (finding,) = [one for one in made.findings if one.rule == "host-reads"]
    assert finding.gain_ns == pytest.approx(20e6, rel=0.25)
    assert "reading.py:26 in train calls item() once per step" in finding.evidence


def test_a_line_of_the_script_during_which_the_device_idles(train: Train, setup: Setup) -> None:
    if setup.device == "cpu":
        pytest.skip("it needs a GPU")
    trained = train("reading.py", "--delay-s=0.02", "--steps=26", trace=WITH_LIGHT_STEPS)
    (finding,) = [one for one in report(trained).findings if one.rule == "script-code"]
    assert finding.gain_ns == pytest.approx(20e6, rel=0.25)
    assert finding.title.endswith("mostly at reading.py:27 in train")


def test_copies_of_batches_that_are_not_pinned(train: Train, setup: Setup) -> None:
    """Each step copies 67 MB, while the device has nothing else to do."""
    if setup.device == "cpu":
        pytest.skip("it needs a GPU")
    trained = train("reading.py", "--delay-s=0", "--copies", "--steps=26", trace=WITH_LIGHT_STEPS)
    (finding,) = [one for one in report(trained).findings if one.rule == "exposed-copies"]
    assert finding.advice.startswith("Pin the batches")
    assert finding.numbers["pageable_ns"] == finding.numbers["exposed_ns"] > 1e6


def test_a_line_that_empties_the_cache(train: Train, setup: Setup) -> None:
    if setup.device == "cpu":
        pytest.skip("it needs a GPU")
    trained = train("reading.py", "--delay-s=0", "--copies", "--empties-cache", "--steps=26", trace=WITH_LIGHT_STEPS)
    (finding,) = [one for one in report(trained).findings if one.rule == "device-allocations"]
    assert "in train calls torch.cuda.empty_cache()" in finding.title


def test_the_exchanges_of_sync_batch_norm(train: Train, own_gpus: None, with_nccl: None) -> None:
    """Each layer exchanges its statistics once in the forward, and the sums of its gradients once in the backward."""
    findings = report(train("synced.py", trace=())).findings
    (found,) = [one for one in findings if one.rule == "layer-collectives"]
    assert (found.numbers["num_forward"], found.numbers["num_backward"]) == (3, 3)
    assert found.numbers["exposed_ns"] > 0
