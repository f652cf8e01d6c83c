"""JSON forms of reports, comparisons and experiments, their parser, and the JSON Schema of each."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from ddpprof.comparison.compare import Comparison
from ddpprof.comparison.gate import ConditionVerdict
from ddpprof.comparison.repeated import RepeatedReport
from ddpprof.errors import NotARun, refuse_newer
from ddpprof.experiments.overhead import OverheadReport
from ddpprof.experiments.scaling import ScalingReport
from ddpprof.experiments.sweep import SweepReport
from ddpprof.experiments.tuning import TuneReport
from ddpprof.files import Location
from ddpprof.model.hang import Verdict
from ddpprof.report import REPORT_FORMAT, Report
from ddpprof.report.whatif import WhatIf

_BEGINNING_OF_A_REPORT = re.compile(rb'\s*\{\s*"format"\s*:\s*(\d+)\s*,\s*"ddpprof"\s*:')
_BEGINNING_OF_A_COMPARISON = re.compile(rb'\s*\{\s*"comparison"\s*:\s*\{\s*"format"')


class ComparisonFile(msgspec.Struct):
    """A comparison, and the verdicts on its conditions."""

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
    | WhatIf
    | Verdict
)

DOCUMENTS: dict[str, type[Written]] = {
    "report": Report,
    "comparison": ComparisonFile,
    "repeated": RepeatedReport,
    "overhead": OverheadReport,
    "scaling": ScalingReport,
    "sweep": SweepReport,
    "tuning": TuneReport,
    "whatif": WhatIf,
    "verdict": Verdict,
}
"""documents by the names that ``ddpprof schema`` takes"""


def render_json(what: Written) -> str:
    text = msgspec.json.encode(what)
    return msgspec.json.format(text, indent=2).decode() + "\n"


def read_report(path: Location) -> Report | None:
    """Return the report in a file that `render_json` wrote; ``None`` if it is none. Raises `NotARun`, ``OSError``."""
    with path.open("rb") as file:
        beginning = file.read(4096)
        if _BEGINNING_OF_A_COMPARISON.match(beginning):
            raise NotARun(f"{path} is a comparison, not a report. Write one with: ddpprof report RUN --out {path.name}")
        match = _BEGINNING_OF_A_REPORT.match(beginning)
        if match is None:
            return None
        refuse_newer(path, int(match.group(1)), REPORT_FORMAT)
        try:
            return msgspec.json.decode(beginning + file.read(), type=Report)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise NotARun(f"{path} is not a report: {error}.") from error


def schema(of: type[Written]) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of `render_json`'s output."""
    name = next(name for name, document in DOCUMENTS.items() if document is of)
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"ddpprof {name}"}
    return {**about, **msgspec.json.schema(of)}


def render_schema(of: type[Written]) -> str:
    return json.dumps(schema(of), indent=2, sort_keys=True) + "\n"
