"""The names of metrics, where they are written again: the Grafana dashboard, the documentation, and OpenTelemetry."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from pulse_files import MadeStep, write_pulse

from ddpprof.cli.metrics_out import opentelemetry_name
from ddpprof.model.pulse import Activity
from ddpprof.monitor.metrics import METRICS, Metric, read_metrics

DOCS = Path(__file__).parents[3] / "docs"
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana-dashboard.json").read_text(encoding="utf-8"))
_SELECTED = re.compile(r"(ddpprof_\w+)(?:\{([^}]*)\})?")
_OF_PROMETHEUS = {"job", "instance"}


@pytest.fixture
def metrics(tmp_path: Path) -> dict[str, Metric]:
    """Metrics by their names for Prometheus."""
    (tmp_path / "run.json").write_text("{}")
    write_pulse(tmp_path, 0, [MadeStep()] * 10)
    return {f"ddpprof_{one.kind.name}{'_total' if one.kind.is_counter else ''}": one for one in read_metrics(tmp_path)}


def labels_of(metric: Metric) -> dict[str, set[str]]:
    names = {name for labels, _ in metric.values for name in labels}
    return {name: {labels[name] for labels, _ in metric.values} for name in names}


def queries() -> list[str]:
    variables = [one["query"]["query"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]] + variables


def test_the_dashboard_asks_for_metrics_that_exist(metrics: dict[str, Metric]) -> None:
    assert {name for query in queries() for name, _ in _SELECTED.findall(query)} == set(metrics)
    for query in queries():
        for name, selectors in _SELECTED.findall(query):
            known = labels_of(metrics[name])
            for label, value in re.findall(r'(\w+)=~?"([^"]*)"', selectors):
                assert label in _OF_PROMETHEUS or value in known[label], query


def test_legends_name_labels_that_the_query_keeps(metrics: dict[str, Metric]) -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            (name, _), *_ = _SELECTED.findall(target["expr"])
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= set(labels_of(metrics[name]))


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    panels = DASHBOARD["panels"]
    assert DASHBOARD["uid"]
    assert DASHBOARD["title"]
    assert DASHBOARD["schemaVersion"] >= 36
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {panel["type"] for panel in panels} <= {"stat", "timeseries", "state-timeline"}
    for panel in panels:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_the_dashboard_names_every_activity() -> None:
    (panel,) = (panel for panel in DASHBOARD["panels"] if panel["type"] == "state-timeline")
    (mapping,) = panel["fieldConfig"]["defaults"]["mappings"]
    assert {int(value): one["text"] for value, one in mapping["options"].items()} == {
        activity.value: activity.name.lower() for activity in Activity
    }


def test_the_reference_lists_every_metric_with_its_labels_and_unit(metrics: dict[str, Metric]) -> None:
    page = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(ddpprof_\w+)` \| `(ddpprof\.[\w.]+)` \| (.*?) ?\| (.*?) ?\| (\w+):", page, re.MULTILINE)
    assert {row[0] for row in rows} == set(metrics)
    for name, otlp, unit, labels, kind in rows:
        metric = metrics[name]
        assert otlp == opentelemetry_name(metric.kind)
        assert unit == {"s": "seconds", "{step}": "steps", "1": ""}[metric.kind.unit]
        assert set(re.findall(r"`(\w+)`", labels)) == set(labels_of(metric))
        assert kind == ("counter" if metric.kind.is_counter else "gauge")
    assert all(f"`{part}`" in page for part in labels_of(metrics["ddpprof_step_part_seconds"])["part"])
    per_rank = sum(len([1 for labels, _ in metric.values if "rank" in labels]) for metric in metrics.values())
    assert f"{per_rank} for each rank" in page


def test_every_metric_has_values(metrics: dict[str, Metric]) -> None:
    assert [metric.kind for metric in metrics.values()] == list(METRICS)
    assert all(metric.values for metric in metrics.values())
