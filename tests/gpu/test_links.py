"""The links of a machine with GPUs, NCCL's own log, and its RAS: what ddpprof says is what torch and the kernel say."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
import torch

from ddpprof.doctor.checks import Setup
from ddpprof.doctor.installation import Trained
from ddpprof.load.run import load_run
from ddpprof.model.links import LinkFacts, NcclChoices
from ddpprof.report.build import build_report

Train = Callable[..., Trained]

SHORT = ("--skip-first", "3", "--cost-steps", "0", "--steps", "4")


def links_of(trained: Trained) -> list[LinkFacts]:
    found = [one.record.links for one in load_run(trained.run).ranks if one.record is not None]
    assert None not in found
    return [one for one in found if one is not None]


def need_nccl(setup: Setup) -> None:
    if setup.backend != "nccl":
        pytest.skip("it needs NCCL")


def test_ranks_of_one_machine_use_no_interface(train: Train, ranks_at_once: int) -> None:
    trained = train("timed.py", "--width=64", "--batch=8", "--steps=12", trace=SHORT)
    assert {one.interface for one in links_of(trained)} <= {"lo", None}
    rules = {one.rule for one in build_report(load_run(trained.run)).findings}
    assert not rules & {"at-link-limit", "slower-interface", "sockets-beside-infiniband"}


def test_pcie_links_are_those_of_the_gpus(train: Train, setup: Setup) -> None:
    need_nccl(setup)
    for one in links_of(train("timed.py", "--width=64", "--batch=8", "--steps=12", trace=SHORT)):
        assert [link.device for link in one.pcie] == list(range(torch.cuda.device_count()))
        for link in one.pcie:
            shown = Path("/sys/bus/pci/devices", link.address)
            if shown.exists():  # a virtual machine may hide it
                assert (shown / "vendor").read_text().strip() in ("0x10de", "0x1002")
            assert link.width is None or link.width in (1, 2, 4, 8, 16, 32)
        pairs = combinations(range(torch.cuda.device_count()), 2)
        without = [pair for pair in pairs if not torch.cuda.can_device_access_peer(*pair)]
        assert [pair for pair in one.no_peer_access if pair in without] == without


def test_what_nccl_logs(train: Train, setup: Setup) -> None:
    need_nccl(setup)
    trained = train("timed.py", "--width=64", "--batch=8", "--steps=12", trace=("--nccl-log", *SHORT))
    logs = [one.nccl for one in load_run(trained.run).ranks]
    assert None not in logs
    assert len(list((trained.run / "nccl").glob("*.txt"))) >= setup.num_ranks
    nccl = build_report(load_run(trained.run)).link_limit
    assert nccl is not None
    assert isinstance(nccl.nccl, NcclChoices)
    own = ".".join(map(str, torch.cuda.nccl.version()))
    assert nccl.nccl.version is None or nccl.nccl.version.startswith(own)
    if setup.num_ranks > 1:
        assert nccl.nccl.transports
        assert (nccl.nccl.num_channels or 0) >= 1


def test_a_job_without_the_option_has_no_log(train: Train, setup: Setup) -> None:
    need_nccl(setup)
    trained = train("timed.py", "--width=64", "--batch=8", "--steps=12", trace=SHORT)
    assert not (trained.run / "nccl").exists()


def test_ras_counts_collectives(train: Train, setup: Setup) -> None:
    need_nccl(setup)
    if torch.cuda.nccl.version() < (2, 24):
        pytest.skip("NCCL has no RAS before 2.24")
    told = train("asking.py").told
    assert told["answer"] is not None
    if setup.num_ranks > 1:
        assert told["counts"], told["answer"]
        assert set(told["counts"]["0"].values()) - set(told["counts"]["1"].values())
        assert told["said"] is not None
    if setup.num_ranks == 2:
        assert told["late"] == 1
