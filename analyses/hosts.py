"""Hosts made of network namespaces: each has its own name and address and a link of limited rate to a switch."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

NOT_OF_THIS_JOB = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


class NoHosts(Exception):
    """Error that says why this machine can have no such hosts."""


@dataclass(frozen=True)
class Hosts:
    namespaces: tuple[str, ...]

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"

    def start(self, host: int, command: Sequence[object], cwd: object, **env: str) -> subprocess.Popen[str]:
        """Run a command there, as one rank of a job with one rank a host."""
        job = {name: value for name, value in os.environ.items() if name not in NOT_OF_THIS_JOB} | {
            "OMP_NUM_THREADS": "1",
            "RANK": str(host),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(len(self.namespaces)),
            "MASTER_ADDR": self.address(0),
            "MASTER_PORT": "29400",
            "GLOO_SOCKET_IFNAME": "eth0",
            **env,
        }
        return subprocess.Popen(
            on_host(self.namespaces[host], f"node{host}", command),
            cwd=str(cwd),
            env=job,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run_job(self, command: Sequence[object], cwd: object, **env: str) -> None:
        """Run one rank on every host until all have ended. Raises ``RuntimeError`` with a failed rank's output."""
        ranks = [self.start(host, command, cwd, **env) for host in range(len(self.namespaces))]
        said = [rank.communicate()[1] for rank in ranks]
        for host, rank in enumerate(ranks):
            if rank.returncode != 0:
                raise RuntimeError(f"rank {host} ended with {rank.returncode}:\n{said[host]}")


def on_host(namespace: str, name: str, command: Sequence[object]) -> list[str]:
    """Return the words of a command that runs in a network namespace, with a host name of its own."""
    named = f'hostname {name} && exec "$@"'
    return ["ip", "netns", "exec", namespace, "unshare", "--uts", "sh", "-c", named, "sh", *map(str, command)]


def limit_own_link(rate: str, burst: str) -> None:
    """Set the rate of the link of the host that the caller runs on; a job may do so while it runs."""
    _run(f"tc qdisc replace dev eth0 root tbf rate {rate} burst {burst} latency 50ms")


@contextmanager
def linked_hosts(num_hosts: int, rate: str, burst: str = "256kb", both_ends: bool = False) -> Iterator[Hosts]:
    """Make hosts with links; `rate` and `burst` are written as ``tc`` does: ``1gbit``. Raises `NoHosts`.

    The rate limits each host's outgoing traffic; with `both_ends` also the switch's traffic to a host, so that several
    hosts that send to one share its link.
    """
    if os.geteuid() != 0:
        raise NoHosts("network namespaces need root")
    for tool in ("ip", "tc", "unshare"):
        if shutil.which(tool) is None:
            raise NoHosts(f"there is no {tool} (Debian: iproute2, util-linux)")
    prefix = f"ddpprof-{os.getpid()}"
    switch = f"{prefix}-switch"
    hosts = Hosts(tuple(f"{prefix}-{host}" for host in range(num_hosts)))
    try:
        try:
            _run(f"ip netns add {switch}")
            _run(f"ip -n {switch} link add br0 type bridge")
            _run(f"ip -n {switch} link set br0 up")
            for host, name in enumerate(hosts.namespaces):
                _run(f"ip netns add {name}")
                _run(f"ip -n {name} link add eth0 type veth peer name port{host} netns {switch}")
                _run(f"ip -n {name} addr add {hosts.address(host)}/24 dev eth0")
                _run(f"ip -n {name} link set eth0 up")
                _run(f"ip -n {name} link set lo up")
                _run(f"ip -n {switch} link set port{host} master br0 up")
                _run(f"ip netns exec {name} tc qdisc add dev eth0 root tbf rate {rate} burst {burst} latency 50ms")
                if both_ends:
                    limit = f"root tbf rate {rate} burst {burst} latency 50ms"
                    _run(f"ip netns exec {switch} tc qdisc add dev port{host} {limit}")
        except subprocess.CalledProcessError as error:
            raise NoHosts(f"{' '.join(error.cmd)}: {error.stderr.strip()}") from error
        yield hosts
    finally:
        for name in (*hosts.namespaces, switch):
            with suppress(subprocess.CalledProcessError):
                _run(f"ip netns del {name}")


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, text=True)
