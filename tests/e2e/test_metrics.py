"""Metrics of a job that runs, as Prometheus reads them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from jobs import DDPPROF, script
from ports import unused_port
from processes import started, wait_until
from watched_jobs import NEEDS_SHARED_MEMORY, TWO, is_training

DOCS = Path(__file__).resolve().parents[2] / "docs"
pytestmark = [pytest.mark.e2e, NEEDS_SHARED_MEMORY]


@pytest.fixture
def port() -> int:
    return unused_port()


def scrape(port: int) -> dict[tuple[str, ...], float]:
    """Return the value of each sample, by its name and the values of its labels."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=600) as answer:
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(one.name, *(one.labels[label] for label in sorted(one.labels))): one.value for one in samples}


def test_a_job_is_scraped_while_it_trains(port: int, tmp_path: Path) -> None:
    run = tmp_path / "run"
    watch = [*DDPPROF, "watch", "--quiet", "--metrics", str(port), "--out", "run", *TWO]
    with started(*watch, *script("long_training.py", "--steps", "100000"), cwd=tmp_path) as job:
        wait_until(lambda: is_training(run, 20), "the training to begin")
        first = scrape(port)
        wait_until(lambda: is_training(run, int(first["ddpprof_steps_total", "0"]) + 20), "more steps")
        second = scrape(port)
        os.kill(job.pid, signal.SIGTERM)
        job.communicate(timeout=600)
    for rank in ("0", "1"):
        assert 20 <= first["ddpprof_steps_total", rank] < second["ddpprof_steps_total", rank]
        assert second["ddpprof_up", rank] == 1
        assert second["ddpprof_activity", rank] in range(7)
        assert second["ddpprof_step_age_seconds", rank] >= 0
        lengths = [second["ddpprof_step_seconds", quantile, rank] for quantile in ("0.5", "0.9", "0.99")]
        assert lengths[0] > 0
        assert lengths == sorted(lengths)
        parts = {part: second["ddpprof_step_part_seconds", part, rank] for part in ("backward", "wait", "own")}
        assert 0 <= parts["wait"] <= parts["backward"]
        assert parts["own"] > 0
    assert (first["ddpprof_hang",], second["ddpprof_hang",]) == (0, 0)
    with pytest.raises(OSError, match="refused"):
        scrape(port)


def documented(kind: str) -> str:
    """Return the block of the documentation that configures Prometheus and begins like this."""
    text = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
    (block,) = re.findall(rf"```yaml\n({kind}:\n.*?)```", text, re.DOTALL)
    return str(block)


def ask(port: int, what: str, **parameters: str) -> Any:
    """Ask the server for something. Raises ``OSError`` as long as it does not answer."""
    address = f"http://127.0.0.1:{port}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(address, timeout=600) as answer:
        return json.load(answer)["data"]


def has_scraped(port: int) -> bool:
    try:
        return len(ask(port, "query", query="rate(ddpprof_steps_total[1m]) > 0")["result"]) == 2
    except OSError:
        return False


def health_of_rules(port: int) -> set[str]:
    return {rule["health"] for group in ask(port, "rules")["groups"] for rule in group["rules"]}


def dashboard_queries() -> list[str]:
    panels = json.loads((DOCS / "grafana-dashboard.json").read_text(encoding="utf-8"))["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    return [query.replace("$job", ".*").replace("$instance", ".*") for query in queries]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_a_prometheus_server_scrapes_a_job(port: int, tmp_path: Path) -> None:
    """It runs with the configuration, the alerts and the queries of the dashboard that the documentation has."""
    server = unused_port()
    scrapes = documented("scrape_configs").replace("9464", str(port)).replace("5s", "1s")
    (tmp_path / "rules.yml").write_text(documented("groups"), encoding="utf-8")
    often = "global: {evaluation_interval: 1s}\nrule_files: [rules.yml]\n"
    (tmp_path / "prometheus.yml").write_text(often + scrapes, encoding="utf-8")
    watch = [*DDPPROF, "watch", "--quiet", "--metrics", str(port), "--out", "run", *TWO]
    prometheus = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    with (
        started(*watch, *script("long_training.py", "--steps", "100000"), cwd=tmp_path) as job,
        started(*prometheus, f"--web.listen-address=127.0.0.1:{server}", cwd=tmp_path),
    ):
        wait_until(lambda: has_scraped(server), "two samples of each rank")
        answers = {query: ask(server, "query", query=query)["result"] for query in dashboard_queries()}
        wait_until(lambda: health_of_rules(server) == {"ok"}, "a result of each rule")
        hangs = ask(server, "query", query='ALERTS{alertname="TrainingHangs"}')["result"]
        (target,) = ask(server, "targets")["activeTargets"]
        os.kill(job.pid, signal.SIGTERM)
        job.communicate(timeout=600)
    assert (target["health"], target["lastError"]) == ("up", "")
    assert hangs == []
    assert all(answers.values()), answers
