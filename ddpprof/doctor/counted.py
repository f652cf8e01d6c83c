"""Are steps and parameters told as the script has them, whatever it does?"""

from __future__ import annotations

from collections.abc import Sequence

from ddpprof.doctor.check import Context, Outcome, judge
from ddpprof.doctor.training import Trained, run_script
from ddpprof.load.run import load_run
from ddpprof.model import Record

_GROWTH_BYTES = 100_000_000


def check_rotating_branches(context: Context) -> Sequence[Outcome]:
    """Every parameter trains, though none does in every step: none may be called unused."""
    record = _record(run_script(context, "rotating.py", *context.setup.options, trace=()))
    unused = [module.unused for module in record.modules]
    names = [name for of_module in unused for name in of_module or ()]
    return [
        judge(
            "unused-parameters",
            not names and bool(unused),
            "none",
            ", ".join(names) or ("none" if None not in unused and unused else "not known"),
            "The report would advise to freeze parameters that train.",
        )
    ]


def check_amp_steps(context: Context) -> Sequence[Outcome]:
    return [_judge_steps(context, "amp", "steps that GradScaler skips")]


def check_closure_steps(context: Context) -> Sequence[Outcome]:
    return [_judge_steps(context, "closure", "optimizer.step(closure)")]


def check_compiled_steps(context: Context) -> Sequence[Outcome]:
    return [_judge_steps(context, "compiled", "torch.compile")]


def _judge_steps(context: Context, kind: str, what: str) -> Outcome:
    trained = run_script(context, "odd_steps.py", *context.setup.options, f"--kind={kind}", trace=())
    steps, found = trained.told["num_steps"], _record(trained).num_steps
    return judge(
        f"{kind}-steps", steps == found, f"{steps} steps", f"{found} steps", f"Steps are miscounted with {what}."
    )


def check_graph_replay(context: Context) -> Sequence[Outcome]:
    """A whole step as a CUDA graph: only its capture calls DDP, and the window must not stay open for its replays."""
    trained = run_script(context, "graphed.py", *context.setup.options, trace=())
    grown = trained.told["grown_bytes"]
    return [
        judge(
            "graph-memory",
            grown < _GROWTH_BYTES,
            f"less than {_GROWTH_BYTES // 10**6} MB more",
            f"{grown // 10**6} MB",
            "The profiler goes on through the replays, and its memory grows until the job ends.",
        )
    ]


def _record(trained: Trained) -> Record:
    (first, *_) = load_run(str(trained.run)).ranks
    assert first.record is not None
    return first.record
