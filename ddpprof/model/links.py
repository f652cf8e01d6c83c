"""The links between ranks: the hardware of each rank's machine, and the choices that NCCL logged.

Link speeds are in bit/s; bandwidths of collectives, in other modules, are in bytes/s. `LinkFacts` is part of a rank's
`Record` and of the files of ``ddpprof netbench``. `NcclChoices` is read from NCCL's log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LOOPBACK = "lo"


@dataclass(frozen=True, slots=True)
class Interface:
    """One network interface that is up."""

    name: str
    bits_per_s: int | None
    """link speed; ``None`` for a virtual interface, because virtual interfaces report meaningless speeds"""
    is_hardware: bool
    """whether the interface is a physical network device, or a bond or VLAN of such devices"""
    has_address: bool = True
    """whether the interface has an IP address, which sockets need"""


@dataclass(frozen=True, slots=True)
class InfinibandPort:
    """One active port of an RDMA device."""

    name: str
    """port name in NCCL's format: ``mlx5_0:1``"""
    bits_per_s: int
    is_infiniband: bool
    """``False`` for RoCE, which runs over Ethernet"""


@dataclass(frozen=True, slots=True)
class PcieLink:
    """The PCIe link of one accelerator."""

    device: int
    """device index in PyTorch"""
    address: str
    """PCI address, such as ``0000:17:00.0``"""
    gt_per_s: float | None
    """current speed in GT/s per lane; while the device is idle, the speed may be lower"""
    width: int | None
    """number of lanes in use"""
    most_gt_per_s: float | None = None
    most_width: int | None = None


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """The links of one rank's machine, and the links that its process uses."""

    interface: str | None = None
    """interface that carries the process's sockets to other machines; ``"lo"`` if all sockets are local; ``None`` if
    unknown
    """
    interfaces: tuple[Interface, ...] = ()
    """all interfaces that are up, except the loopback interface"""
    infiniband: tuple[InfinibandPort, ...] = ()
    opened_infiniband: bool = False
    """whether the process has opened an RDMA device"""
    others_used: tuple[str, ...] = ()
    """additional interfaces that carry sockets to other machines, because NCCL may use several interfaces"""
    pcie: tuple[PcieLink, ...] = ()
    """PCIe links of the accelerators visible to the process"""
    no_peer_access: tuple[tuple[int, int], ...] = ()
    """pairs of devices in `pcie` that cannot access each other's memory"""
    settings: Mapping[str, str] = field(default_factory=dict)
    """values of environment variables that select links, such as ``NCCL_IB_DISABLE``"""

    def named(self, name: str | None) -> Interface | None:
        return next((one for one in self.interfaces if one.name == name), None)

    @property
    def leaves_machine(self) -> bool:
        """Whether the process has sockets to other machines."""
        return self.interface not in (None, LOOPBACK)


@dataclass(frozen=True, slots=True)
class Connection:
    """What a process sent over one TCP connection during some steps."""

    local: str
    peer: str
    """IP addresses"""
    sent_bytes: int
    """bytes that the peer has acknowledged"""
    sending_ns: int
    """time in which some bytes were sent but not acknowledged"""
    limited_ns: int
    """part of `sending_ns` in which the peer's receive window was full, because the peer reads late or the link is slow
    """


@dataclass(frozen=True, slots=True)
class Traffic:
    """What all processes of a machine sent and received over one interface during some steps of a rank."""

    interface: str
    num_steps: int
    sent_bytes: int
    received_bytes: int
    connections: tuple[Connection, ...] = ()
    """connections of the rank's process over which it sent at least 1 MiB to another machine"""

    @property
    def bytes_per_step(self) -> float:
        """Bytes per step in the direction that carries more."""
        return max(self.sent_bytes, self.received_bytes) / max(1, self.num_steps)


def longest_message_ns(round_trip_ns: int, *, waits_for_cores: bool) -> int:
    """Return the largest plausible latency of one message of a collective, given the round trip of a short message.

    `waits_for_cores`: whether threads that send and receive may wait for a core. Otherwise, only launching a kernel
    adds to the round trip.
    """
    return round_trip_ns + (2_000_000 if waits_for_cores else 100_000)


@dataclass(frozen=True, slots=True)
class NcclChoices:
    """NCCL's choices, as logged by one process. Channels are counted in one direction."""

    version: str | None = None
    network: str | None = None
    """network that NCCL uses: ``"IB"``, ``"Socket"`` or the name of a plugin"""
    interfaces: tuple[str, ...] = ()
    """network interfaces that NCCL may use for sockets"""
    infiniband: tuple[str, ...] = ()
    """RDMA ports that NCCL may use, such as ``mlx5_0:1``"""
    transports: Mapping[str, int] = field(default_factory=dict)
    """number of channels of each transport, such as ``"NET/Socket"``, ``"NET/IB/GDRDMA"``, ``"P2P/CUMEM"``,
    ``"SHM"``
    """
    num_channels: int | None = None
    """number of channels of the communicator with the most channels"""
    algorithm: str | None = None
    """algorithm of the largest all-reduce, such as ``"RING"``"""
    protocol: str | None = None
    """protocol of the largest all-reduce: ``"LL"``, ``"LL128"`` or ``"SIMPLE"``"""
    found_no_infiniband: bool = False
    """whether NCCL found no RDMA devices"""
    without_p2p: tuple[tuple[int, int], ...] = ()
    """pairs of GPUs (NVML indices) between which P2P is disabled"""
    settings: Mapping[str, str] = field(default_factory=dict)
    """values of NCCL's environment variables"""


def common_interfaces(ranks: Sequence[LinkFacts]) -> tuple[Interface, ...]:
    """Return the interfaces that all ranks have, matched by name, each with its lowest speed on any rank."""
    found = []
    for one in ranks[0].interfaces if ranks else ():
        of_all = [rank.named(one.name) for rank in ranks]
        there = [each for each in of_all if each is not None]
        if len(there) == len(ranks):
            speeds = [each.bits_per_s for each in there if each.bits_per_s is not None]
            lowest = min(speeds) if len(speeds) == len(there) else None
            is_hardware = all(each.is_hardware for each in there)
            found.append(Interface(one.name, lowest, is_hardware, all(each.has_address for each in there)))
    return tuple(found)
