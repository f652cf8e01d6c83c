"""Ranks on hosts of their own, over links of known rate: network namespaces stand for the hosts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hosts import Hosts, NoHosts, linked_hosts
from jobs import DDPPROF, environment, script

Report = Callable[[str], dict[str, Any]]

GBIT_PER_S = 125e6
"""bytes per second of a link of 1 Gbit/s"""


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    try:
        with linked_hosts(4, "1gbit") as made:
            yield made
    except NoHosts as reason:
        pytest.skip(f"no hosts here: {reason}")


def record(hosts: Hosts, out: Path, *arguments: str, steps: int = 4) -> None:
    options = ["--quiet", "--skip-first", "2", "--cost-steps", "2", "--steps", str(steps)]
    command = [*DDPPROF, "trace", "--out", str(out), *options, *script("wide_mlp.py", *arguments)]
    ranks = [hosts.start(host, command, out.parent) for host in range(len(hosts.namespaces))]
    for rank in ranks:
        _, stderr = rank.communicate(timeout=600)
        assert rank.returncode == 0, stderr


@pytest.mark.long
@pytest.mark.parametrize(
    "cap_mb",
    [pytest.param("100", id="one-bucket"), pytest.param("15", id="a-bucket-a-layer")],
)
def test_busbw_is_the_rate_of_the_link(cap_mb: str, hosts: Hosts, tmp_path: Path, report: Report) -> None:
    """67 MB of gradients, in one bucket or in four; of the latter gloo sends two at a time over the one link.

    Four ranks share the machine's cores with whatever else runs. That can only make a link look slower, so the fastest
    of three runs counts; none may look faster than the link.
    """
    rates: list[float] = []
    while len(rates) < 3 and not (rates and max(rates) >= 0.9 * GBIT_PER_S):
        out = tmp_path / f"run-{len(rates)}"
        record(hosts, out, "--width", "2048", "--layers", "4", "--batch", "1", "--bucket-cap-mb", cap_mb, steps=6)
        shown = report(str(out))
        assert shown["job"]["hosts"] == ["node0", "node1", "node2", "node3"]
        assert shown["job"]["num_ranks_read"] == 4
        assert shown["missing"] == []
        (large,) = [row for row in shown["across"]["collectives"] if (row["at_least_bytes"] or 0) >= 8e6]
        assert (large["kind"], large["num_ranks_read"]) == ("all_reduce", 4)
        rates.append(large["busbw_bytes_per_s"])
    assert max(rates) == pytest.approx(GBIT_PER_S, rel=0.10), rates


@pytest.mark.long
def test_hosts_that_share_a_clock_are_found_to(hosts: Hosts, tmp_path: Path, report: Report) -> None:
    """The namespaces are one machine: the true offset is nil, and must lie within the bound of every estimate."""
    record(hosts, tmp_path / "run", "--width", "512", "--layers", "6", "--bucket-cap-mb", "1")
    clock = report("run")["across"]["clock"]
    assert [host["host"] for host in clock["hosts"]] == ["node0", "node1", "node2", "node3"]
    for host in clock["hosts"]:
        assert host["bound_ns"] is not None
        assert abs(host["offset_ns"]) <= host["bound_ns"]
        assert host["drift_ppm"] == 0


@pytest.mark.slow
def test_the_slow_link_of_a_host_is_named(hosts: Hosts, tmp_path: Path, report: Report) -> None:
    """Only what host 2 sends is limited. What it receives becomes slow, too, because acknowledgements wait in line."""
    options = ("--width", "1024", "--layers", "4", "--batch", "1", "--bucket-cap-mb", "100")
    record(hosts, tmp_path / "alike", *options)
    assert "slow-link" not in [one["rule"] for one in report("alike")["findings"]]
    slower = "tc qdisc replace dev eth0 root tbf rate 250mbit burst 256kb latency 50ms"
    limiting = hosts.start(2, slower.split(), "/")
    assert (limiting.communicate(timeout=60), limiting.returncode) == (("", ""), 0)
    record(hosts, tmp_path / "slow", *options)
    first, *_ = report("slow")["findings"]
    assert (first["rule"], first["subject"]) == ("slow-link", {"rank": 2})
    assert first["numbers"]["bytes_per_s"] == pytest.approx(GBIT_PER_S / 4, rel=0.25)


COUNTER = """
import sys, time
for _ in range(60_000):
    with open("/sys/class/net/eth0/statistics/tx_bytes") as file:
        print(time.monotonic_ns(), file.read().strip(), flush=True)
    time.sleep(0.01)
"""
WINDOW_NS = 250_000_000


@contextmanager
def counted(hosts: Hosts) -> Iterator[list[tuple[int, int]]]:
    """Yield a list that has, afterwards, the bytes that the kernel counted on the first host's link, and when."""
    counter = hosts.start(0, [sys.executable, "-c", COUNTER], "/")
    found: list[tuple[int, int]] = []
    try:
        yield found
    finally:
        counter.kill()
        lines = counter.communicate()[0].splitlines()
        found += [(int(at), int(sent)) for at, _, sent in (line.partition(" ") for line in lines if " " in line)]


def busiest_bytes_per_s(samples: list[tuple[int, int]]) -> float:
    """Return the highest rate in a quarter of a second."""
    rates, begin = [0.0], 0
    for at, sent in samples:
        while at - samples[begin][0] > WINDOW_NS:
            begin += 1
        passed_ns = at - samples[begin][0]
        if passed_ns > 0.8 * WINDOW_NS:
            rates.append((sent - samples[begin][1]) / passed_ns * 1e9)
    return max(rates)


@contextmanager
def two_hosts(rate: str) -> Iterator[Hosts]:
    try:
        with linked_hosts(2, rate) as made:
            yield made
    except NoHosts as reason:
        pytest.skip(f"no hosts here: {reason}")


def report_at(speed: str, out: Path) -> dict[str, Any]:
    command = [*DDPPROF, "report", str(out), "--json", *(["--link-speed", speed] if speed else [])]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=True)
    content: dict[str, Any] = json.loads(done.stdout)
    return content


@pytest.mark.long
@pytest.mark.parametrize(("rate", "speed"), [("1gbit", "1Gbit"), ("300mbit", "300Mbit")])
def test_the_share_of_the_link_is_what_the_kernel_counts(rate: str, speed: str, tmp_path: Path) -> None:
    """The interface states 10 Gbit/s, as all virtual ones do, so that only the stated speed counts."""
    bits_per_s = {"1gbit": 10**9, "300mbit": 3 * 10**8}[rate]
    with two_hosts(rate) as hosts, counted(hosts) as samples:
        out = tmp_path / "run"
        record(hosts, out, "--width", "2048", "--layers", "4", "--batch", "1", "--bucket-cap-mb", "100", steps=6)
    shown = report_at(speed, out)
    limit = shown["link_limit"]
    assert (limit["network"], limit["names"], limit["is_stated"]) == ("socket", ["eth0"], True)
    assert limit["limit_bits_per_s"] == bits_per_s
    on_wire = busiest_bytes_per_s(samples)
    assert limit["reached_bytes_per_s"] == pytest.approx(on_wire, rel=0.10)
    assert 8 * on_wire / bits_per_s == pytest.approx(1, rel=0.10)
    (found,) = [one for one in shown["findings"] if one["rule"] == "at-link-limit"]
    assert found["numbers"]["link_share"] == pytest.approx(8 * on_wire / bits_per_s, rel=0.10)
    unstated = report_at("", out)
    assert unstated["link_limit"]["limit_bits_per_s"] is None
    assert "at-link-limit" not in [one["rule"] for one in unstated["findings"]]


@pytest.mark.long
def test_netbench_says_which_share_of_the_link_it_reached(tmp_path: Path) -> None:
    with two_hosts("1gbit") as hosts, counted(hosts) as samples:
        options = ["--sizes", "1M,16M", "--seconds", "1", "--link-speed", "1Gbit", "-o", "network.json"]
        ranks = [hosts.start(host, [*DDPPROF, "netbench", *options], tmp_path) for host in range(2)]
        said = [rank.communicate(timeout=300) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    share = 8 * busiest_bytes_per_s(samples) / 1e9
    (line,) = [line for line in said[0][0].splitlines() if "of bus bandwidth" in line]
    assert "of 1 Gbit/s (eth0, as stated)" in " ".join(said[0][0].split())
    reached = float(line.partition(" reached ")[2].partition(" GB/s")[0])
    assert 8 * reached == pytest.approx(share, rel=0.10)
    bench = json.loads((tmp_path / "network.json").read_text())
    assert [one["interface"] for one in bench["links"]] == ["eth0", "eth0"]
    assert bench["link_bits_per_s"] == 10**9
