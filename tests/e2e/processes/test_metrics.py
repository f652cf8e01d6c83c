"""Metrics of a running job, read by the official parsers of Prometheus and OTLP."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from ports import unused_port
from pulse_files import MadeStep, write_pulse

from ddpprof.errors import DdpprofError
from ddpprof.model.pulse import Activity
from ddpprof.monitor.metrics import MetricsTarget, check, publish


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run.json").write_text(json.dumps({"format": 1, "run_id": "run"}))
    now = time.time_ns()
    usual, slow = MadeStep(ms=10, data_ms=1, wait_ms=4), MadeStep(ms=20, data_ms=1, wait_ms=4)
    write_pulse(tmp_path, 0, [usual] * 90 + [slow] * 10, first_step=0, tick_ns=now, step_since_ns=now)
    write_pulse(tmp_path, 1, [MadeStep(ms=10, wait_ms=None)] * 100, first_step=0, activity=Activity.SAVE)
    return tmp_path


@pytest.fixture
def port() -> int:
    return unused_port()


def test_prometheus_reads_them(run: Path, port: int) -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
    from prometheus_client.parser import text_string_to_metric_families

    end = publish(MetricsTarget("127.0.0.1", port), run)
    try:
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        asked = urllib.request.Request(
            f"http://127.0.0.1:{port}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
        )
        as_open_metrics = urllib.request.urlopen(asked).read().decode()
    finally:
        end()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert ("ddpprof_steps_total", {"rank": "1"}, 100.0) in [(one.name, one.labels, one.value) for one in samples]
    assert {one.name for one in samples} == {
        sample.name for family in open_metrics(as_open_metrics) for sample in family.samples
    }
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics")


@pytest.mark.parametrize(
    ("host", "code"), [("localhost", 200), ("127.0.0.1:80", 200), ("[::1]:9", 200), ("a.example", 403), ("a]", 403)]
)
def test_only_requests_for_this_machine_are_answered(host: str, code: int, run: Path, port: int) -> None:
    """A page of the web may let its own name resolve to this machine."""
    end = publish(MetricsTarget("127.0.0.1", port), run)
    try:
        asked = HTTPConnection("127.0.0.1", port, timeout=600)
        asked.request("GET", "/metrics", headers={"Host": host})
        assert asked.getresponse().status == code
    finally:
        end()


def test_a_taken_port_is_refused_before_the_job(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)), pytest.raises(DdpprofError, match="cannot serve metrics at"):
        check(MetricsTarget("127.0.0.1", port))
    check(MetricsTarget("127.0.0.1", port))


class Collector(BaseHTTPRequestHandler):
    """Stands for an OpenTelemetry collector: it keeps what it gets."""

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        unzipped = gzip.decompress(content) if self.headers.get("Content-Encoding") == "gzip" else content
        self.server.got.append((self.path, unzipped))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), Collector)
    server.got = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_collector_reads_them(run: Path, collector: HTTPServer) -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    end = publish(MetricsTarget(collector=f"http://127.0.0.1:{collector.server_port}"), run)
    end()  # sends what there is
    path, content = collector.got[-1]  # type: ignore[attr-defined]
    assert path == "/v1/metrics"
    sent = ExportMetricsServiceRequest.FromString(content)
    (resource,) = sent.resource_metrics
    metrics = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
    assert metrics["ddpprof.steps"].sum.is_monotonic
    assert [point.as_double for point in metrics["ddpprof.steps"].sum.data_points] == [100.0, 100.0]
    assert (metrics["ddpprof.step.part"].unit, metrics["ddpprof.up"].unit) == ("s", "1")
    assert {attribute.value.string_value for attribute in resource.resource.attributes} >= {"ddpprof"}
