"""NCCL's log, in lines of several versions as users quote them in reports of problems."""

from __future__ import annotations

from pathlib import Path

import pytest
from tables import record

from ddpprof.load.record import load_nccl_log, read_choices
from ddpprof.rundir import NCCL_DIRECTORY, nccl_log_file, remove_nccl_logs

OVER_SOCKETS = """\
gpu-a:900:900 [0] NCCL INFO Bootstrap : Using eth0:10.4.0.7<0>
gpu-a:900:900 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation
NCCL version 2.18.5+cuda12.1
gpu-a:900:931 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0
gpu-a:900:931 [0] NCCL INFO NET/IB : No device found.
gpu-a:900:931 [0] NCCL INFO NET/Socket : Using [0]eth0:10.4.0.7<0> [1]eth1.20:10.5.0.7<0>
gpu-a:900:931 [0] NCCL INFO Using network Socket
gpu-a:900:931 [0] NCCL INFO Channel 00/02 :    0   1   2   3
gpu-a:900:931 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/Socket/0
gpu-a:900:931 [0] NCCL INFO Channel 01/0 : 3[1] -> 0[0] [receive] via NET/Socket/1
gpu-a:900:931 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC/read
gpu-a:900:931 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/IPC/read
gpu-a:900:931 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/Socket/0
gpu-a:900:931 [0] NCCL INFO Connected all rings
gpu-a:900:931 [0] NCCL INFO 2 coll channels, 0 nvls channels, 2 p2p channels, 1 p2p channels per peer
gpu-a:900:900 [0] NCCL INFO AllReduce: 4194304 Bytes -> Algo 0 proto 0 time 811.000000
gpu-a:900:900 [0] NCCL INFO AllReduce: 33554432 Bytes -> Algo 1 proto 2 time 31811.000000
gpu-a:900:900 [0] NCCL INFO AllGather: 99999999 Bytes -> Algo 1 proto 1 time 99.000000
"""

OVER_INFINIBAND = """\
[2026-03-01 10:00:00] n1:77:80 [1] NCCL INFO NCCL version 2.27.5+cuda12.9
n1:77:80 [1] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_3:1/IB [RO]; OOB bond0:172.16.9.1<0>
n1:77:80 [1] NCCL INFO Using network IB
n1:77:80 [1] NCCL INFO Channel 00/0 : 1[1] -> 9[1] [send] via NET/IB/1/GDRDMA
n1:77:80 [1] NCCL INFO Channel 01/0 : 1[1] -> 9[1] [send] via NET/IB/0(0)/GDRDMA
n1:77:80 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[2] via P2P/CUMEM
n1:77:80 [1] NCCL INFO 24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 2 p2p channels per peer
n1:77:80 [1] NCCL INFO AllReduce: 8388608 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={0..15}
"""

WITHOUT_P2P = """\
box:5:9 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to SYS
box:5:9 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
box:5:9 [0] NCCL INFO P2P is disabled between connected GPUs 1 and 0. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.
box:5:9 [0] NCCL INFO P2P is disabled between connected GPUs 0 and 1. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.
box:5:9 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
box:5:9 [0] NCCL INFO Channel 01 : 0[0] -> 1[1] via SHM/direct/direct
"""  # noqa: E501 (as NCCL writes them)


def test_sockets_of_an_older_version() -> None:
    found = read_choices(OVER_SOCKETS.splitlines())
    assert (found.version, found.network) == ("2.18.5+cuda12.1", "Socket")
    assert found.interfaces == ("eth0", "eth1.20")
    assert found.infiniband == ()
    assert found.transports == {"P2P/IPC/read": 2, "NET/Socket": 1}
    assert found.num_channels == 2
    assert (found.algorithm, found.protocol) == ("RING", "SIMPLE")
    assert found.found_no_infiniband
    assert found.settings == {"NCCL_SOCKET_IFNAME": "eth0"}


def test_infiniband_of_a_newer_version() -> None:
    found = read_choices(OVER_INFINIBAND.splitlines())
    assert (found.version, found.network) == ("2.27.5+cuda12.9", "IB")
    assert found.infiniband == ("mlx5_0:1", "mlx5_3:1")
    assert found.interfaces == ()
    assert found.transports == {"NET/IB/GDRDMA": 2, "P2P/CUMEM": 1}
    assert found.num_channels == 24
    assert (found.algorithm, found.protocol) == ("NVLS_TREE", "SIMPLE")
    assert not found.found_no_infiniband


def test_gpus_without_p2p() -> None:
    found = read_choices(WITHOUT_P2P.splitlines())
    assert found.transports == {"SHM": 2}
    assert found.without_p2p == ((0, 1),)
    assert found.settings == {"NCCL_P2P_LEVEL": "SYS", "NCCL_IB_DISABLE": "1"}


def test_a_log_of_something_else_has_no_choices() -> None:
    found = read_choices(["", "NCCL WARN something new", "\x00\x01", "Channel via"])
    assert (found.version, found.network, found.transports, found.algorithm) == (None, None, {}, None)


@pytest.mark.parametrize("attempt", ["", "attempt-1"])
def test_the_log_of_a_process_is_found_by_its_host_and_pid(attempt: str, tmp_path: Path) -> None:
    log = tmp_path / nccl_log_file("gpu-a.example.com", 900)
    log.parent.mkdir()
    log.write_text(OVER_SOCKETS)
    assert log.name == "gpu-a.900.txt"
    of_rank = record(0, host="gpu-a.example.com", pid=900)
    found = load_nccl_log(tmp_path / attempt, of_rank)
    assert found is not None
    assert found.network == "Socket"
    assert load_nccl_log(tmp_path / attempt, record(0, host="gpu-a", pid=901)) is None


def test_only_logs_of_a_run_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / NCCL_DIRECTORY
    folder.mkdir()
    for name in ("gpu-a.900.txt", "notes.txt"):
        (folder / name).write_text("")
    remove_nccl_logs(tmp_path)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    (folder / "notes.txt").unlink()
    remove_nccl_logs(tmp_path)
    assert not folder.exists()
