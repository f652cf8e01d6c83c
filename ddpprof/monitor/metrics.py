"""Metrics of a running job, from the pulse files of its ranks, with names that follow Prometheus and OpenTelemetry.

The number of time series is bounded: the only labels are the rank and the part or quantile of a step, and only the
first `MOST_RANKS` ranks are exported.

``--metrics 9464`` serves the metrics in Prometheus' text format to this machine only, and ``--metrics 0.0.0.0:9464`` to
all machines. ``--metrics otlp:http://127.0.0.1:4318`` sends them to an OpenTelemetry collector every few seconds.
"""

from __future__ import annotations

import re
import socket
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from ddpprof import rundir
from ddpprof.errors import DdpprofError, how_to_install
from ddpprof.model import UNKNOWN
from ddpprof.model.pulse import Activity, Ended
from ddpprof.monitor.pulse_files import PulseHead, is_silent, read_heads, read_verdict

MOST_RANKS = 64
_STEPS = 64
_QUANTILES = (0.5, 0.9, 0.99)
_WITHOUT_WAITING = ("data", "forward", "backward", "optimizer")
_PARTS = (*_WITHOUT_WAITING, "wait", "own")


@dataclass(frozen=True, slots=True)
class MetricKind:
    """The description of a metric, without its values."""

    name: str
    """name without the prefix ``ddpprof_`` and, for a counter, without ``_total``"""
    documentation: str
    unit: str
    """unit in UCUM notation, as required by OpenTelemetry; ``"1"`` for a dimensionless number"""
    is_counter: bool = False
    """whether the metric is a counter, whose value only increases"""


STEPS = MetricKind("steps", "Number of training steps that the rank has finished", "{step}", is_counter=True)
STEP_SECONDS = MetricKind("step_seconds", f"Duration of the last {_STEPS} steps, by quantile", "s")
STEP_PART_SECONDS = MetricKind(
    "step_part_seconds",
    f"Mean duration of each part of the last {_STEPS} steps; own is the step time minus the time spent waiting for "
    "other ranks",
    "s",
)
STEP_AGE_SECONDS = MetricKind("step_age_seconds", "Time since the rank finished its last step", "s")
UP = MetricKind("up", "1 while the rank is training and its heartbeat is recent, else 0", "1")
ACTIVITY = MetricKind(
    "activity",
    f"Current activity of the rank: {', '.join(f'{activity.value} {activity.name.lower()}' for activity in Activity)}",
    "1",
)
HANG = MetricKind("hang", "1 if the latest verdict says that the job hangs, else 0", "1")
METRICS = (STEPS, STEP_SECONDS, STEP_PART_SECONDS, STEP_AGE_SECONDS, UP, ACTIVITY, HANG)


Values = tuple[tuple[Mapping[str, str], float], ...]
"""labels and value of each sample of a metric"""


@dataclass(frozen=True, slots=True)
class Metric:
    kind: MetricKind
    values: Values


def read_metrics(out: Path) -> list[Metric]:
    """Return the metrics of the job that writes into `out`; empty if the job has not begun."""
    if not rundir.is_run(out):
        return []
    directory = rundir.last_attempt(out)
    heads = list(islice(read_heads(directory, _STEPS), MOST_RANKS))
    if not heads:
        return []
    return [
        _each(STEPS, heads, lambda head: head.state.step),
        Metric(STEP_SECONDS, _quantiles(heads)),
        Metric(STEP_PART_SECONDS, _parts(heads)),
        _each(STEP_AGE_SECONDS, heads, _step_age_s),
        _each(UP, heads, _is_up),
        _each(ACTIVITY, heads, lambda head: head.state.activity),
        Metric(HANG, (({}, _hangs(directory)),)),
    ]


def _each(kind: MetricKind, heads: Sequence[PulseHead], value: Callable[[PulseHead], float]) -> Metric:
    """Return a metric with one value per rank."""
    return Metric(kind, tuple((_of(head), float(value(head))) for head in heads))


def _of(head: PulseHead, **more: str) -> dict[str, str]:
    return {"rank": str(head.identity.rank), **more}


def _quantiles(heads: Sequence[PulseHead]) -> Values:
    values = []
    for head in heads:
        lengths = head.steps.length_ns
        if len(lengths):
            found = np.quantile(lengths, _QUANTILES) / 1e9
            values += [
                (_of(head, quantile=f"{quantile:g}"), float(value))
                for quantile, value in zip(_QUANTILES, found, strict=True)
            ]
    return tuple(values)


def _parts(heads: Sequence[PulseHead]) -> Values:
    values = []
    for head in heads:
        steps = head.steps.with_all_waiting()
        knows_waiting = bool((steps.wait_ns != UNKNOWN).any())
        for part in _PARTS if knows_waiting else _WITHOUT_WAITING:
            column = getattr(steps, f"{part}_ns")
            known = column[column != UNKNOWN]
            if len(known):
                values.append((_of(head, part=part), float(known.mean()) / 1e9))
    return tuple(values)


def _step_age_s(head: PulseHead) -> float:
    return max(0.0, (time.time_ns() - head.state.step_since_ns) / 1e9)


def _is_up(head: PulseHead) -> float:
    return float(head.state.ended == Ended.NOT_YET and not is_silent(head.identity, head.state, time.time_ns()))


def _hangs(directory: Path) -> float:
    verdict = read_verdict(directory)
    return float(verdict is not None and verdict.resumed_unix_ns is None)


_LISTEN = re.compile(r"(?:(?P<host>[\w.-]+|\[[\da-fA-F:]+\]):)?(?P<port>\d{1,5})")
_OTLP = "otlp:"
_EVERY_MS = 5000


@dataclass(frozen=True, slots=True)
class MetricsTarget:
    """The address at which metrics are served, or the collector to which they are sent."""

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
    """Start publishing the metrics of the job that writes into `out`. Return a function that stops publishing.

    Raises ``OSError``.
    """

    def read() -> list[Metric]:
        return read_metrics(out)

    return _send(target.collector, read) if target.collector else _serve(target.host, target.port, read)


def _serve(host: str, port: int, read: Callable[[], list[Metric]]) -> Callable[[], None]:
    """Serve the metrics in Prometheus' text format."""
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

    exporter = OTLPMetricExporter(endpoint=f"{collector.rstrip('/')}/v1/metrics", timeout=5)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=_EVERY_MS)
    provider = MeterProvider([reader], Resource.create({"service.name": "ddpprof"}), shutdown_on_exit=False)
    meter = provider.get_meter("ddpprof")

    read_at, latest = 0.0, []

    def now() -> list[Metric]:
        """Return the metrics. They are read once per export instead of once per instrument."""
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
    However, the browser still sends that host name in the ``Host`` header.
    """

    def checked(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if names_this_machine(environ.get("HTTP_HOST", "")):
            answer: Iterable[bytes] = application(environ, start_response)
            return answer
        start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"This server answers requests for localhost only.\n"]

    return checked


def names_this_machine(host: str) -> bool:
    """Return True if a ``Host`` header is ``localhost``, an IP address, or empty, as sent by some programs."""
    if not host:
        return True
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or name.endswith(".localhost") or bool(ip_address(name))
    except ValueError:
        return False
