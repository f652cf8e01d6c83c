"""The paths between ranks: what a machine has, as its rank saw it, and what NCCL says that it uses.

Speeds are bit/s, as links are sold; bandwidths of collectives are bytes/s elsewhere. `LinkFacts` is part of a rank's
`Record` and of the file of ``ddpprof netbench``. `NcclChoices` is read from NCCL's own log.
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
    """speed, only of hardware: a virtual interface states one that means nothing"""
    is_hardware: bool
    """whether it is a device, or a bond or VLAN of devices"""
    has_address: bool = True
    """whether it has an IP address, so that sockets can use it"""


@dataclass(frozen=True, slots=True)
class InfinibandPort:
    """One active port of an RDMA device."""

    name: str
    """as NCCL writes it: ``mlx5_0:1``"""
    bits_per_s: int
    is_infiniband: bool
    """``False`` for RoCE, whose link is Ethernet"""


@dataclass(frozen=True, slots=True)
class PcieLink:
    """The PCIe link of one accelerator."""

    device: int
    """torch's index"""
    address: str
    """PCI address, such as ``0000:17:00.0``"""
    gt_per_s: float | None
    """transfers per second and lane, now; an idle device may lower it"""
    width: int | None
    """number of lanes in use"""
    most_gt_per_s: float | None = None
    most_width: int | None = None


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """The links of one rank's machine, and those that its process uses."""

    interface: str | None = None
    """interface of the sockets to other machines; ``"lo"`` if all its sockets stay on this machine; ``None`` if unknown
    """
    interfaces: tuple[Interface, ...] = ()
    """all interfaces that are up, without the loopback interface"""
    infiniband: tuple[InfinibandPort, ...] = ()
    opened_infiniband: bool = False
    """whether the process has opened an RDMA device"""
    others_used: tuple[str, ...] = ()
    """further interfaces of such sockets: NCCL may use several"""
    pcie: tuple[PcieLink, ...] = ()
    """links of the accelerators that the process sees"""
    no_peer_access: tuple[tuple[int, int], ...] = ()
    """pairs of these accelerators that cannot access each other's memory"""
    settings: Mapping[str, str] = field(default_factory=dict)
    """environment variables that choose a path, such as ``NCCL_IB_DISABLE``"""

    def named(self, name: str | None) -> Interface | None:
        return next((one for one in self.interfaces if one.name == name), None)

    @property
    def leaves_machine(self) -> bool:
        """Whether the process has sockets to other machines."""
        return self.interface not in (None, LOOPBACK)


@dataclass(frozen=True, slots=True)
class NcclChoices:
    """What NCCL logged about one process. Counts are those of channels in one direction."""

    version: str | None = None
    network: str | None = None
    """name of the network: ``"IB"``, ``"Socket"`` or that of a plugin"""
    interfaces: tuple[str, ...] = ()
    """interfaces that its sockets may use"""
    infiniband: tuple[str, ...] = ()
    """RDMA ports that it may use, such as ``mlx5_0:1``"""
    transports: Mapping[str, int] = field(default_factory=dict)
    """transport, such as ``"NET/Socket"``, ``"NET/IB/GDRDMA"``, ``"P2P/CUMEM"`` or ``"SHM"`` → number of channels"""
    num_channels: int | None = None
    """number of channels of a collective, of the largest communicator"""
    algorithm: str | None = None
    """algorithm of the largest all-reduce, such as ``"RING"``"""
    protocol: str | None = None
    """its protocol: ``"LL"``, ``"LL128"`` or ``"SIMPLE"``"""
    found_no_infiniband: bool = False
    """whether it looked for RDMA devices and found none"""
    without_p2p: tuple[tuple[int, int], ...] = ()
    """pairs of GPUs, by NVML's index, that are connected but have P2P disabled"""
    settings: Mapping[str, str] = field(default_factory=dict)
    """NCCL's variables in the environment"""


def common_interfaces(ranks: Sequence[LinkFacts]) -> tuple[Interface, ...]:
    """Return the interfaces, by name, that all ranks have, each with the lowest speed of any rank."""
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
