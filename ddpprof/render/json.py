"""The report as JSON. `report.schema.json`, beside this file, is its schema."""

from __future__ import annotations

from typing import Any

import msgspec

from ddpprof.report import Report


def render_json(report: Report) -> str:
    text = msgspec.json.encode(report)
    return msgspec.json.format(text, indent=2).decode() + "\n"


def report_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of `render_json`'s output. Refresh the file with ``pytest --update-golden``."""
    schema = msgspec.json.schema(Report)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "ddpprof report", **schema}
