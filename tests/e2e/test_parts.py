"""Two hosts that share no folder: network namespaces, each with a file system of its own where the run goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hosts import NoHosts, linked_hosts
from jobs import DDPPROF, QUICK, Run, script
from private_disks import ON_A_DISK_OF_ITS_OWN, own_words

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SAID = (
    "ddpprof: rank 1: node1 cannot access the run directory of rank 0, so the files of the ranks on node1 stay there. "
    "On rank 0's host, run: rsync -a node1:{run}/ {run}-node1/ && ddpprof report {run} {run}-node1"
)


def test_each_host_keeps_its_ranks_and_the_report_reads_both(ddpprof: Run, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    out.mkdir()
    try:
        with linked_hosts(2, "1gbit") as hosts:
            trace = [*DDPPROF, "trace", "--quiet", "--out", out / "run", *QUICK, *script("torchrun_plain.py")]
            ranks = [
                hosts.start(
                    host, ["unshare", "-m", "bash", "-c", ON_A_DISK_OF_ITS_OWN, out, f"node{host}", *trace], tmp_path
                )
                for host in range(2)
            ]
            said = [rank.communicate(timeout=600)[1] for rank in ranks]
    except NoHosts as reason:
        pytest.skip(f"no hosts here: {reason}")
    if any("mount: " in words for words in said):
        pytest.skip("no file system can be mounted here")
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert [own_words(words) for words in said] == [[], [SAID.format(run=out / "run")]]
    done = ddpprof("report", "node0", "node1", "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    shown = json.loads(done.stdout)
    assert shown["missing"] == []
    assert shown["job"]["hosts"] == ["node0", "node1"]
    assert [rank["rank"] for rank in shown["ranks"]] == [0, 1]
    assert shown["across"]["num_matched"] > 0
