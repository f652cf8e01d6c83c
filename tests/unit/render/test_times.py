"""On accelerators every time says whose it is: the host's, which launches, or the device's, which works."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass, replace
from io import StringIO
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from reports import light_report, report, slowdown
from tables import trace

from ddpprof.engine.numbers import clocks_of
from ddpprof.layout import Bars, Table
from ddpprof.model import Phase
from ddpprof.render.html.charts import bucket_chart, slowdown_chart
from ddpprof.render.html.report_page import report_page
from ddpprof.render.json import render_json
from ddpprof.render.json_documents import schema
from ddpprof.render.sections import sections
from ddpprof.render.tensorboard import scalars_of
from ddpprof.render.terminal import render_terminal
from ddpprof.report import Report
from ddpprof.topics.steps.timeline import RankTimeline, Timeline, move_timeline, step_timeline

SCHEMA = schema(Report)


def on(device: str) -> Report:
    shown = report()
    return replace(shown, job=replace(shown.job, device=device), times=clocks_of(Report) if device == "cuda" else {})


NOBODYS = (
    "across.clock",  # differences of clocks
    "failure",  # moments, as are the next
    "attempts[].after_first_ns",
    "attempts[].ends",
    "findings",  # predictions of the step, as are the next
    "bound.would_help",
    "horovod",  # Horovod's own timeline, which tells no device
)


def fields_in_ns(kind: Any, path: str = "", within: frozenset[type] = frozenset()) -> Iterator[str]:
    """The paths of all times in a report."""
    if is_dataclass(kind) and isinstance(kind, type):
        for name, hint in () if kind in within else get_type_hints(kind).items():
            yield from fields_in_ns(hint, f"{path}.{name}".lstrip("."), within | {kind})
    elif get_args(kind):
        ends = "[]" if get_origin(kind) is tuple else ""
        for hint in get_args(kind):
            yield from fields_in_ns(hint, path + ends, within)
    elif path.rstrip("[]").endswith("_ns") and kind in (int, float):
        yield path


def test_every_time_in_the_json_report_is_somebodys() -> None:
    def says(named: Iterable[str], path: str) -> bool:
        return any(path == name or path.startswith((f"{name}.", f"{name}[")) for name in named)

    paths = set(fields_in_ns(Report))
    assert {"buckets[].ready_ns", "across.collectives[].transfer_ns", "bound.step_ns"} <= paths
    assert [path for path in sorted(paths) if not says(clocks_of(Report), path) and not says(NOBODYS, path)] == []


def titled(shown: Report, words: str) -> list[Table]:
    return [one for one in sections(shown) if isinstance(one, Table) and words in one.title]


def test_no_row_of_buckets_has_times_of_both() -> None:
    host, device = titled(on("cuda"), "Gradient buckets")
    assert "on the host" in host.title
    assert [column.name for column in host.columns] == ["bucket", "MB", "tensors", "ready", "launched", "late"]
    assert "on the device" in device.title
    assert [column.name for column in device.columns] == ["bucket", "started", "finished"]
    (both,) = titled(on("cpu"), "Gradient buckets")
    names = [column.name for column in both.columns]
    for row, of_host, of_device in zip(both.rows, host.rows, device.rows, strict=True):
        values = dict(zip(names, row, strict=True))
        assert of_host == tuple(values[column.name] for column in host.columns)
        assert of_device == tuple(values[column.name] for column in device.columns)


@pytest.mark.parametrize(("device", "says_so"), [("cuda", True), ("cpu", False)])
def test_a_step_of_the_light_record_is_one_of_launches(device: str, says_so: bool) -> None:
    shown = replace(light_report(), times=clocks_of(Report) if device == "cuda" else {})
    (bars,) = [one for one in sections(shown) if isinstance(one, Bars)]
    assert ("Host time" in bars.title) is says_so


@pytest.mark.parametrize("words", ["Step time by kind of work", "Communication and computation"])
def test_tables_of_the_device_say_so(words: str) -> None:
    out = StringIO()
    render_terminal(sections(on("cuda")), out, 160)
    assert f"{words}, ms of device time" in out.getvalue()


@pytest.mark.parametrize(("device", "says_so"), [("cuda", True), ("cpu", False)])
def test_charts_say_whose_times_they_draw(device: str, says_so: bool) -> None:
    shown = replace(on(device), overlap_slowdown=slowdown())
    (buckets,) = bucket_chart(shown)
    assert ("on the host's clock" in buckets.layout["xaxis"]["title"]["text"]) is says_so
    assert ("time on the device" in buckets.note) is says_so
    (kernels,) = slowdown_chart(shown)
    assert ("ms of device time" in kernels.layout["xaxis"]["title"]["text"]) is says_so
    step = step_timeline(trace([(0, 100)], [(0, 20, Phase.FORWARD, 0)], []), 0)
    step = move_timeline(step, 0, ())
    page = report_page(shown, Timeline((RankTimeline(0, device, ("x",), True, (0,), (step,)),), None))
    assert ("The step in numbers, ms of device time" in page) is says_so
    assert ("The lanes show when the device is busy" in page) is says_so


def test_the_json_report_has_the_fields_whose_times_it_tells() -> None:
    written = json.loads(render_json(on("cuda")))
    assert set(written["times"].values()) == {"host", "device"}
    assert json.loads(render_json(on("cpu")))["times"] == {}
    for field in written["times"]:
        assert _nodes(field), field


def _nodes(field: str) -> list[dict[str, Any]]:
    nodes = [SCHEMA]
    for part in field.split("."):
        name = part.removesuffix("[]")
        nodes = [one for node in nodes for one in _resolved(node) if name in one.get("properties", {})]
        nodes = [each for node in nodes for each in _resolved(node["properties"][name])]
        if part.endswith("[]"):
            nodes = [one["items"] for one in nodes if "items" in one]
    return nodes


def _resolved(node: dict[str, Any]) -> list[dict[str, Any]]:
    if "$ref" in node:
        return _resolved(SCHEMA["$defs"][node["$ref"].rpartition("/")[2]])
    return [each for one in node.get("anyOf", []) for each in _resolved(one)] or [node]


def test_scalars_of_launches_have_tags_of_their_own() -> None:
    rank = light_report().ranks[0]
    tags = {one.tag for one in scalars_of(rank, on_accelerator=True)}
    assert any(tag.startswith("ddp_launches/") for tag in tags)
    assert not any(tag.startswith("ddp_step/") for tag in tags)
