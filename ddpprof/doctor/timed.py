"""Are times right? The script's own clock, or events on its device, are compared with ddpprof's report of the run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from statistics import median
from typing import Any

import numpy as np

from ddpprof.doctor.check import CannotCheck, CheckResult, Context, judge
from ddpprof.doctor.training import Trained, ddpprof_command, run_command, run_script
from ddpprof.load.run import load_run
from ddpprof.model import Run
from ddpprof.report import Report, build_report
from ddpprof.report.rank_summary import bucket_steps

_WITHIN = 0.02
_REPLAY_WITHIN = 0.10
_BUCKETS_WITHIN = 0.05
_DELAY_WITHIN = 0.10
_DELAY_S = 0.1
_PROFILED = 10
_LONG_STEPS = "--batch=2048"
"""steps of some 50 ms on a CPU: ddpprof's own work between two steps, some 0.3 ms, is not part of a profiled step"""


def check_steps(context: Context) -> Iterator[CheckResult]:
    around = 60 if context.setup.device == "cpu" else 110
    window = ["--skip-first", str(around), "--cost-steps", "0", "--warmup", "1", "--steps", str(_PROFILED)]
    trained = run_script(
        context, "timed.py", *context.setup.options, _LONG_STEPS, f"--steps={2 * around + _PROFILED + 1}", trace=window
    )
    own_ns: list[int] = [0, *trained.told["steps_ns"]]  # by number; only the end of step 0 is known
    steps = [step for step in _report(trained).ranks[0].steps if step.parts is not None]
    if not steps:
        raise CannotCheck("no step was profiled")
    own, reported = median(own_ns[step.step] for step in steps), median(step.duration_ns for step in steps)
    apart = median(step.duration_ns / own_ns[step.step] - 1 for step in steps)
    parts = max(abs(1 - step.parts.step_ns / step.duration_ns) for step in steps if step.parts)
    before, after = own_ns[around // 2 : around], own_ns[around + _PROFILED + 3 :]
    yield judge(
        "step-time",
        abs(apart) <= _WITHIN,
        f"{own / 1e6:.2f} ms by the script, within {_WITHIN:.0%}",
        f"{reported / 1e6:.2f} ms ({apart:+.1%} in most steps)",
        "Reported steps are longer or shorter than the real ones.",
    )
    yield judge(
        "parts-of-step",
        parts <= _WITHIN,
        f"parts that add up to the step, within {_WITHIN:.0%}",
        f"{parts:.1%} apart",
        "The parts of a step do not add up to it.",
    )
    yield _judge_after(before, after)


def _judge_after(before: Sequence[int], after: Sequence[int]) -> CheckResult:
    low, high = bootstrap_interval(np.divide, after, before)
    return judge(
        "after-the-window",
        low <= 1 + _WITHIN,
        f"steps as long as before, or less than {_WITHIN:.0%} longer",
        f"{low:.3f} to {high:.3f} of it",
        "Part of the recording stays active and slows training, for example a profiler that is still attached.",
    )


def bootstrap_interval(compare: np.ufunc, values: Sequence[int], others: Sequence[int]) -> tuple[float, float]:
    """Return a 99 % bootstrap interval for the ratio or the difference of the two medians."""
    draw = np.random.default_rng(0)
    first, second = (np.median(draw.choice(np.asarray(one), (2000, len(one))), axis=1) for one in (values, others))
    low, high = np.quantile(compare(first, second), [0.005, 0.995])
    return float(low), float(high)


def check_replay(context: Context) -> Iterator[CheckResult]:
    """Check that the recorded step, replayed with its own settings, has the recorded length."""
    trained = run_script(
        context, "timed.py", *context.setup.options, "--width=1024", "--batch=128", trace=_WITH_LIGHT_STEPS
    )
    printed = run_command(context, ddpprof_command("whatif", str(trained.run), "--format", "json"), 60)
    error = float(json.loads(printed)["replay_error"])
    yield judge(
        "replay",
        abs(error) < _REPLAY_WITHIN,
        f"the recorded step, within {_REPLAY_WITHIN:.0%}",
        f"{error:+.1%}",
        "Predictions of `ddpprof whatif` and `ddpprof tune` start from a step that differs from the recorded one.",
    )


_WITH_LIGHT_STEPS = ["--skip-first", "3", "--cost-steps", "8", "--steps", "10"]
_SHORT = ["--skip-first", "3", "--cost-steps", "0", "--steps", "10"]


def check_delay(context: Context) -> Iterator[CheckResult]:
    """Check that a last rank which sleeps in every step is reported, with the right delay."""
    slow = context.setup.num_ranks - 1
    options = [*context.setup.options, f"--slow-rank={slow}", f"--delay-s={_DELAY_S}", "--width=64", "--batch=8"]
    found = _report(run_script(context, "timed.py", *options, "--steps=26", trace=_WITH_LIGHT_STEPS)).across
    late = found.stragglers.stragglers if found is not None and found.stragglers is not None else ()
    shown = ", ".join(f"rank {one.rank}, {one.late_ns / 1e6:.1f} ms" for one in late)
    yield judge(
        "delay",
        len(late) == 1 and late[0].rank == slow and abs(late[0].late_ns / 1e9 / _DELAY_S - 1) <= _DELAY_WITHIN,
        f"rank {slow} is late by {_DELAY_S * 1e3:.0f} ms, within {_DELAY_WITHIN:.0%}",
        shown or "no rank is late",
        "The report would blame the wrong rank, or state a wrong delay.",
    )


def check_buckets(context: Context) -> Iterator[CheckResult]:
    """Compare the report's buckets with those noted by a comm hook of the script."""
    trained = run_script(context, "hooked.py", *context.setup.options, "--steps=20", trace=_SHORT)
    run = load_run(trained.run)
    steps: list[list[Mapping[str, Any]]] = trained.told["steps"]
    noted = [(one["index"], one["num_bytes"]) for one in steps[-1]]
    found = [(row.index, row.num_bytes) for row in build_report(run).buckets]
    pairs = _bucket_times(run, steps, since_launch=context.setup.device == "cpu")
    off = {index: median(known / own - 1 for own, known in of_bucket) for index, of_bucket in pairs.items()}
    yield judge(
        "bucket-bytes",
        noted == found,
        ", ".join(f"{index}: {num_bytes} bytes" for index, num_bytes in noted),
        ", ".join(f"{index}: {num_bytes} bytes" for index, num_bytes in found),
        "The bucket table does not show the buckets that the reducer sent.",
    )
    yield judge(
        "bucket-times",
        len(off) == len(noted) and all(abs(one) <= _BUCKETS_WITHIN for one in off.values()),
        f"{_shown_ms(own for own, _ in chain(*pairs.values()))} by the hook, within {_BUCKETS_WITHIN:.0%}",
        ", ".join(f"bucket {index}: {off[index]:+.1%}" for index in sorted(off)) or "no times",
        "The bucket table shows wrong times.",
    )


def _bucket_times(
    run: Run, steps: Sequence[Sequence[Mapping[str, Any]]], since_launch: bool
) -> dict[int, list[tuple[int, int]]]:
    """Return by bucket how long each of its all-reduces on rank 0 took, according to the hook and to the trace, ns.

    `since_launch`: the hook's time counts from the launch, which gloo's threads may pick up late.
    """
    pairs: dict[int, list[tuple[int, int]]] = {}
    first = run.ranks[0]
    for row in bucket_steps(first, first.record.modules if first.record is not None else ()):
        began = row.launched_ns if since_launch else row.started_ns
        if began is not None and row.finished_ns is not None:
            (noted,) = (one for one in steps[row.step] if one["index"] == row.index)
            pairs.setdefault(row.index, []).append((noted["ns"], row.finished_ns - began))
    return pairs


def _shown_ms(times_ns: Iterable[int]) -> str:
    found = sorted(times_ns)
    return f"{found[0] / 1e6:.2f} to {found[-1] / 1e6:.2f} ms" if found else "no times"


def _report(trained: Trained) -> Report:
    return build_report(load_run(trained.run))
