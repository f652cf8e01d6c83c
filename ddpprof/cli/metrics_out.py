"""``--metrics``: publish the metrics of a running job, and keep other machines from reading local servers.

``--metrics 9464`` serves them in Prometheus' text format to this machine only, and ``--metrics 0.0.0.0:9464`` to all
machines. ``--metrics otlp:http://127.0.0.1:4318`` sends them to an OpenTelemetry collector every few seconds.
"""

from __future__ import annotations

import re
import socket
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ddpprof.errors import DdpprofError, how_to_install

if TYPE_CHECKING:
    from ddpprof.monitor.metrics import Metric, MetricKind


_LISTEN = re.compile(r"(?:(?P<host>[\w.-]+|\[[\da-fA-F:]+\]):)?(?P<port>\d{1,5})")
_OTLP = "otlp:"
_EVERY_MS = 5000


@dataclass(frozen=True, slots=True)
class MetricsTarget:
    """Address at which metrics are served, or collector to which they are sent."""

    host: str = ""
    port: int = 0
    collector: str | None = None


def metrics_target(text: str) -> MetricsTarget:
    """Parse the value of ``--metrics``."""
    if text.startswith(_OTLP):
        address = text.removeprefix(_OTLP)
        if not re.match(r"https?://[^/]+", address):
            raise ArgumentTypeError(f"{text} is not an address such as otlp:http://127.0.0.1:4318")
        return MetricsTarget(collector=address)
    match = _LISTEN.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise ArgumentTypeError(f"{text} is not a port, HOST:PORT, or otlp:http://HOST:PORT")
    return MetricsTarget((match["host"] or "127.0.0.1").strip("[]"), int(match["port"]))


def check(target: MetricsTarget) -> None:
    """Raise `DdpprofError` if a package is missing or the address cannot be used. Call this before the job starts."""
    needed = "opentelemetry.exporter.otlp.proto.http" if target.collector else "prometheus_client"
    try:
        found = find_spec(needed)
    except ModuleNotFoundError:
        found = None
    if found is None:
        of_collector = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")
        packages = of_collector if target.collector else ("prometheus-client",)
        raise DdpprofError(f"--metrics needs {' and '.join(packages)}. {how_to_install(*packages)}")
    if target.collector is None:
        try:
            family = socket.getaddrinfo(target.host, target.port)[0][0]
            socket.create_server((target.host, target.port), family=family).close()
        except (OSError, UnicodeError) as error:  # UnicodeError: a part of the host name is empty or too long
            where, why = f"{target.host}:{target.port}", getattr(error, "strerror", "it is not a valid host name")
            raise DdpprofError(f"cannot serve metrics at {where}: {why}. Choose another address.") from error


def publish(target: MetricsTarget, out: Path) -> Callable[[], None]:
    """Start publishing the metrics of the job that writes into `out`. Return a function that stops this.

    Raises ``OSError``.
    """
    from ddpprof.monitor.metrics import read_metrics

    def read() -> list[Metric]:
        return read_metrics(out)

    return _send(target.collector, read) if target.collector else _serve(target.host, target.port, read)


def _serve(host: str, port: int, read: Callable[[], list[Metric]]) -> Callable[[], None]:
    """Serve Prometheus' text format."""
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.registry import Collector

    class Ranks(Collector):
        def collect(self) -> Iterator[Any]:
            return prometheus_families(read())

    registry = CollectorRegistry()
    registry.register(Ranks())
    server, _thread = start_http_server(port, host, registry)
    if ip_address(str(server.server_address[0])).is_loopback:
        server.set_app(for_this_machine(server.get_app()))

    def end() -> None:
        server.shutdown()
        server.server_close()

    return end


def prometheus_families(metrics: Iterable[Metric]) -> Iterator[Any]:
    """Convert the metrics to metric families of the Prometheus client."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for metric in metrics:
        labels = tuple(metric.values[0][0]) if metric.values else ()
        of_kind = CounterMetricFamily if metric.kind.is_counter else GaugeMetricFamily
        family = of_kind(f"ddpprof_{metric.kind.name}", metric.kind.documentation, labels=labels)
        for values, number in metric.values:
            family.add_metric(tuple(values.values()), number)
        yield family


def _send(collector: str, read: Callable[[], list[Metric]]) -> Callable[[], None]:
    """Send metrics to an OpenTelemetry collector by OTLP over HTTP."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource

    from ddpprof.monitor.metrics import METRICS

    exporter = OTLPMetricExporter(endpoint=f"{collector.rstrip('/')}/v1/metrics", timeout=5)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=_EVERY_MS)
    provider = MeterProvider([reader], Resource.create({"service.name": "ddpprof"}), shutdown_on_exit=False)
    meter = provider.get_meter("ddpprof")

    read_at, latest = 0.0, []

    def now() -> list[Metric]:
        """Return the metrics. They are read once per export, not once per instrument."""
        nonlocal read_at, latest
        if time.monotonic() - read_at > _EVERY_MS / 2000:
            read_at, latest = time.monotonic(), read()
        return latest

    def observing(kind: MetricKind) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            metric = next((one for one in now() if one.kind is kind), None)
            for labels, value in metric.values if metric is not None else ():
                yield Observation(value, dict(labels))

        return observe

    for kind in METRICS:
        make = meter.create_observable_counter if kind.is_counter else meter.create_observable_gauge
        make(opentelemetry_name(kind), callbacks=[observing(kind)], unit=kind.unit, description=kind.documentation)
    return provider.shutdown


def opentelemetry_name(kind: MetricKind) -> str:
    """Return the name of a metric according to OpenTelemetry's conventions: with dots, and without the unit."""
    return f"ddpprof.{kind.name.removesuffix('_seconds').replace('_', '.')}"


def for_this_machine(application: Any) -> Callable[[dict[str, Any], Any], Iterable[bytes]]:
    """Return a WSGI application that answers requests for other hosts with status 403 (DNS rebinding).

    A web page can make its own host name resolve to 127.0.0.1, so that its scripts could read the server's responses.
    The browser still sends that host name in the ``Host`` header.
    """

    def checked(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if names_this_machine(environ.get("HTTP_HOST", "")):
            answer: Iterable[bytes] = application(environ, start_response)
            return answer
        start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"This server answers requests for localhost only.\n"]

    return checked


def names_this_machine(host: str) -> bool:
    """Return True if a ``Host`` header is ``localhost``, an IP address or, as from some programs, empty."""
    if not host:
        return True
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or name.endswith(".localhost") or bool(ip_address(name))
    except ValueError:
        return False
