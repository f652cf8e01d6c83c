"""Compare the bandwidth that the all-reduces reach with the bandwidth of the network path between the ranks.

    reached = bus bandwidth of the largest all-reduces over all ranks, as in nccl-tests: bytes · 2(n-1)/n / transfer,
              where the transfer time does not include waiting for late ranks
    limit   = speed of the network interface that the sockets use, or of the InfiniBand ports, or the given speed
    share   = reached / limit. TCP overhead is 4 % of a link with 1500-byte frames

Within one machine the limit is unknown. The rules report a faster path that is not used, and a saturated link. Even on
a saturated link, different buckets may hide more of the communication.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddpprof.engine.finding import Change, Finding, at_most, environment_change, only_known, size
from ddpprof.engine.topic import ReportView, Topic, View
from ddpprof.layout import Line, Section, clean, count, gigabytes_per_s, percent, three_digits
from ddpprof.model import CollectiveKind, DdpModule, Rank, Record
from ddpprof.model.backends import ON_HOST
from ddpprof.model.json_files import NetBench
from ddpprof.model.links import InfinibandPort, LinkFacts, NcclChoices, PcieLink, common_interfaces
from ddpprof.topics.buckets.rules import BUCKETS
from ddpprof.topics.collectives import CollectiveSummary, bus_factor, measure_link, power_of_two
from ddpprof.topics.layer_collectives import LAYER_COLLECTIVES
from ddpprof.topics.ranks.across import ACROSS
from ddpprof.topics.script_collectives import SCRIPT_COLLECTIVES
from ddpprof.words import listed, ranks_in_words

_LEAST_BYTES = 1 << 20
"""all-reduces smaller than this many bytes are ignored, because their time is mostly latency"""
_AT_LIMIT = 0.85
"""a link counts as saturated if communication reaches at least this share of its limit"""
_IMPOSSIBLE = 1.1
"""if communication reaches more than this share of the limit, the limit must be wrong"""
_FASTER = 2.0
"""another path is reported if it is at least this many times as fast"""
_SOCKET, _INFINIBAND = "socket", "infiniband"
_MOST_NAMES = 4
_KERNEL = re.compile(r"nccl(?:Dev)?Kernel_AllReduce_(?:\w+_)?(RING|TREE)_")


@dataclass(frozen=True, slots=True)
class RankChoices:
    """The path and the algorithms that NCCL chose on one rank."""

    rank: int
    log: NcclChoices | None
    kernel_algorithm: str | None
    """``"TREE"`` or ``"RING"``, from the names of most all-reduce kernels; ``"RING"`` also stands for NVLS and CollNet.
    The protocol in a kernel's name has no meaning, because each NCCL kernel supports all protocols
    """


@dataclass(frozen=True, slots=True)
class LinkLimit:
    """The network path between the ranks, its speed, and the bandwidth reached on it."""

    network: str | None
    """``"socket"`` or ``"infiniband"``; ``None`` if all ranks are on one machine, or if unknown"""
    names: tuple[str, ...] = ()
    """names of the network interfaces or InfiniBand ports"""
    limit_bits_per_s: int | None = None
    is_stated: bool = False
    """True if the user gave the limit"""
    reached_bytes_per_s: float | None = None
    """bus bandwidth that the largest all-reduces reach"""
    at_least_bytes: int | None = None
    """smallest size of the all-reduces from which `reached_bytes_per_s` was computed"""
    below_bytes: int | None = None
    nccl: NcclChoices | None = None
    """choices that NCCL logged on the first rank, but with the transports of all ranks"""
    kernel_algorithm: str | None = None
    """algorithm in the names of NCCL's kernels: ``"TREE"`` or ``"RING"``; ``"RING"`` also stands for NVLS and
    CollNet
    """
    pcie: tuple[PcieLink, ...] = ()
    """PCIe links of the GPUs on the first rank's machine"""

    @property
    def share(self) -> float | None:
        if self.limit_bits_per_s is None or self.reached_bytes_per_s is None:
            return None
        return 8 * self.reached_bytes_per_s / self.limit_bits_per_s


def choices_of(rank: Rank, _steps: Sequence[int], _modules: Sequence[DdpModule]) -> RankChoices | None:
    """Return the choices of NCCL on this rank; ``None`` if neither its log nor the names of its kernels are known."""
    algorithm = _kernel_algorithm(rank)
    return None if rank.nccl is None and algorithm is None else RankChoices(rank.rank, rank.nccl, algorithm)


def _kernel_algorithm(rank: Rank) -> str | None:
    trace = rank.trace
    if trace is None:
        return None
    rows = trace.collectives.name[trace.collectives.kind == CollectiveKind.ALL_REDUCE]
    found: Counter[str] = Counter()
    for name, number in zip(*np.unique(rows, return_counts=True), strict=True):
        if (match := _KERNEL.search(trace.names[name])) is not None:
            found[match[1]] += int(number)
    return found.most_common(1)[0][0] if found else None


def link_limit(view: View) -> LinkLimit | None:
    """Return the network path and its limit; ``None`` if unknown, or if all ranks are on one machine without NCCL."""
    ranks = [one.links for one in view.records.values() if one.links is not None]
    choices = view[NCCL_CHOICES] or ()
    logs = [one.log for one in choices if one.log is not None]
    path = _path(ranks, view.backend, logs, view.link_bits_per_s)
    nccl = _joined(logs)
    is_known = path is not None or nccl is not None or (view.backend == "nccl" and bool(ranks))
    if not is_known:
        return None
    across = view[ACROSS]
    largest = _largest(across.collectives if across is not None else (), view.world_size)
    return replace(
        path or LinkLimit(None),
        reached_bytes_per_s=None if largest is None else largest.busbw_bytes_per_s,
        at_least_bytes=None if largest is None else largest.at_least_bytes,
        below_bytes=None if largest is None else largest.below_bytes,
        nccl=nccl,
        kernel_algorithm=next((one.kernel_algorithm for one in choices if one.kernel_algorithm), None),
        pcie=ranks[0].pcie if ranks else (),
    )


def _largest(rows: Sequence[CollectiveSummary], world_size: int | None) -> CollectiveSummary | None:
    """Return the size class of the largest all-reduces over all ranks, if they were matched between ranks."""
    name = CollectiveKind.ALL_REDUCE.name.lower()
    known = [
        row
        for row in rows
        if row.kind == name and row.num_ranks == world_size and row.num_ranks_read > 1 and row.busbw_bytes_per_s
    ]
    large = [row for row in known if (row.at_least_bytes or 0) >= _LEAST_BYTES]
    return max(large, key=lambda row: row.at_least_bytes or 0, default=None)


def _path(
    ranks: Sequence[LinkFacts], backend: str | None, logs: Sequence[NcclChoices], stated: int | None
) -> LinkLimit | None:
    """Return the path between machines; ``None`` if all ranks are on one machine and no speed is given."""
    outside = [one for one in ranks if one.leaves_machine]
    if not outside:
        return None if stated is None else LinkLimit(None, limit_bits_per_s=stated, is_stated=True)
    if backend not in ON_HOST and _uses_infiniband(outside, logs):
        names, limit = _infiniband_limit(outside, logs)
        path = LinkLimit(_INFINIBAND, names, limit)
    elif backend in (*ON_HOST, "nccl"):
        named = tuple(dict.fromkeys(name for one in logs for name in one.interfaces))
        path = LinkLimit(_SOCKET, named or _used(outside), _socket_limit(outside, named))
    else:
        path = LinkLimit(None)
    return path if stated is None else replace(path, limit_bits_per_s=stated, is_stated=True)


def _used(ranks: Sequence[LinkFacts]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.interface for one in ranks if one.interface is not None))


def _socket_limit(ranks: Sequence[LinkFacts], named: Sequence[str]) -> int | None:
    """Return the interface speed of the slowest rank; ``None`` if the speed of an interface is unknown.

    `named`: interfaces that NCCL uses together, according to its log.
    """
    lowest = None
    for rank in ranks:
        used = [rank.named(name) for name in named or (rank.interface,)]
        speeds = [one.bits_per_s for one in used if one is not None and one.bits_per_s is not None]
        if len(speeds) < len(used):
            return None
        lowest = min(sum(speeds), lowest if lowest is not None else sum(speeds))
    return lowest


def _uses_infiniband(ranks: Sequence[LinkFacts], logs: Sequence[NcclChoices]) -> bool:
    networks = {one.network for one in logs if one.network is not None}
    return networks == {"IB"} if networks else all(one.opened_infiniband for one in ranks)


def _infiniband_limit(ranks: Sequence[LinkFacts], logs: Sequence[NcclChoices]) -> tuple[tuple[str, ...], int | None]:
    """Return the ports that NCCL may use on the slowest machine, and their total speed."""
    named = {name for one in logs for name in one.infiniband}
    ports = [[port for port in one.infiniband if not named or port.name in named] for one in ranks]
    if not all(ports):
        return tuple(sorted(named)), None
    slowest = min(ports, key=_total)
    return tuple(port.name for port in slowest), _total(slowest)


def _total(ports: Sequence[InfinibandPort]) -> int:
    return sum(port.bits_per_s for port in ports)


def _joined(logs: Sequence[NcclChoices]) -> NcclChoices | None:
    """Return the first rank's choices, with the transports, pairs and algorithms of all ranks."""
    if not logs:
        return None
    transports: Counter[str] = Counter()
    for one in logs:
        transports.update(one.transports)
    tuned = next((one for one in logs if one.algorithm is not None), logs[0])  # only rank 0 logs them
    return replace(
        logs[0],
        transports=dict(transports.most_common()),
        algorithm=tuned.algorithm,
        protocol=tuned.protocol,
        found_no_infiniband=any(one.found_no_infiniband for one in logs),
        without_p2p=tuple(sorted({pair for one in logs for pair in one.without_p2p})),
    )


def link_lines(limit: LinkLimit, _report: ReportView) -> Iterable[Section]:
    if limit.share is not None:
        sizes = f"{power_of_two(limit.at_least_bytes or 0)} to {power_of_two(limit.below_bytes or 0)}"
        yield Line(f"All-reduces of {sizes} {_reached(limit)}.{_overhead(limit)}")
    elif limit.network is not None and limit.names and limit.limit_bits_per_s is None:
        yield Line(
            f"The ranks communicate over {_names(limit)}. The link speed is unknown: specify it with --link-speed.",
            is_aside=True,
        )
    if limit.nccl is not None:
        yield Line(f"NCCL's log: {_nccl_words(limit.nccl)}.")
    elif limit.kernel_algorithm is not None and limit.network is not None:
        kind = "a tree" if limit.kernel_algorithm == "TREE" else "a ring, NVLS or CollNet"
        yield Line(f"NCCL's all-reduce kernels use {kind}. Use --nccl-log to see what NCCL selects.", is_aside=True)
    if limit.pcie:
        yield Line(f"PCIe links: {listed([*map(_pcie_words, limit.pcie)], 2 * _MOST_NAMES)}.", is_aside=True)


def _reached(limit: LinkLimit) -> str:
    """Return a clause such as ``reached 0.117 GB/s of bus bandwidth, 94% of 1 Gbit/s (eth0)``."""
    speed = rate(limit.limit_bits_per_s or 0)
    where = f"{_names(limit)}, " if limit.names and limit.is_stated else _names(limit)
    source = f" ({where}{'as stated' if limit.is_stated else ''})"
    bandwidth = gigabytes_per_s(limit.reached_bytes_per_s)
    return f"reached {bandwidth} GB/s of bus bandwidth, {percent(limit.share)} of {speed}{source}"


def _overhead(limit: LinkLimit) -> str:
    if (limit.share or 0) > _IMPOSSIBLE:
        return " The link is faster than the speed given here, or the all-reduces did not use it."
    return " TCP overhead takes about 4% of a link's bandwidth." if limit.network == _SOCKET else ""


def _names(limit: LinkLimit) -> str:
    return clean(listed(limit.names, _MOST_NAMES)) if limit.names else ""


def rate(bits_per_s: float) -> str:
    """Return a speed with its unit, such as ``10 Gbit/s`` or ``100 Mbit/s``."""
    return (
        f"{three_digits(bits_per_s / 1e9)} Gbit/s" if bits_per_s >= 1e9 else f"{three_digits(bits_per_s / 1e6)} Mbit/s"
    )


def _nccl_words(nccl: NcclChoices) -> str:
    version = "" if nccl.version is None else f"version {clean(nccl.version, most=30)}"
    network = "" if nccl.network is None else f"network {clean(nccl.network, most=40)}"
    transports = ", ".join(f"{clean(name, most=40)} ({count(n, 'channel')})" for name, n in nccl.transports.items())
    chosen = f"{nccl.algorithm} with protocol {nccl.protocol}" if nccl.algorithm is not None else ""
    channels = "" if nccl.num_channels is None else f"{count(nccl.num_channels, 'channel')} per collective"
    largest = f"largest all-reduce: {clean(chosen, most=60)}" if chosen else ""
    return "; ".join(part for part in (version, network, transports, channels, largest) if part) or "no choices found"


def _pcie_words(link: PcieLink) -> str:
    speed = "" if link.gt_per_s is None else f" {link.gt_per_s:g} GT/s"
    lanes = "" if link.width is None else f" x{link.width}"
    most = f" of x{link.most_width}" if link.most_width not in (None, link.width) else ""
    return f"GPU {link.device}{speed}{lanes}{most}"


def reached_by_netbench(bench: NetBench) -> str | None:
    """Return the share of the link's speed that `ddpprof netbench` reached, as a sentence; ``None`` if unknown."""
    path = _path(bench.links, bench.backend, (), bench.link_bits_per_s)
    speeds = [one for one in measure_link(bench) if one.num_bytes >= _LEAST_BYTES and one.busbw_bytes_per_s]
    if path is None or not speeds:
        return None
    best = max(speeds, key=lambda one: one.busbw_bytes_per_s or 0.0)
    limit = replace(path, reached_bytes_per_s=best.busbw_bytes_per_s)
    if limit.share is None:
        return None
    return f"{power_of_two(best.num_bytes)} {_reached(limit)}.{_overhead(limit)}"


def sockets_beside_infiniband(limit: LinkLimit, view: View) -> Iterator[Finding]:
    """Report that NCCL uses sockets although all machines have active InfiniBand ports."""
    links = _of_machines(view)
    ports = [[port for port in one.infiniband if port.is_infiniband] for one in links]
    if limit.network != _SOCKET or view.backend != "nccl" or not ports or not all(ports):
        return
    if not view.worth(view.exposed_ns):
        return
    slowest = min(ports, key=_total)
    total = _total(slowest)
    speed = "" if limit.limit_bits_per_s is None else f" of {rate(limit.limit_bits_per_s)}"
    change, why = _infiniband_change(_settings(links, limit.nccl), limit.nccl)
    faster = limit.limit_bits_per_s is not None and total >= _FASTER * limit.limit_bits_per_s
    yield _finding(
        "sockets-beside-infiniband",
        view,
        f"NCCL uses sockets although InfiniBand is up ({rate(total)} per machine)",
        f"the ranks communicate over {_names(limit) or 'sockets'}{speed}, and every machine has active InfiniBand: "
        f"{listed([f'{port.name} {rate(port.bits_per_s)}' for port in slowest], _MOST_NAMES)}{_so_far(limit)}",
        why,
        change,
        is_twice=faster,
        numbers=only_known(infiniband_bits_per_s=total, interface_bits_per_s=limit.limit_bits_per_s),
    )


def _infiniband_change(settings: Mapping[str, str], nccl: NcclChoices | None) -> tuple[Change | None, str]:
    """Return the change that makes NCCL use InfiniBand, if an environment variable prevents it, and the advice."""
    if settings.get("NCCL_IB_DISABLE", "0") != "0":
        return environment_change(NCCL_IB_DISABLE="0"), "Unset NCCL_IB_DISABLE, or set it to 0, on every rank."
    if settings.get("NCCL_NET", "").lower() == "socket":
        return environment_change(NCCL_NET="IB"), "Set NCCL_NET=IB on every rank, or unset it."
    found = "NCCL found no InfiniBand device. " if nccl is not None and nccl.found_no_infiniband else ""
    return None, (
        f"{found}Make the devices available to the ranks: a container needs /dev/infiniband (docker run "
        "--device=/dev/infiniband --ulimit memlock=-1) and libibverbs. ibv_devinfo in the container lists what NCCL "
        "can use; --nccl-log shows what NCCL finds."
    )


def slower_interface(limit: LinkLimit, view: View) -> Iterator[Finding]:
    """Report sockets on one interface if all machines have another interface that is at least twice as fast."""
    used = None if limit.is_stated else limit.limit_bits_per_s
    if limit.network != _SOCKET or used is None or not view.worth(view.exposed_ns):
        return
    links = _of_machines(view)
    in_use = {*limit.names, *(name for one in links for name in one.others_used)}
    others = [one for one in common_interfaces(links) if one.is_hardware and one.has_address and one.name not in in_use]
    best = max(others, key=lambda one: one.bits_per_s or 0, default=None)
    if best is None or best.bits_per_s is None or best.bits_per_s < _FASTER * used:
        return
    variable = "NCCL_SOCKET_IFNAME" if view.backend == "nccl" else "GLOO_SOCKET_IFNAME"
    yield _finding(
        "slower-interface",
        view,
        f"The ranks communicate over {_names(limit)} ({rate(used)}), but {best.name} has {rate(best.bits_per_s)}",
        f"both interfaces are up on every machine{_so_far(limit)}",
        f"Set {variable}={best.name} on every rank, if the machines can reach each other through {best.name}.",
        environment_change(**{variable: best.name}),
        is_twice=True,
        numbers=only_known(interface_bits_per_s=used, faster_bits_per_s=best.bits_per_s),
    )


def _finding(
    rule: str,
    view: View,
    title: str,
    evidence: str,
    advice: str,
    change: Change | None,
    *,
    is_twice: bool,
    numbers: Mapping[str, int | float],
) -> Finding:
    """Return a finding about a path. `is_twice`: whether another path has at least twice the bandwidth."""
    predicted = view.predictions.double_link if is_twice else None
    if predicted is not None and predicted.gain_ns <= 0:
        predicted = None
    return Finding(
        rule,
        title,
        evidence,
        advice,
        None if predicted is None else at_most(view.exposed_ns, predicted),
        predicted=predicted,
        cause_ns=view.exposed_ns,
        change=change,
        numbers=numbers,
    )


def _so_far(limit: LinkLimit) -> str:
    reached = limit.reached_bytes_per_s
    return (
        "" if reached is None else f"; the largest all-reduces reached {gigabytes_per_s(reached)} GB/s of bus bandwidth"
    )


def no_peer_access(limit: LinkLimit, view: View) -> Iterator[Finding]:
    """Report GPUs of one machine that lack peer-to-peer access to each other, so their data passes through the host."""
    if view.backend != "nccl" or not view.worth(view.exposed_ns):
        return
    links = _of_machines(view)
    nccl = limit.nccl
    is_off = _settings(links, nccl).get("NCCL_P2P_DISABLE", "0") != "0"
    pairs = sorted({pair for record in view.records.values() for pair in _without_access(record, view)})
    pairs = pairs or list(nccl.without_p2p if nccl is not None else ())
    if is_off and _have_neighbours(view):
        title = "NCCL_P2P_DISABLE prevents GPUs of the same machine from exchanging data directly"
        said, advice = "NCCL_P2P_DISABLE is set", "Unset NCCL_P2P_DISABLE, or set it to 0, on every rank."
    elif pairs:
        named = listed([f"{one} and {other}" for one, other in pairs], _MOST_NAMES)
        title = "GPUs of one machine have no peer-to-peer access: their data passes through the host"
        said = f"no peer-to-peer access between GPUs {named}"
        advice = (
            "nvidia-smi topo -p2p r shows which pairs have access. In virtual machines and with an IOMMU, PCIe Access "
            "Control Services (ACS) prevent peer-to-peer access. GeForce cards do not support it at all. If you cannot "
            "enable it, send fewer bytes, or hide more of the communication behind computation."
        )
    else:
        return
    shm = nccl.transports.get("SHM") if nccl is not None else None
    through = f"; {count(shm, 'channel')} in NCCL's log use shared memory" if shm else ""
    yield Finding(
        "no-peer-access",
        title,
        f"{said}{through}",
        advice,
        None,
        change=environment_change(NCCL_P2P_DISABLE="0") if is_off else None,
        numbers=only_known(num_pairs=len(pairs) or None, num_shm_channels=shm),
    )


def _have_neighbours(view: View) -> bool:
    """Return True if at least two ranks train on the same machine."""
    return any(number > 1 for number in Counter(one.host for one in view.records.values()).values())


def _without_access(record: Record, view: View) -> Iterator[tuple[int, int]]:
    """Yield each pair of GPUs that lacks peer-to-peer access, among the GPUs used by this machine's ranks."""
    beside = [one for one in view.records.values() if one.host == record.host]
    used = {device.index for one in beside for device in one.devices if device.is_own}
    for pair in record.links.no_peer_access if record.links is not None else ():
        if used.issuperset(pair):
            yield pair


def at_link_limit(limit: LinkLimit, view: View) -> Iterator[Finding]:
    """Report a saturated link. No setting shortens the transfers, but different buckets may hide more of them."""
    share = limit.share
    if share is None or not _AT_LIMIT <= share <= _IMPOSSIBLE or not view.worth(view.exposed_ns):
        return
    best = view.predictions.best_buckets
    can_hide = best is not None and best.predicted is not None and view.worth(None, best.predicted)
    hide = (
        f"More of the communication can be hidden: {best.argument}. Apart from that, "
        if best is not None and can_hide
        else ""
    )
    advice = (
        "only a faster link or fewer bytes per sample help: use larger batches, accumulate gradients over several "
        "batches, or send gradients in half precision."
    )
    yield Finding(
        "at-link-limit",
        f"The link is saturated: all-reduces reach {percent(share)} of its {rate(limit.limit_bits_per_s or 0)}",
        f"the largest all-reduces {_reached(limit)}",
        f"{hide}{advice if hide else advice.capitalize()}",
        None,
        numbers=only_known(
            link_share=round(share, 3),
            limit_bits_per_s=limit.limit_bits_per_s,
            busbw_bytes_per_s=limit.reached_bytes_per_s,
        ),
    )


def other_traffic(limit: LinkLimit, view: View) -> Iterator[Finding]:
    """Report an interface that carries much more than the gradients, such as data that is read over the network."""
    if limit.network != _SOCKET:
        return
    gradients = _gradient_bytes_per_step(view)
    of_script, of_layers = view[SCRIPT_COLLECTIVES], view[LAYER_COLLECTIVES]
    if gradients is None or not view.worth(view.exposed_ns) or of_script or of_layers:
        return  # the sizes of other collectives are not always known
    ranks_of = Counter(one.host for one in view.records.values())
    of_rank = gradients * (bus_factor(CollectiveKind.ALL_REDUCE, view.group_size or view.world_size) or 0)
    own = {rank: ranks_of[one.host] * of_rank for rank, one in view.records.items()}
    carried = {rank: one.traffic for rank, one in view.records.items() if one.traffic is not None}
    most = max(carried, key=lambda rank: carried[rank].bytes_per_step - own[rank], default=None)
    if most is None or carried[most].num_steps < _FEWEST_STEPS:
        return
    traffic, own_bytes = carried[most], own[most]
    if traffic.bytes_per_step < _MORE_THAN_OWN * own_bytes + _LEAST_BYTES:
        return
    others = 1 - own_bytes / traffic.bytes_per_step
    yield Finding(
        "other-traffic",
        f"{percent(others)} of the traffic on rank {most}'s network interface is not DDP's gradient traffic",
        f"{traffic.interface} carried {size(traffic.bytes_per_step)} per step over {traffic.num_steps} steps, but the "
        f"gradients of the ranks on this machine need only {size(own_bytes)}",
        "Find what else uses this interface, such as reading data or writing checkpoints over the network, or another "
        "job. Use another interface for it, or for the ranks (set GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME).",
        min(view.exposed_ns or 0, round(others * (view.comm_ns or 0))),
        may_be_meant=True,
        subject={"rank": most},
        numbers=only_known(carried_bytes=round(traffic.bytes_per_step), gradient_bytes=round(own_bytes)),
    )


_FEWEST_STEPS = 10
_MORE_THAN_OWN = 1.5
"""other traffic is reported if the interface carries at least this many times the bytes of the gradients"""


def slow_link(limit: LinkLimit, view: View) -> Iterator[Finding]:
    """Report a machine, or a link between two machines of the job, that sends more slowly than all others.

    A link counts as slow only if it is slow even while the receiver does not limit it.
    """
    links = _links(view)
    if limit.network != _SOCKET or not links or not view.worth(view.exposed_ns) or any(other_traffic(limit, view)):
        return
    rates = {link: 1e9 * sent / (sending_ns - limited_ns) for link, (sent, sending_ns, limited_ns) in links.items()}
    slowest = min(rates, key=lambda link: rates[link])
    of_ends = [((end,), {link for link in rates if end in link}) for end in slowest]
    for ends, slow in (*of_ends, (slowest, {slowest})):
        others = rates.keys() - slow
        least = min((rates[link] for link in others), default=0.0)
        if max(rates[link] for link in slow) * _MUCH_SLOWER > least:
            continue
        reached = min(1e9 * sent / sending_ns for sent, sending_ns, _ in (links[link] for link in slow))
        names = [_machine(end, view) for end in ends]
        yield Finding(
            "slow-link",
            f"The network link {'of' if len(names) == 1 else 'from'} {' to '.join(names)} is by far the slowest, at "
            f"{gigabytes_per_s(reached)} GB/s",
            f"the {count(len(others), 'other link')} between machines reach at least {gigabytes_per_s(least)} GB/s "
            "while they send, according to the kernel's counters for the connections",
            "Each all-reduce waits for the slowest link. Compare the negotiated speed, the errors and the dropped "
            "packets of this machine's interface with those of other machines (ethtool, ip -s link), and look for a "
            "bandwidth limit of the virtual machine or the switch port. If you find no cause, train without this "
            "machine.",
            min(view.exposed_ns or 0, round((1 - reached / least) * (view.comm_ns or 0))),
            subject={"rank": _ranks_at(ends[0], view)[0]},
            numbers=only_known(bytes_per_s=round(reached), others_bytes_per_s=round(least)),
        )
        return


_MUCH_SLOWER = 1.5
_LEAST_SENDING_NS = 20_000_000
_MUCH_OF_MOST = 0.1
"""a connection is considered if it carries at least this share of the bytes of the busiest connection"""


def _links(view: View) -> dict[tuple[str, str], tuple[int, int, int]]:
    """Return the traffic between each pair of machines, given by their addresses, unless there is little.

    Returns the sums of `Connection.sent_bytes`, `Connection.sending_ns` and `Connection.limited_ns`.
    """
    of_ranks = [one for record in view.records.values() if record.traffic for one in record.traffic.connections]
    machines = {one.local for one in of_ranks}
    between = [one for one in of_ranks if one.peer in machines and one.peer != one.local]
    least = _MUCH_OF_MOST * max((one.sent_bytes for one in between), default=0)
    sums: dict[tuple[str, str], tuple[int, int, int]] = {}
    for one in between:
        if one.sent_bytes >= least and one.sending_ns - one.limited_ns >= _LEAST_SENDING_NS:
            sent, sending_ns, limited_ns = sums.get((one.local, one.peer), (0, 0, 0))
            now = (sent + one.sent_bytes, sending_ns + one.sending_ns, limited_ns + one.limited_ns)
            sums[one.local, one.peer] = now
    return sums


def _ranks_at(address: str, view: View) -> list[int]:
    connections = {rank: one.traffic.connections for rank, one in view.records.items() if one.traffic is not None}
    return sorted(rank for rank, of_rank in connections.items() if any(one.local == address for one in of_rank))


def _machine(address: str, view: View) -> str:
    """Return the name of a machine and its ranks, such as ``node3 (rank 6)``."""
    ranks = _ranks_at(address, view)
    return f"{clean(view.records[ranks[0]].host, most=40)} ({ranks_in_words(ranks)})"


def _gradient_bytes_per_step(view: View) -> int | None:
    """Return the bytes of the gradients that a rank reduces per step, and of the buffers that DDP broadcasts."""
    buckets = view[BUCKETS] or ()
    sizes = [bucket.num_passes * bucket.num_bytes for bucket in buckets if bucket.num_bytes is not None]
    if not sizes or len(sizes) < len(buckets):
        return None
    buffers = sum(module.buffer_bytes for module in view.modules) * (view.world_size or 1)
    return sum(sizes) + view.num_micro_steps * buffers


def _of_machines(view: View) -> list[LinkFacts]:
    return [one.links for one in view.records.values() if one.links is not None]


def _settings(links: Sequence[LinkFacts], nccl: NcclChoices | None) -> dict[str, str]:
    """Return the environment variables that select a path, as set on any rank or logged by NCCL."""
    found = dict(nccl.settings) if nccl is not None else {}
    for one in links:
        found.update(one.settings)
    return found


NCCL_CHOICES: Topic[RankChoices, tuple[RankChoices, ...]] = Topic(
    "nccl_choices", of_rank=choices_of, rank_type=RankChoices, of_ranks=tuple
)
LINK_LIMIT: Topic[None, LinkLimit] = Topic(
    "link_limit",
    of_run=link_limit,
    sections={"collectives": link_lines},
    rules=(sockets_beside_infiniband, slower_interface, no_peer_access, at_link_limit, other_traffic, slow_link),
)
