"""Predictions for a run from Python: the step with other buckets."""

from __future__ import annotations

from collections.abc import Sequence

from ddpprof.files import Location, location
from ddpprof.pipeline.analysis import analysed
from ddpprof.predict.setting import BucketCaps, Setting
from ddpprof.report.run_profile import NO_BENCHES, profile_run
from ddpprof.report.whatif import Asked, WhatIf, build_whatif


def whatif(path: str | Location, bucket_cap_mb: Sequence[float] = ()) -> WhatIf:
    """Predict the step of a run with each of these bucket caps, or with a series of them if none is given.

    Raises `DdpprofError` if the run lacks the data. ``ddpprof whatif`` can predict more than this function.
    """
    with analysed(location(path) if isinstance(path, str) else path) as analysis:
        profiled = profile_run(analysis.to_replay(), NO_BENCHES)
        asked = Asked(Setting(), "", tuple(map(BucketCaps, bucket_cap_mb)))
        return build_whatif(analysis.report.job, profiled, asked, analysis.report.step_ns)
