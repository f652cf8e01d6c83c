"""The JSON documents that ddpprof writes, and their JSON Schemas."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from ddpprof.comparison import Comparison
from ddpprof.comparison.gate import ConditionVerdict
from ddpprof.comparison.repeated import RepeatedReport
from ddpprof.experiments.overhead import OverheadReport
from ddpprof.experiments.scaling import ScalingReport
from ddpprof.experiments.sweep import SweepReport
from ddpprof.experiments.trying import TryReport
from ddpprof.experiments.tuning import TuneReport
from ddpprof.model.hang import Verdict
from ddpprof.render.brief import Brief, BriefComparison
from ddpprof.report import Report
from ddpprof.report.whatif import WhatIf


class ComparisonFile(msgspec.Struct):
    """A comparison, with the verdicts on the conditions of ``--fail-on``."""

    comparison: Comparison
    verdicts: tuple[ConditionVerdict, ...]


Written = (
    Report
    | ComparisonFile
    | RepeatedReport
    | OverheadReport
    | ScalingReport
    | SweepReport
    | TuneReport
    | TryReport
    | WhatIf
    | Verdict
    | Brief
    | BriefComparison
)

DOCUMENTS: dict[str, type[Written]] = {
    "report": Report,
    "comparison": ComparisonFile,
    "repeated": RepeatedReport,
    "overhead": OverheadReport,
    "scaling": ScalingReport,
    "sweep": SweepReport,
    "tuning": TuneReport,
    "trying": TryReport,
    "whatif": WhatIf,
    "verdict": Verdict,
    "brief": Brief,
    "brief-comparison": BriefComparison,
}
"""name of the document in ``ddpprof schema`` → type of the document"""


def schema(of: type[Written]) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of `render_json`'s output."""
    name = next(name for name, document in DOCUMENTS.items() if document is of)
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"ddpprof {name}"}
    return {**about, **msgspec.json.schema(of)}


def render_schema(of: type[Written]) -> str:
    return json.dumps(schema(of), indent=2, sort_keys=True) + "\n"
