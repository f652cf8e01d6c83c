"""Links of a machine, from files as the kernel writes them."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ddpprof.model.links import InfinibandPort, Interface
from ddpprof.record import link_facts as module
from ddpprof.record.link_facts import SentData, carried_bytes, link_facts

GBIT = 10**9
HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
OWN = {"10.0.0.1": "eth0", "192.168.7.1": "ib0", "127.0.0.1": "lo"}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def interface(root: Path, name: str, speed: str | None, state: str = "up", lower: str = "device") -> None:
    folder = root / "sys/class/net" / name
    write(folder / "operstate", state)
    if speed is not None:
        write(folder / "speed", speed)
    if lower == "device":
        (folder / "device").mkdir()
    elif lower:
        (folder / lower / "device").mkdir(parents=True)


def connections(root: Path, *pairs: tuple[str, str], state: str = "01") -> None:
    """Write a table of TCP connections, each of an own socket."""
    lines = []
    for inode, (local, remote) in enumerate(pairs, 50):
        lines.append(
            f"   0: {local}:01BB {remote}:C350 {state} 00000000:00000000 00:00000000 00000000  0  0 {inode} 1\n"
        )
        link = root / "proc/self/fd" / str(inode)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"socket:[{inode}]")
    table = root / "proc/self/net/tcp"
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text(HEADER + "".join(lines))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "_own_addresses", lambda _root: OWN)
    return tmp_path


def test_interfaces_that_are_up_and_their_speeds(root: Path) -> None:
    interface(root, "lo", None, state="unknown")
    interface(root, "eth0", "10000")
    interface(root, "eth1", "25000", state="down")
    interface(root, "ens5", "-1")
    interface(root, "ens6", "4294967295")
    interface(root, "veth3", "10000", lower="")
    interface(root, "bond0", "50000", lower="lower_ens7")
    interface(root, "docker0", "10000", lower="lower_veth3/none")
    assert link_facts("gloo", root).interfaces == (
        Interface("bond0", 50 * GBIT, is_hardware=True, has_address=False),
        Interface("docker0", None, is_hardware=False, has_address=False),
        Interface("ens5", None, is_hardware=True, has_address=False),
        Interface("ens6", None, is_hardware=True, has_address=False),
        Interface("eth0", 10 * GBIT, is_hardware=True),
        Interface("veth3", None, is_hardware=False, has_address=False),
    )


LOCAL, REMOTE, IB, LOOPBACK = "0100000A", "0200000A", "0107A8C0", "0100007F"  # 10.0.0.1, 10.0.0.2, 192.168.7.1


@pytest.mark.parametrize(
    ("pairs", "found"),
    [
        pytest.param([(LOCAL, REMOTE)], "eth0", id="another-machine"),
        pytest.param([(LOOPBACK, LOOPBACK)], "lo", id="loopback"),
        pytest.param([(LOCAL, LOCAL)], "lo", id="this-machine-by-its-own-address"),
        pytest.param([(LOOPBACK, LOOPBACK), (LOCAL, LOCAL), (LOCAL, REMOTE)], "eth0", id="one-leaves-the-machine"),
        pytest.param([(LOCAL, REMOTE), (IB, REMOTE), (IB, REMOTE)], "ib0", id="the-most-used"),
        pytest.param([], None, id="no-connection"),
    ],
)
def test_the_interface_of_the_sockets(pairs: list[tuple[str, str]], found: str | None, root: Path) -> None:
    connections(root, *pairs)
    assert link_facts("gloo", root).interface == found


def test_all_interfaces_of_sockets_to_other_machines(root: Path) -> None:
    connections(root, (LOOPBACK, LOOPBACK), (IB, REMOTE), (LOCAL, REMOTE), (LOCAL, REMOTE))
    found = link_facts("nccl", root)
    assert (found.interface, found.others_used) == ("eth0", ("ib0",))


def test_sockets_that_only_listen_and_those_of_other_processes_do_not_count(root: Path) -> None:
    connections(root, (LOCAL, REMOTE), state="0A")
    assert link_facts("gloo", root).interface is None
    connections(root / "other", (LOCAL, REMOTE))
    (root / "proc/self/net/tcp").write_text((root / "other/proc/self/net/tcp").read_text().replace(" 50 1", " 60 1"))
    assert link_facts("gloo", root).interface is None


def test_ipv6_addresses(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_own_addresses", lambda _root: {"fe80::1": "eth1", **OWN})
    connections(root)
    mapped = "0000000000000000FFFF00000100000A", "0000000000000000FFFF00000200000A"
    local = "000080FE000000000000000001000000", "000080FE000000000000000002000000"
    for pair, name in ((mapped, "eth0"), (local, "eth1")):
        line = f"   0: {pair[0]}:01BB {pair[1]}:C350 01 0:0 00:0 0  0  0 70 1\n"
        (root / "proc/self/net/tcp6").write_text(HEADER + line)
        (root / "proc/self/fd/70").unlink(missing_ok=True)
        (root / "proc/self/fd").mkdir(exist_ok=True, parents=True)
        (root / "proc/self/fd/70").symlink_to("socket:[70]")
        assert link_facts("gloo", root).interface == name


def test_infiniband_ports_that_are_active(root: Path) -> None:
    for device, state, rate, layer in (
        ("mlx5_0", "4: ACTIVE", "200 Gb/sec (4X HDR)", "InfiniBand"),
        ("mlx5_1", "1: DOWN", "40 Gb/sec (4X QDR)", "InfiniBand"),
        ("mlx5_2", "4: ACTIVE", "25 Gb/sec (1X EDR)", "Ethernet"),
        ("mlx5_3", "4: ACTIVE", "unknown", "InfiniBand"),
    ):
        port = root / "sys/class/infiniband" / device / "ports/1"
        write(port / "state", state)
        write(port / "rate", rate)
        write(port / "link_layer", layer)
    (root / "proc/self/fd").mkdir(parents=True)
    assert not link_facts("nccl", root).opened_infiniband
    (root / "proc/self/fd/9").symlink_to("/dev/infiniband/uverbs0")
    found = link_facts("nccl", root)
    assert found.opened_infiniband
    assert found.infiniband == (
        InfinibandPort("mlx5_0:1", 200 * GBIT, is_infiniband=True),
        InfinibandPort("mlx5_2:1", 25 * GBIT, is_infiniband=False),
    )


class Gpu:
    pci_domain_id, pci_bus_id, pci_device_id = 0, 0x17, 0


def test_pcie_links_and_peer_access(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = module.torch.cuda
    monkeypatch.setattr(cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(cuda, "device_count", lambda: 3)
    monkeypatch.setattr(cuda, "get_device_properties", lambda _device: Gpu)
    monkeypatch.setattr(cuda, "can_device_access_peer", lambda one, other: 1 not in (one, other))
    for name, text in (("current_link_speed", "16.0 GT/s PCIe"), ("current_link_width", "8"), ("max_link_width", "16")):
        write(root / "sys/bus/pci/devices/0000:17:00.0" / name, text)
    found = link_facts("nccl", root)
    first = found.pcie[0]
    assert (first.address, first.gt_per_s, first.width, first.most_gt_per_s, first.most_width) == (
        "0000:17:00.0", 16.0, 8, None, 16,
    )  # fmt: skip
    assert found.no_peer_access == ((0, 1), (1, 2))
    assert link_facts("gloo", root).pcie == ()


def test_cuda_is_not_started(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.torch.cuda, "device_count", lambda: pytest.fail("asked for devices"))
    assert link_facts("nccl", root).pcie == ()


def test_variables_that_choose_a_path(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_IB_DISABLE", "1")
    monkeypatch.setenv("NCCL_COMM_ID", "not about a path")
    assert link_facts("nccl", root).settings == {"NCCL_IB_DISABLE": "1"}


def test_a_machine_without_these_files_has_no_facts(root: Path) -> None:
    found = link_facts("nccl", root / "nothing")
    assert (found.interface, found.interfaces, found.infiniband, found.opened_infiniband) == (None, (), (), False)


def test_this_machine() -> None:
    assert link_facts("gloo").infiniband is not None


def test_bytes_that_an_interface_carried(root: Path) -> None:
    counters = root / "sys/class/net/eth0/statistics"
    write(counters / "tx_bytes", "1200")
    assert carried_bytes("eth0", root) is None, "half of the counters"
    write(counters / "rx_bytes", "34")
    assert carried_bytes("eth0", root) == (1200, 34)
    assert carried_bytes("eth1", root) is None


def test_data_sent_over_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection of this process to itself, which counts as one to another machine."""
    monkeypatch.setattr(module, "_own_addresses", lambda _root: {})
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    sender.sendall(bytes(1000))
    assert len(receiver.recv(1000, socket.MSG_WAITALL)) == 1000
    data = SentData()
    assert all(one.sent_bytes < 5000 for one in data.so_far())
    for _ in range(50):
        sender.sendall(bytes(100_000))
        assert len(receiver.recv(100_000, socket.MSG_WAITALL)) == 100_000
    (sent,) = [one for one in data.so_far() if one.local == one.peer == "127.0.0.1" and one.sent_bytes > 4_000_000]
    assert sent.sent_bytes <= 50 * 100_000 + 5000
    assert 0 <= sent.limited_ns <= sent.sending_ns < 60e9
    sender.close()
    receiver.close()
    assert sent in data.so_far(), "what is known of closed connections is kept"


def test_not_every_file_is_a_connection(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file, socket.socket(socket.AF_UNIX) as local:
        assert module._sent(file.fileno()) is module._sent(local.fileno()) is None
