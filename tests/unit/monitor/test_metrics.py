"""Metrics of a running job: what they say, and that the official parsers of Prometheus and OTLP read them."""

from __future__ import annotations

import json
import re
import time
from argparse import ArgumentTypeError
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from pulse_files import MadeStep, write_pulse

from ddpprof.errors import DdpprofError
from ddpprof.model.hang import Fault, Verdict
from ddpprof.model.pulse import Activity, Ended
from ddpprof.monitor.metrics import (
    METRICS,
    MOST_RANKS,
    Metric,
    MetricsTarget,
    check,
    metrics_target,
    opentelemetry_name,
    read_metrics,
)
from ddpprof.monitor.pulse_files import write_verdict


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run.json").write_text(json.dumps({"format": 1, "run_id": "run"}))
    now = time.time_ns()
    usual, slow = MadeStep(ms=10, data_ms=1, wait_ms=4), MadeStep(ms=20, data_ms=1, wait_ms=4)
    write_pulse(tmp_path, 0, [usual] * 90 + [slow] * 10, first_step=0, tick_ns=now, step_since_ns=now)
    write_pulse(tmp_path, 1, [MadeStep(ms=10, wait_ms=None)] * 100, first_step=0, activity=Activity.SAVE)
    return tmp_path


def named(run: Path, name: str) -> Metric:
    (found,) = (metric for metric in read_metrics(run) if metric.kind.name == name)
    return found


def test_what_each_rank_does(run: Path) -> None:
    assert named(run, "steps").values == (({"rank": "0"}, 100.0), ({"rank": "1"}, 100.0))
    assert named(run, "up").values == (({"rank": "0"}, 1.0), ({"rank": "1"}, 0.0))
    assert named(run, "activity").values[1] == ({"rank": "1"}, float(Activity.SAVE))
    assert 0 <= named(run, "step_age_seconds").values[0][1] < 60


def of_rank(metric: Metric, rank: int, label: str) -> dict[str, float]:
    return {labels[label]: value for labels, value in metric.values if labels["rank"] == str(rank)}


def test_the_last_steps(run: Path) -> None:
    assert of_rank(named(run, "step_seconds"), 0, "quantile") == {"0.5": 0.01, "0.9": 0.02, "0.99": 0.02}
    parts = of_rank(named(run, "step_part_seconds"), 0, "part")
    assert (parts["data"], parts["wait"]) == (0.001, 0.004)
    assert parts["own"] == pytest.approx((54 * 6 + 10 * 16) / 64 / 1000)
    without_waiting = of_rank(named(run, "step_part_seconds"), 1, "part")
    assert without_waiting.keys() == {"data", "forward", "backward", "optimizer"}


def test_own_time_if_only_some_steps_know_their_waiting(run: Path) -> None:
    """As with many gradients: the others wait as long as their backward passes are longer than what they compute."""
    known, longer = MadeStep(ms=60, backward_ms=40, wait_ms=30), MadeStep(ms=80, backward_ms=60, wait_ms=None)
    write_pulse(run, 0, [known, longer] * 40, first_step=0)
    parts = of_rank(named(run, "step_part_seconds"), 0, "part")
    assert (parts["wait"], parts["own"]) == pytest.approx((0.040, 0.030))


def test_a_hang_is_told_until_the_job_goes_on(run: Path) -> None:
    assert named(run, "hang").values == (({}, 0.0),)
    write_verdict(run, Verdict(Fault.LINK))
    assert named(run, "hang").values == (({}, 1.0),)
    write_verdict(run, Verdict(Fault.LINK, resumed_unix_ns=5))
    assert named(run, "hang").values == (({}, 0.0),)


def test_the_number_of_series_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    for rank in range(MOST_RANKS + 3):
        write_pulse(tmp_path, rank, [MadeStep()], ended=Ended.FINISHED)
    assert len(named(tmp_path, "up").values) == MOST_RANKS
    assert {value for _, value in named(tmp_path, "up").values} == {0.0}


def test_a_job_that_has_not_begun_has_none(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("9464", MetricsTarget("127.0.0.1", 9464)),
        ("0.0.0.0:9464", MetricsTarget("0.0.0.0", 9464)),
        ("[::1]:9464", MetricsTarget("::1", 9464)),
        ("otlp:http://127.0.0.1:4318", MetricsTarget(collector="http://127.0.0.1:4318")),
    ],
)
def test_targets(text: str, target: MetricsTarget) -> None:
    assert metrics_target(text) == target


@pytest.mark.parametrize("text", ["", "x", "99999", "a b:1", "otlp:", "otlp:ftp://x"])
def test_what_is_no_target(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        metrics_target(text)


@pytest.mark.parametrize("host", ["..", "a" * 64])
def test_what_is_no_name_of_a_host_is_refused_before_the_job(host: str) -> None:
    with pytest.raises(DdpprofError, match=r"cannot serve metrics at .*: it is not a valid host name"):
        check(metrics_target(f"{host}:9464"))


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
    assert f"{per_rank} per rank" in page


def test_every_metric_has_values(metrics: dict[str, Metric]) -> None:
    assert [metric.kind for metric in metrics.values()] == list(METRICS)
    assert all(metric.values for metric in metrics.values())
