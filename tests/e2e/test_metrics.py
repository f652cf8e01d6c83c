"""Metrics of a job that runs, as Prometheus reads them."""

from __future__ import annotations

import os
import signal
import socket
import urllib.request
from pathlib import Path

import pytest
from jobs import DDPPROF, script
from processes import started, wait_until
from watched_jobs import NEEDS_SHARED_MEMORY, TWO, is_training

pytestmark = [pytest.mark.e2e, NEEDS_SHARED_MEMORY]


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def scrape(port: int) -> dict[tuple[str, ...], float]:
    """Return the value of each sample, by its name and the values of its labels."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
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
        job.communicate(timeout=60)
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
