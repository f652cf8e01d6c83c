"""Settings of DDP and of the job as hyperparameters, and medians over steps as metrics, to compare runs in a table."""

from __future__ import annotations

import re

from ddpprof.comparison.compare import medians_ns
from ddpprof.layout import clean
from ddpprof.render.tensorboard.event_file import EventFile
from ddpprof.render.tensorboard.scalars import NS_PER_MS, Scalar, write_scalar
from ddpprof.report import Report

METRIC = "ddp_run/"
"""prefix of metrics such as ``ddp_run/step_ms``, which are means over the ranks, and then medians over the steps"""
_LONGEST = 200
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,12})?")


def write_hparams(file: EventFile, report: Report) -> None:
    from tensorboard.plugins.hparams import summary_v2 as hparams

    settings, metrics = settings_of(report), metrics_of(report)
    file.add(hparams.hparams_pb(settings, trial_id=clean(report.job.name, most=_LONGEST)))
    for tag, value in metrics.items():
        write_scalar(file, Scalar(0, tag, value), "mean over ranks, median over steps")


def settings_of(report: Report) -> dict[str, str | int | float]:
    """Return the known settings. DDP's own are those of its first module."""
    job = report.job
    known: dict[str, str | int | float | None] = {
        "world_size": job.world_size,
        "hosts": len(job.hosts) or None,
        "backend": job.backend,
        "device": job.device,
        "torch": job.torch,
    }
    for module in job.modules[:1]:
        known |= {"comm_hook": module.comm_hook or "none", "buckets": module.num_buckets}
        known |= module.settings
    return {name: _value(value) for name, value in known.items() if value is not None}


def _value(value: str | float) -> str | int | float:
    """Return a number as a number, since TensorBoard sorts by it."""
    if not isinstance(value, str):
        return value
    return float(value) if _NUMBER.fullmatch(value) else clean(value, most=_LONGEST)


def metrics_of(report: Report) -> dict[str, float]:
    """Return the metrics by tag. They are the numbers that `ddpprof compare` shows for this run."""
    return {f"{METRIC}{name.replace(' ', '_')}_ms": ns / NS_PER_MS for name, ns in medians_ns(report).items()}
