"""Chart of predicted steps, each as a bar of its parts."""

from __future__ import annotations

from dataclasses import fields

from ddpprof.layout import clean
from ddpprof.predict.predict import PredictedParts
from ddpprof.render.html.chart import Chart, bar_trace, bars_layout
from ddpprof.report.whatif import WhatIf

_ROLES = {"forward": "forward", "backward": "backward", "slowed": "held", "exposed": "exposed", "rest": "other"}


def whatif_chart(answer: WhatIf) -> Chart:
    labels = [clean(one.label, most=60) for one in answer.outcomes]
    traces = []
    for part in fields(PredictedParts):
        name = part.name.removesuffix("_ns")
        values = [getattr(one.prediction.parts, part.name) for one in answer.outcomes]
        traces.append(bar_trace(name, _ROLES[name], labels, values))
    return Chart("Predicted step", traces, bars_layout("ms"), 66 + 30 * len(labels))
