"""The path between ranks: its limit, what was reached on it, and which path would be faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as replace_struct
from observations import MS, observed, of_mib
from tables import record

from ddpprof.engine.finding import Finding, NewBuckets, Predicted, Predictions
from ddpprof.engine.topic import View, find
from ddpprof.model import DeviceMemory
from ddpprof.model.json_files import CollectiveTimes, NetBench
from ddpprof.model.links import Connection, InfinibandPort, Interface, LinkFacts, NcclChoices, PcieLink, Traffic
from ddpprof.topics.buckets.rules import BUCKETS
from ddpprof.topics.collectives import CollectiveSummary
from ddpprof.topics.layer_collectives import LAYER_COLLECTIVES
from ddpprof.topics.link_limit import (
    LINK_LIMIT,
    NCCL_CHOICES,
    LinkLimit,
    RankChoices,
    link_limit,
    link_lines,
    reached_by_netbench,
)
from ddpprof.topics.ranks.across import ACROSS
from ddpprof.topics.script_collectives import SCRIPT_COLLECTIVES

GBIT = 10**9
ETH0, ETH1 = Interface("eth0", 10 * GBIT, is_hardware=True), Interface("eth1", 25 * GBIT, is_hardware=True)
IB = (InfinibandPort("mlx5_0:1", 200 * GBIT, is_infiniband=True),)
SOCKETS = LinkFacts("eth0", (ETH0,))
LOOPBACK = LinkFacts("lo", (ETH0, ETH1), IB)


class Across:
    def __init__(self, *rows: CollectiveSummary) -> None:
        self.collectives = rows


def all_reduce(megabyte_per_s: float, at_least_bytes: int = 1 << 24, **changes: Any) -> CollectiveSummary:
    given: dict[str, Any] = {
        "kind": "all_reduce", "group": None, "num_ranks": 2, "at_least_bytes": at_least_bytes,
        "below_bytes": 2 * at_least_bytes, "num_calls": 4, "num_bytes": 4, "num_ranks_read": 2, "transfer_ns": MS,
        "shared_transfer_ns": MS, "waiting_ns": 0, "algbw_bytes_per_s": None,
        "busbw_bytes_per_s": megabyte_per_s * 1e6, **changes,
    }  # fmt: skip
    return CollectiveSummary(**given)


def view(
    *links: LinkFacts | None,
    backend: str = "gloo",
    rows: Sequence[CollectiveSummary] = (),
    logs: Sequence[NcclChoices | None] = (),
    **changes: Any,
) -> View:
    """Return a view of ranks with these links, one rank per host unless `hosts` says otherwise."""
    hosts = changes.pop("hosts", [f"host-{rank}" for rank in range(len(links))])
    used = changes.pop("devices", [0] * len(links))
    records = {
        rank: replace_struct(
            record(rank, backend=backend), links=one, host=hosts[rank], devices=(DeviceMemory(used[rank], 0, 0, 0),)
        )
        for rank, one in enumerate(links)
    }
    made = observed(backend=backend, records=records, **{"exposed_ns": 50 * MS, **changes})
    choices = tuple(RankChoices(rank, one, None) for rank, one in enumerate(logs))
    shown = {ACROSS.name: Across(*rows), NCCL_CHOICES.name: choices}
    return replace(made, shown={**made.shown, **shown})


def limit_of(made: View) -> LinkLimit:
    found = link_limit(made)
    assert found is not None
    return found


def findings(made: View) -> dict[str, Finding]:
    shown = link_limit(made)
    used = replace(made, shown={**made.shown, **({} if shown is None else {LINK_LIMIT.name: shown})})
    return {one.rule: one for one in find(used, [LINK_LIMIT])}


def test_the_share_of_the_interface_that_was_reached() -> None:
    found = limit_of(view(SOCKETS, SOCKETS, rows=[all_reduce(500, 1 << 21), all_reduce(1000), all_reduce(9e9, 4096)]))
    assert (found.network, found.names, found.limit_bits_per_s) == ("socket", ("eth0",), 10 * GBIT)
    assert found.at_least_bytes == 1 << 24
    assert found.share == pytest.approx(0.8)


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(all_reduce(1000, 1 << 19), id="small"),
        pytest.param(all_reduce(1000, num_ranks_read=1), id="waiting-is-not-known"),
        pytest.param(all_reduce(1000, num_ranks=1), id="of-some-ranks"),
        pytest.param(all_reduce(1000, kind="broadcast"), id="other-kind"),
    ],
)
def test_other_collectives_do_not_tell_what_was_reached(row: CollectiveSummary) -> None:
    assert limit_of(view(SOCKETS, SOCKETS, rows=[row])).share is None


def test_the_slowest_interface_in_use_is_the_limit() -> None:
    slow = LinkFacts("eth1", (Interface("eth1", GBIT, is_hardware=True),))
    found = limit_of(view(SOCKETS, slow))
    assert (found.names, found.limit_bits_per_s) == (("eth0", "eth1"), GBIT)
    unknown = LinkFacts("eth1", (Interface("eth1", None, is_hardware=False),))
    assert limit_of(view(SOCKETS, unknown)).limit_bits_per_s is None


def test_ranks_of_one_machine_have_no_known_limit() -> None:
    assert link_limit(view(LOOPBACK, LOOPBACK, rows=[all_reduce(1000)])) is None
    assert link_limit(view(None, None)) is None


def test_a_stated_speed_replaces_that_of_the_interface() -> None:
    found = limit_of(view(SOCKETS, SOCKETS, rows=[all_reduce(100)], link_bits_per_s=GBIT))
    assert found.is_stated
    assert found.share == pytest.approx(0.8)
    stated = limit_of(view(LOOPBACK, LOOPBACK, rows=[all_reduce(100)], link_bits_per_s=GBIT))
    assert (stated.network, stated.share) == (None, pytest.approx(0.8))


@pytest.mark.parametrize(
    ("links", "logs", "network", "limit"),
    [
        pytest.param(LinkFacts("eth0", (ETH0,), IB, opened_infiniband=True), [], "infiniband", 200 * GBIT, id="opened"),
        pytest.param(LinkFacts("eth0", (ETH0,), IB), [], "socket", 10 * GBIT, id="not-opened"),
        pytest.param(
            LinkFacts("eth0", (ETH0,), IB, opened_infiniband=True),
            [NcclChoices(network="Socket")],
            "socket",
            10 * GBIT,
            id="log-says-sockets",
        ),
        pytest.param(
            LinkFacts("eth0", (ETH0,), (*IB, InfinibandPort("mlx5_1:1", 100 * GBIT, is_infiniband=True))),
            [NcclChoices(network="IB", infiniband=("mlx5_1:1",))],
            "infiniband",
            100 * GBIT,
            id="log-names-the-port",
        ),
        pytest.param(LinkFacts("eth0", (ETH0,)), [NcclChoices(network="IB")], "infiniband", None, id="ports-not-seen"),
    ],
)
def test_which_network_nccl_uses(links: LinkFacts, logs: list[NcclChoices], network: str, limit: int | None) -> None:
    found = limit_of(view(links, links, backend="nccl", logs=logs))
    assert (found.network, found.limit_bits_per_s) == (network, limit)


def test_transports_of_all_ranks_are_added() -> None:
    logs = [
        NcclChoices(network="Socket", transports={"NET/Socket": 2}),
        NcclChoices(transports={"NET/Socket": 2, "SHM": 1}, algorithm="RING", protocol="LL", found_no_infiniband=True),
    ]
    nccl = limit_of(view(SOCKETS, SOCKETS, backend="nccl", logs=logs)).nccl
    assert nccl is not None
    assert nccl.transports == {"NET/Socket": 4, "SHM": 1}
    assert (nccl.network, nccl.algorithm, nccl.found_no_infiniband) == ("Socket", "RING", True)


def sentences(made: View) -> list[str]:
    return [section.text for section in link_lines(limit_of(made), made)]  # type: ignore[arg-type, union-attr]


def test_what_a_report_says() -> None:
    assert sentences(view(SOCKETS, SOCKETS, rows=[all_reduce(1175)])) == [
        (
            "All-reduces of 16 MiB to 32 MiB reached 1.18 GB/s of bus bandwidth, 94% of 10 Gbit/s (eth0). TCP overhead "
            "takes about 4% of a link's bandwidth."
        )
    ]
    (said,) = sentences(view(SOCKETS, SOCKETS, rows=[all_reduce(100)], link_bits_per_s=GBIT))
    assert "80% of 1 Gbit/s (eth0, as stated)" in said
    (said,) = sentences(view(SOCKETS, SOCKETS, rows=[all_reduce(500)], link_bits_per_s=GBIT))
    assert said.endswith("The link is faster than the speed given here, or the all-reduces did not use it.")
    (said,) = sentences(view(LinkFacts("eth0"), LinkFacts("eth0")))
    assert said == "The ranks communicate over eth0. The link speed is unknown: specify it with --link-speed."


def test_what_a_report_says_of_nccl() -> None:
    links = LinkFacts("lo", pcie=(PcieLink(0, "0000:17:00.0", 16.0, 8, 32.0, 16),))
    log = NcclChoices("2.27.5", transports={"SHM": 2}, num_channels=2, algorithm="RING", protocol="LL")
    assert sentences(view(links, links, backend="nccl", logs=[log])) == [
        (
            "NCCL's log: version 2.27.5; SHM (2 channels); 2 channels per collective; largest all-reduce: RING with "
            "protocol LL."
        ),
        "PCIe links: GPU 0 16 GT/s x8 of x16.",
    ]


def test_a_used_up_link_is_evidence_without_a_gain() -> None:
    full = view(SOCKETS, SOCKETS, rows=[all_reduce(1150)])
    found = findings(full)["at-link-limit"]
    assert found.gain_ns is None
    assert found.change is None
    assert found.numbers == {"link_share": 0.92, "limit_bits_per_s": 10 * GBIT, "busbw_bytes_per_s": 1150e6}
    assert found.advice.startswith("Only a faster link or fewer bytes per sample help")
    buckets = NewBuckets("bucket_cap_mb=4", (1, 2), Predicted(20 * MS, 10 * MS, 30 * MS))
    hidden = findings(replace(full, predictions=Predictions(best_buckets=buckets)))["at-link-limit"]
    assert hidden.advice.startswith(
        "More of the communication can be hidden: bucket_cap_mb=4. Apart from that, only a faster link or fewer"
    )


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"rows": [all_reduce(1000)]}, id="not-used-up"),
        pytest.param({"rows": [all_reduce(1500)]}, id="more-than-the-limit"),
        pytest.param({"rows": [all_reduce(1150)], "exposed_ns": 0}, id="hidden"),
        pytest.param({"rows": [all_reduce(1150)], "exposed_ns": None}, id="no-profiled-steps"),
    ],
)
def test_nothing_is_found_if_the_link_is_no_problem(changes: dict[str, Any]) -> None:
    assert findings(view(SOCKETS, SOCKETS, **changes)) == {}


def test_loopback_has_no_findings() -> None:
    assert findings(view(LOOPBACK, LOOPBACK, rows=[all_reduce(1e6)], hosts=["a", "a"])) == {}
    assert findings(view(LOOPBACK, LOOPBACK, backend="nccl", rows=[all_reduce(1e6)], hosts=["a", "a"])) == {}


BOTH = LinkFacts("eth0", (ETH0, ETH1))


@pytest.mark.parametrize(("backend", "variable"), [("gloo", "GLOO_SOCKET_IFNAME"), ("nccl", "NCCL_SOCKET_IFNAME")])
def test_a_faster_interface(backend: str, variable: str) -> None:
    gain = Predicted(20 * MS, 10 * MS, 30 * MS)
    found = findings(view(BOTH, BOTH, backend=backend, predictions=Predictions(double_link=gain)))["slower-interface"]
    assert found.title == "The ranks communicate over eth0 (10 Gbit/s), but eth1 has 25 Gbit/s"
    assert found.change is not None
    assert found.change.values == {variable: "eth1"}
    assert (found.predicted, found.gain_ns) == (gain, 30 * MS)
    assert found.numbers == {"interface_bits_per_s": 10 * GBIT, "faster_bits_per_s": 25 * GBIT}


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(replace(ETH1, bits_per_s=15 * GBIT), id="not-much-faster"),
        pytest.param(replace(ETH1, bits_per_s=None), id="unknown-speed"),
        pytest.param(replace(ETH1, is_hardware=False), id="virtual"),
        pytest.param(replace(ETH1, has_address=False), id="without-address"),
    ],
)
def test_an_interface_that_is_no_alternative(other: Interface) -> None:
    links = LinkFacts("eth0", (ETH0, other))
    assert findings(view(links, links)) == {}


def test_an_interface_that_nccl_uses_as_well_is_no_alternative() -> None:
    also = replace(BOTH, others_used=("eth1",))
    assert findings(view(also, also, backend="nccl")) == {}
    log = NcclChoices(network="Socket", interfaces=("eth0", "eth1"))
    both = view(BOTH, BOTH, backend="nccl", logs=[log])
    assert findings(both) == {}
    assert (limit_of(both).names, limit_of(both).limit_bits_per_s) == (("eth0", "eth1"), 35 * GBIT)


def test_an_interface_that_only_one_machine_has_is_no_alternative() -> None:
    assert findings(view(BOTH, SOCKETS)) == {}


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        pytest.param({"NCCL_IB_DISABLE": "1"}, {"NCCL_IB_DISABLE": "0"}, id="disabled"),
        pytest.param({"NCCL_NET": "Socket"}, {"NCCL_NET": "IB"}, id="another-network"),
        pytest.param({}, None, id="not-in-the-container"),
    ],
)
def test_sockets_although_infiniband_is_up(settings: dict[str, str], change: dict[str, str] | None) -> None:
    links = LinkFacts("eth0", (ETH0,), IB, settings=settings)
    log = NcclChoices(network="Socket", found_no_infiniband=not settings)
    found = findings(view(links, links, backend="nccl", rows=[all_reduce(1000)], logs=[log]))
    finding = found["sockets-beside-infiniband"]
    assert (None if finding.change is None else finding.change.values) == change
    assert finding.title == "NCCL uses sockets although InfiniBand is up (200 Gbit/s per machine)"
    assert "mlx5_0:1 200 Gbit/s; the largest all-reduces reached 1 GB/s" in finding.evidence
    assert finding.numbers == {"infiniband_bits_per_s": 200 * GBIT, "interface_bits_per_s": 10 * GBIT}
    assert ("found no InfiniBand device" in finding.advice) == (not settings)


def test_roce_and_infiniband_of_one_machine_only_are_no_alternative() -> None:
    roce = LinkFacts("eth0", (ETH0,), (replace(IB[0], is_infiniband=False),))
    assert findings(view(roce, roce, backend="nccl")) == {}
    assert findings(view(LinkFacts("eth0", (ETH0,), IB), SOCKETS, backend="nccl")) == {}
    both = LinkFacts("eth0", (ETH0,), IB)
    assert findings(view(both, both)) == {}  # gloo has no InfiniBand


ALONE = LinkFacts("lo", no_peer_access=((0, 1),))


def test_gpus_without_access_to_each_other() -> None:
    found = findings(view(ALONE, ALONE, backend="nccl", hosts=["a", "a"], devices=[0, 1]))["no-peer-access"]
    assert found.evidence == "no peer-to-peer access between GPUs 0 and 1"
    assert (found.change, found.gain_ns, found.numbers) == (None, None, {"num_pairs": 1})
    log = NcclChoices(without_p2p=((0, 1),), transports={"SHM": 4})
    told = findings(view(LOOPBACK, LOOPBACK, backend="nccl", logs=[log], hosts=["a", "a"]))["no-peer-access"]
    assert told.numbers == {"num_pairs": 1, "num_shm_channels": 4}


def test_gpus_that_no_rank_uses_and_those_of_other_machines_do_not_count() -> None:
    assert findings(view(ALONE, ALONE, backend="nccl", hosts=["a", "a"], devices=[0, 2])) == {}
    assert findings(view(ALONE, ALONE, backend="nccl", devices=[0, 1])) == {}


def test_p2p_that_a_variable_disables() -> None:
    links = LinkFacts("lo", settings={"NCCL_P2P_DISABLE": "1"})
    found = findings(view(links, links, backend="nccl", hosts=["a", "a"], devices=[0, 1]))["no-peer-access"]
    assert found.change is not None
    assert found.change.values == {"NCCL_P2P_DISABLE": "0"}
    assert findings(view(links, links, backend="nccl", hosts=["a", "b"])) == {}


def bench(*links: LinkFacts, speed: int | None = None) -> NetBench:
    sizes = (CollectiveTimes(1 << 24, (20 * MS,), (20 * MS,), (MS, MS)), CollectiveTimes(4096, (1,), (1,), (1, 1)))
    return NetBench(
        format=1, ddpprof="1", torch="2", created_unix_s=0, collective="all_reduce", dtype="float32", backend="gloo",
        device="cpu", world_size=2, hosts=("a", "b"), sizes=sizes, concurrent=(), left_out=(), links=links,
        link_bits_per_s=speed,
    )  # fmt: skip


def test_what_netbench_reached() -> None:
    said = (
        "16 MiB reached 0.839 GB/s of bus bandwidth, 67% of 10 Gbit/s (eth0). "
        "TCP overhead takes about 4% of a link's bandwidth."
    )
    assert reached_by_netbench(bench(SOCKETS, SOCKETS)) == said
    assert reached_by_netbench(bench(LOOPBACK, LOOPBACK)) is None
    assert reached_by_netbench(bench()) is None
    assert "67% of 10 Gbit/s (as stated)" in (reached_by_netbench(bench(speed=10 * GBIT)) or "")


def with_traffic(*megabytes_per_step: float, hosts: Sequence[str] = ("a", "b"), **changes: Any) -> View:
    """Ranks that reduce 8 MiB of gradients per step, on hosts whose interfaces carry this many MB per step."""
    module = of_mib([4], [4])
    known = [{"ready_ns": MS, "num_passes": 1}] * 2
    links = [changes.pop("links", SOCKETS)] * len(hosts)
    made = view(*links, hosts=list(hosts), rows=(all_reduce(100),), **{"comm_ns": 90 * MS, **changes})
    of_buckets = observed(module, known)
    records = {
        rank: replace_struct(one, traffic=Traffic("eth0", 20, round(20e6 * sent), round(10e6 * sent)))
        for (rank, one), sent in zip(made.records.items(), megabytes_per_step, strict=True)
    }
    return replace(
        made, records=records, modules=(module,), shown={**made.shown, BUCKETS.name: of_buckets.shown[BUCKETS.name]}
    )


def test_traffic_that_is_not_of_the_gradients() -> None:
    """Two ranks send 8.4 MB of gradients each; of the 33.6 MB on rank 1's interface, 75 % are other traffic."""
    finding = findings(with_traffic(9, 8 * 4.194304))["other-traffic"]
    assert finding.title == "75% of the traffic on rank 1's network interface is not DDP's gradient traffic"
    assert finding.evidence.startswith("eth0 carried 33.6 MB per step over 20 steps, but the gradients of the ranks on")
    assert (finding.gain_ns, finding.subject, finding.may_be_meant) == (50 * MS, {"rank": 1}, True)
    small = findings(with_traffic(9, 8 * 4.194304, comm_ns=20 * MS))["other-traffic"]
    assert small.gain_ns == 15 * MS, "75 % of the communication, if that is less than what is exposed"


@pytest.mark.parametrize(
    ("megabytes_per_step", "changes"),
    [
        pytest.param((9, 13), {}, id="overhead"),
        pytest.param((25, 25), {"hosts": ("a", "a")}, id="ranks-that-share-an-interface"),
        pytest.param((9, 33), {"exposed_ns": MS // 2}, id="hidden"),
        pytest.param(
            (0, 33),
            {"backend": "nccl", "links": LinkFacts("eth0", (ETH0,), IB, opened_infiniband=True)},
            id="gradients-on-infiniband",
        ),
    ],
)
def test_traffic_of_the_ranks_themselves(megabytes_per_step: tuple[float, ...], changes: dict[str, Any]) -> None:
    assert "other-traffic" not in findings(with_traffic(*megabytes_per_step, **changes))


@pytest.mark.parametrize("topic", [SCRIPT_COLLECTIVES, LAYER_COLLECTIVES], ids=["script", "layers"])
def test_where_other_collectives_are_called_traffic_tells_nothing(topic: Any) -> None:
    made = with_traffic(9, 33)
    (rule,) = [one for one in LINK_LIMIT.rules if one.__name__ == "other_traffic"]
    assert list(rule(limit_of(made), made))
    assert not list(rule(limit_of(made), replace(made, shown={**made.shown, topic.name: ("calls",)})))


RING = ((0, 3), (1, 0), (2, 1), (3, 2))


def with_connections(
    megabytes_per_s: dict[tuple[int, int], float], megabytes: float = 100, links: LinkFacts = SOCKETS, **changes: Any
) -> View:
    """Ranks on hosts of their own, which send this many MB to each other at these rates."""
    ranks = range(1 + max(max(ends) for ends in megabytes_per_s))
    made = view(*[links] * len(ranks), hosts=[f"node{rank}" for rank in ranks], **{"comm_ns": 40 * MS, **changes})
    records = {}
    for rank in ranks:
        connections = [
            Connection(f"10.0.0.{rank}", f"10.0.0.{to}", round(1e6 * megabytes), round(1e9 * megabytes / rate), 0)
            for (sender, to), rate in megabytes_per_s.items()
            if sender == rank
        ]
        little = Connection(f"10.0.0.{rank}", "10.0.0.0", 2 * 10**6, 10**9, 0)
        other = Connection(f"10.0.0.{rank}", "10.9.9.9", 10**8, 10**10, 0)
        traffic = Traffic("eth0", 20, 10**8, 10**8, (*connections, little, other))
        records[rank] = replace_struct(made.records[rank], traffic=traffic)
    return replace(made, records=records)


@pytest.mark.parametrize(
    ("rates", "title", "evidence"),
    [
        pytest.param(
            {(0, 3): 120, (1, 0): 110, (2, 1): 55, (3, 2): 60},
            "The network link of node2 (rank 2) is by far the slowest, at 0.055 GB/s",
            "the 2 other links between machines reach at least 0.11 GB/s",
            id="both-directions",
        ),
        pytest.param(
            {(0, 3): 120, (1, 0): 110, (2, 1): 55, (3, 2): 115},
            "The network link from node2 (rank 2) to node1 (rank 1) is by far the slowest, at 0.055 GB/s",
            "the 3 other links between machines reach at least 0.11 GB/s",
            id="one-direction",
        ),
    ],
)
def test_a_slow_link(rates: dict[tuple[int, int], float], title: str, evidence: str) -> None:
    finding = findings(with_connections(rates))["slow-link"]
    assert (finding.title, finding.subject, finding.gain_ns) == (title, {"rank": 2}, 20 * MS)
    assert finding.evidence.startswith(evidence)
    assert findings(with_connections(rates, exposed_ns=5 * MS))["slow-link"].gain_ns == 5 * MS


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(with_connections(dict.fromkeys(RING, 50)), id="all-alike"),
        pytest.param(with_connections(dict(zip(RING, (50, 110, 70, 120), strict=True))), id="no-link-by-far"),
        pytest.param(with_connections({(0, 1): 50, (1, 0): 52}), id="two-machines"),
        pytest.param(with_connections(dict(zip(RING, (120, 120, 50, 50), strict=True)), 0.5), id="short-time"),
        pytest.param(
            with_connections(dict(zip(RING, (120, 120, 50, 50), strict=True)), exposed_ns=MS // 2), id="hidden"
        ),
        pytest.param(
            with_connections(
                dict(zip(RING, (120, 120, 50, 50), strict=True)),
                backend="nccl",
                links=LinkFacts("eth0", (ETH0,), IB, opened_infiniband=True),
            ),
            id="infiniband",
        ),
    ],
)
def test_no_slow_link(made: View) -> None:
    assert "slow-link" not in findings(made)


@pytest.mark.parametrize(("limited_ms", "is_found"), [(200, True), (1500, False)])
def test_a_receiver_that_reads_late_is_no_slow_link(limited_ms: int, is_found: bool) -> None:
    """100 MB take 2 s; without the time in which the receiver's window was full, the link reaches 56 or 200 MB/s."""
    made = with_connections(dict(zip(RING, (120, 110, 50, 130), strict=True)))
    slow = made.records[2]
    assert slow.traffic is not None
    connections = [replace(one, limited_ns=limited_ms * MS) for one in slow.traffic.connections[:1]]
    traffic = replace(slow.traffic, connections=tuple(connections))
    found = findings(replace(made, records={**made.records, 2: replace_struct(slow, traffic=traffic)}))
    assert ("slow-link" in found) is is_found
    assert not is_found or found["slow-link"].numbers["bytes_per_s"] == 50 * 10**6
