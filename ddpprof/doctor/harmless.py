"""Does recording leave a training unchanged? The same script runs with and without ddpprof."""

from __future__ import annotations

from collections.abc import Iterator

from ddpprof.doctor.check import CheckResult, Context, judge, skip
from ddpprof.doctor.training import Trained, run_script
from ddpprof.load.run import load_run

_WINDOW = ["--skip-first", "2", "--cost-steps", "4", "--warmup", "1", "--steps", "3"]
_AFTER_WINDOW = 12
"""first step that is free of recording"""
_PAUSE_SHARE = 10
"""least ratio of the process group's timeout to a pause; other ranks wait for a paused one until that timeout"""


def check_unchanged(context: Context) -> Iterator[CheckResult]:
    options = [*context.setup.options, f"--window={_AFTER_WINDOW}"]
    without = run_script(context, "plain.py", *options)
    traced = run_script(context, "plain.py", *options, trace=_WINDOW)
    yield judge(
        "parameters",
        traced.told["parameters"] == without.told["parameters"],
        without.told["parameters"][:12],
        traced.told["parameters"][:12],
        "Recording changes the result of training, which it must never do.",
    )
    yield judge(
        "collectives",
        traced.told["collectives"] == without.told["collectives"],
        f"{without.told['collectives']}, as without ddpprof",
        traced.told["collectives"],
        "Recording adds its own collectives, which may hang a job.",
    )
    yield from _on_devices(context, without, traced)
    yield _judge_pause(traced)


def _on_devices(context: Context, without: Trained, traced: Trained) -> list[CheckResult]:
    if context.setup.device == "cpu":
        reason = "it needs a GPU: on a CPU there is nothing to synchronise, and there are no contexts"
        return [skip("synchronising-calls", reason), skip("foreign-contexts", reason)]
    calls = [trained.told["synchronising_calls"] for trained in (without, traced)]
    foreign = [trained.told["foreign_contexts"] for trained in (without, traced)]
    return [
        judge(
            "synchronising-calls",
            calls[1] <= calls[0],
            f"{calls[0]} outside the window, as without ddpprof",
            calls[1],
            "Recording waits for the device in steps that it does not profile, and slows them.",
        ),
        judge(
            "foreign-contexts",
            set(foreign[1]) <= set(foreign[0]),
            f"on devices {foreign[0]}, as without ddpprof" if foreign[0] else "none",
            f"on devices {foreign[1]}" if foreign[1] else "none",
            "Recording creates contexts on other ranks' devices, and takes their memory.",
        ),
    ]


def _judge_pause(traced: Trained) -> CheckResult:
    pauses_ns = [rank.record.profiler_pause_ns or 0 for rank in load_run(traced.run).ranks if rank.record]
    pause_s = max(pauses_ns, default=0) / 1e9
    most_s = float(traced.told["patience_s"]) / _PAUSE_SHARE
    return judge(
        "export-pause",
        pause_s < most_s,
        f"less than {most_s:g} s, a tenth of the process group's timeout",
        f"{pause_s:.2f} s",
        "Training pauses while the trace is written, and other ranks may give up. Profile fewer steps.",
    )
