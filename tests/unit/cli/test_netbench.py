"""The command line of `ddpprof netbench`, without a job."""

from __future__ import annotations

import argparse
import signal

import pytest

from ddpprof.cli import main
from ddpprof.cli.arguments import sizes_bytes
from ddpprof.cli.commands import parsers
from ddpprof.record.launch import _is_on_this_machine, _why_netbench_failed


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        pytest.param("1K-8K", [1024, 2048, 4096, 8192], id="doubled"),
        pytest.param("1K-5K", [1024, 2048, 4096], id="not-beyond-the-last"),
        pytest.param("100,1m,25MiB,1G", [100, 1 << 20, 25 << 20, 1 << 30], id="list"),
        pytest.param("3K-6K,64KB", [3072, 6144, 65536], id="both"),
    ],
)
def test_sizes(text: str, sizes: list[int]) -> None:
    assert sizes_bytes(text) == sizes


@pytest.mark.parametrize("text", ["", "0", "1X", "K", "1K-", "-1K", "2K-1K", "1K,,2K", "1.5M"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        sizes_bytes(text)


def test_by_default_sizes_reach_from_a_kilobyte_to_256_megabytes() -> None:
    options = parsers()[1]["netbench"].parse_args([])
    assert (options.sizes[0], options.sizes[-1], len(options.sizes), options.seconds) == (1 << 10, 1 << 28, 19, 1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param([], "give the number of ranks: ddpprof netbench --nproc-per-node 2", id="no-ranks"),
        pytest.param(["--sizes", "3X"], "'3X' is not a size; write, for example, 1K-256M", id="size"),
        pytest.param(["--seconds", "0"], "'0' is not a number of seconds above 0", id="no-time"),
        pytest.param(["--seconds", "nan"], "'nan' is not a number of seconds above 0", id="nan"),
        pytest.param(["--collective", "barrier"], "invalid choice: 'barrier'", id="collective"),
        pytest.param(["--out", "none/x.json", "--nproc-per-node", "2"], "there is no folder none", id="no-folder"),
        pytest.param(["--out", "s3://a/x.json"], "is not on this machine", id="far"),
        pytest.param(["train.py"], "unrecognized arguments: train.py", id="a-script"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert main(["netbench", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("torchrun", "here"),
    [
        (["--nproc-per-node", "2"], True),
        (["--nproc_per_node", "gpu", "--standalone"], True),
        (["--nproc-per-node", "2", "--nnodes", "2"], False),
        (["--nproc-per-node", "2", "--master-addr", "a"], False),
    ],
)
def test_ranks_of_one_machine_are_told_from_others(torchrun: list[str], here: bool) -> None:
    assert _is_on_this_machine(torchrun) == here


_SUMMARY = """
Failures:
[1]:
  time      : 2026-01-01
  host      : a
  rank      : 1 (local_rank: 1)
  exitcode  : {one} (pid: 12)
----
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : {root} (pid: 11)
"""


@pytest.mark.parametrize(
    ("said", "why"),
    [
        pytest.param(
            "ddpprof: rank 0 of 2, gloo: Connection closed by peer" + _SUMMARY.format(one=-signal.SIGKILL, root=2),
            "rank 1 was terminated by SIGKILL.",
            id="killed",
        ),
        pytest.param(
            "W0101 x\nddpprof: no backend\nddpprof: also\n" + _SUMMARY.format(one=-signal.SIGTERM, root=2),
            "no backend",
            id="said",
        ),
        pytest.param(
            "Traceback\nValueError: many\n", "torchrun ended with exit code 1: ValueError: many", id="torchrun"
        ),
        pytest.param("", "torchrun ended with exit code 1: it printed no error", id="nothing"),
    ],
)
def test_why_the_ranks_ended(said: str, why: str) -> None:
    assert _why_netbench_failed(said, 1) == why
