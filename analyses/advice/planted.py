"""The cases: a job, what is planted in it, and the rule that should find it.

`ddpprof try` mends some faults by itself (`Plant.is_mended_by_ddpprof`). For the others it compares the script with its
mended form (``train.py … --mended``), as a user would who follows the advice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Plant:
    """One thing to change in a training."""

    rules: tuple[str, ...]
    """rules that name it; any of them is right"""
    models: tuple[str, ...]
    """models in which it costs time"""
    gbits: tuple[float | None, ...] = (None,)
    """rates of the links, in Gbit/s; ``None`` is loopback"""
    is_mended_by_ddpprof: bool = True


PLANTS = {
    "every_pass": Plant(("reduces-every-pass",), ("mlp", "transformer"), (None, 1)),
    "one_bucket": Plant(
        ("trailing-communication", "buckets-too-large", "better-buckets"), ("mlp", "transformer"), (1, 2)
    ),
    "tiny_buckets": Plant(("buckets-too-small", "better-buckets"), ("transformer", "convnet"), (None, 1)),
    "unused_search": Plant(("find-unused-for-nothing",), ("mlp", "transformer"), (None, 1)),
    "same_unused": Plant(("static-graph", "find-unused-for-nothing", "unused-parameters"), ("mlp", "transformer")),
    "buffers": Plant(("buffers-broadcast",), ("mlp", "convnet"), (None, 1)),
    "copies": Plant(("gradient-copies",), ("mlp", "convnet")),
    "slow_loader": Plant(("idle-for-data",), ("mlp", "transformer"), (None, 1)),
    "many_threads": Plant(("threads-exceed-cores",), ("mlp", "convnet")),
    "metrics": Plant(("metrics-every-step",), ("mlp", "transformer"), (1, 0.5), is_mended_by_ddpprof=False),
    "averaging": Plant(
        ("parameter-averaging", "gradient-averaging"), ("mlp", "convnet"), (1,), is_mended_by_ddpprof=False
    ),
    "barrier": Plant(("barrier-in-loop",), ("mlp", "transformer"), (1,), is_mended_by_ddpprof=False),
    "dense_embeddings": Plant(("dense-embedding-gradients",), ("embeddings",), (None, 1)),
    "script_code": Plant(("script-code",), ("mlp", "transformer"), (None, 1), is_mended_by_ddpprof=False),
    "anomaly": Plant(("debugging-setting",), ("transformer", "convnet")),
    "discarded": Plant(("gradients-discarded",), ("gan",), (None, 1), is_mended_by_ddpprof=False),
    "uneven": Plant(("uneven-work",), ("mlp", "transformer"), is_mended_by_ddpprof=False),
    "exchange": Plant(("layer-collectives",), ("mlp", "transformer"), (None, 1), is_mended_by_ddpprof=False),
    "sharded_optimizer": Plant(("optimizer-broadcasts",), ("mlp", "transformer"), (1,), is_mended_by_ddpprof=False),
    "gradient_hooks": Plant(("code-in-backward",), ("mlp", "transformer"), is_mended_by_ddpprof=False),
    "averages": Plant(("code-outside-passes",), ("mlp", "transformer"), is_mended_by_ddpprof=False),
    "late_stem": Plant(("late-parameter",), ("mlp",), (1,), is_mended_by_ddpprof=False),
    "forgotten": Plant(("untrained-parameters",), ("mlp",), is_mended_by_ddpprof=False),
    "teacher": Plant(("untrained-parameters",), ("mlp",), is_mended_by_ddpprof=False),
    "double": Plant(("double-precision",), ("mlp",), is_mended_by_ddpprof=False),
    "unfused": Plant(("optimizer-not-fused",), ("transformer",), is_mended_by_ddpprof=False),
    "one_graph": Plant(("compiled-graphs",), ("mlp", "transformer"), (1,)),
    "straggler": Plant(("straggler", "slow-rank"), ("mlp", "convnet"), (None, 1), is_mended_by_ddpprof=False),
    "shared_core": Plant(("ranks-share-cores",), ("mlp", "transformer"), is_mended_by_ddpprof=False),
    "padded": Plant(("padded-batches",), ("transformer",), (None, 1), is_mended_by_ddpprof=False),
    "metrics_in_step": Plant(("metrics-in-step",), ("transformer",), is_mended_by_ddpprof=False),
    "unused_forwards": Plant(("unused-forwards",), ("mlp", "convnet"), (None, 1), is_mended_by_ddpprof=False),
    "recompiled": Plant(("recompilations",), ("mlp",), is_mended_by_ddpprof=False),
    "other_traffic": Plant(("other-traffic",), ("mlp", "transformer"), (1,), is_mended_by_ddpprof=False),
    "calls_in_a_row": Plant(("rpcs-in-a-row",), ("mlp",), is_mended_by_ddpprof=False),
}
"""what is planted, by its name"""


@dataclass(frozen=True)
class Case:
    plant: str | None
    """``None`` if nothing is planted"""
    model: str
    gbit: float | None
    ranks: int = 2
    framework: str | None = None

    @property
    def name(self) -> str:
        link = "loopback" if self.gbit is None else f"{self.gbit:g}gbit"
        under = "" if self.framework is None else f"-{self.framework}"
        return f"{self.plant or 'nothing'}-{self.model}-{link}-{self.ranks}{under}"


def is_found(plant: str | None, findings: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a right rule is among the first two findings with advice; true if nothing is planted."""
    advised = [one["rule"] for one in findings if is_advised(one)]
    return plant is None or any(rule in PLANTS[plant].rules for rule in advised[:2])


def is_advised(finding: Mapping[str, Any]) -> bool:
    """Return whether the finding is beyond noise, or worth trying."""
    return not finding["is_noise"] or finding.get("is_worth_trying", False)


CASES = (
    *(
        Case(name, model, gbit)
        for name, plant in PLANTS.items()
        for model in plant.models
        for gbit in plant.gbits
    ),
    *(
        Case(name, "mlp", 1, ranks=4)
        for name in ("every_pass", "one_bucket", "unused_search", "slow_loader", "metrics")
    ),
    Case("one_bucket", "embeddings", 1),
    Case("unused_search", "embeddings", None),
    *(
        Case(name, "transformer", 1, framework=framework)
        for framework in ("accelerate", "lightning", "transformers")
        for name in ("one_bucket", "unused_search")
    ),
    *(Case(None, model, gbit) for model in ("mlp", "convnet", "transformer") for gbit in (None, 0.5, 1, 2, 4)),
    *(Case(None, "gan", gbit) for gbit in (None, 1)),
)  # fmt: skip
