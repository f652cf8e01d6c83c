"""Render reports, comparisons and experiments as JSON, and read reports from JSON."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from ddpprof.errors import NotARun, refuse_newer
from ddpprof.files import Location
from ddpprof.report import REPORT_FORMAT, Report

if TYPE_CHECKING:  # the module imports those of all commands
    from ddpprof.render.json_documents import Written

_BEGINNING_OF_A_REPORT = re.compile(rb'\s*\{\s*"format"\s*:\s*(\d+)\s*,\s*"ddpprof"\s*:')
_BEGINNING_OF_A_COMPARISON = re.compile(rb'\s*\{\s*"comparison"\s*:\s*\{\s*"format"')


def render_json(what: Written) -> str:
    text = msgspec.json.encode(what)
    return msgspec.json.format(text, indent=2).decode() + "\n"


def read_report(path: Location) -> Report | None:
    """Return the report in a file written by `render_json`; ``None`` if the file is not a report.

    Raises `NotARun` and ``OSError``.
    """
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
