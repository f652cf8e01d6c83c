"""Are steps and parameters counted as in the script, whatever the script does?"""

from __future__ import annotations

from collections.abc import Iterator

from ddpprof.doctor.check import CheckResult, Context, judge
from ddpprof.doctor.training import Trained, run_script
from ddpprof.load.run import load_run
from ddpprof.model import Record

_GROWTH_BYTES = 100_000_000


def check_rotating_branches(context: Context) -> Iterator[CheckResult]:
    """Check that no parameter is called unused if every one trains, though none in every step."""
    record = _record(run_script(context, "rotating.py", *context.setup.options, trace=()))
    unused = [module.unused for module in record.modules]
    names = [name for of_module in unused for name in of_module or ()]
    yield judge(
        "unused-parameters",
        not names and bool(unused),
        "none",
        ", ".join(names) or ("none" if None not in unused and unused else "unknown"),
        "The report would advise freezing parameters that train.",
    )


def check_amp_steps(context: Context) -> Iterator[CheckResult]:
    yield _judge_steps(context, "amp", "steps that GradScaler skips")


def check_closure_steps(context: Context) -> Iterator[CheckResult]:
    yield _judge_steps(context, "closure", "optimizer.step(closure)")


def check_compiled_steps(context: Context) -> Iterator[CheckResult]:
    yield _judge_steps(context, "compiled", "torch.compile")


def _judge_steps(context: Context, kind: str, what: str) -> CheckResult:
    trained = run_script(context, "odd_steps.py", *context.setup.options, f"--kind={kind}", trace=())
    steps, found = trained.told["num_steps"], _record(trained).num_steps
    return judge(
        f"{kind}-steps", steps == found, f"{steps} steps", f"{found} steps", f"Steps are miscounted with {what}."
    )


def check_graph_replay(context: Context) -> Iterator[CheckResult]:
    """Check that a step captured as a CUDA graph, where only the capture calls DDP, does not leave the window open."""
    trained = run_script(context, "graphed.py", *context.setup.options, trace=())
    grown = trained.told["grown_bytes"]
    yield judge(
        "graph-memory",
        grown < _GROWTH_BYTES,
        f"less than {_GROWTH_BYTES // 10**6} MB more",
        f"{grown // 10**6} MB",
        "The profiler keeps running during the replays, and its memory grows until the job ends.",
    )


def _record(trained: Trained) -> Record:
    (first, *_) = load_run(trained.run).ranks
    assert first.record is not None
    return first.record
