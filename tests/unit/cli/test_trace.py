"""What `ddpprof trace` makes of its arguments: its own options, torchrun's, and the command."""

from pathlib import Path

import pytest

from ddpprof.cli.commands import parsers
from ddpprof.cli.job import default_out, parse_job, split
from ddpprof.cli.trace import nothing_recorded
from ddpprof.rundir import RUN_FILE


@pytest.mark.parametrize(
    ("arguments", "own", "command"),
    [
        pytest.param("train.py", "", "train.py", id="script"),
        pytest.param("train.py --steps 3 --out x", "", "train.py --steps 3 --out x", id="the-script's-own"),
        pytest.param("--steps 3 train.py 5", "--steps 3", "train.py 5", id="ours"),
        pytest.param("--steps=3 train.py", "--steps=3", "train.py", id="ours-with-="),
        pytest.param("--quiet --force train.py", "--quiet --force", "train.py", id="ours-without-value"),
        pytest.param("--nproc-per-node 2 train.py -r 3", "--nproc-per-node 2", "train.py -r 3", id="torchrun's"),
        pytest.param("--nproc_per_node=2 train.py", "--nproc_per_node=2", "train.py", id="torchrun's-with-="),
        pytest.param("--standalone --steps 3 train.py", "--standalone --steps 3", "train.py", id="torchrun's-flag"),
        pytest.param("-r 3 -t 0:1 train.py", "-r 3 -t 0:1", "train.py", id="torchrun's-short"),
        pytest.param("-m pkg.train --steps 3", "-m", "pkg.train --steps 3", id="module"),
        pytest.param("-- torchrun --nproc-per-node 2 x.py", "", "-- torchrun --nproc-per-node 2 x.py", id="command"),
        pytest.param("--steps 3 -- bash -c x", "--steps 3", "-- bash -c x", id="ours-then-command"),
        pytest.param("train.py -- --steps 3", "", "train.py -- --steps 3", id="the-script's-own-dashes"),
        pytest.param("--out - train.py", "--out -", "train.py", id="a-dash-is-a-value"),
        pytest.param("--steps", "--steps", "", id="value-missing"),
        pytest.param("", "", "", id="nothing"),
    ],
)
def test_where_the_command_begins(arguments: str, own: str, command: str) -> None:
    assert split(arguments.split(), parsers()[1]["trace"]) == (own.split(), command.split())


@pytest.mark.parametrize(
    ("arguments", "torchrun"),
    [
        pytest.param("--steps 3", None, id="none"),
        pytest.param("--nproc-per-node 2", ["--nproc-per-node", "2"], id="with-value"),
        pytest.param("--nproc_per_node=gpu", ["--nproc_per_node", "gpu"], id="with-="),
        pytest.param("--standalone --nnodes 1:4", ["--standalone", "--nnodes", "1:4"], id="flag-in-order"),
        pytest.param("--nnodes 2 --steps 3 --standalone", ["--nnodes", "2", "--standalone"], id="ours-between"),
    ],
)
def test_torchruns_options_are_passed_on_as_given(arguments: str, torchrun: list[str] | None) -> None:
    assert parsers()[1]["trace"].parse_args(arguments.split()).torchrun == torchrun


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param("--nproc-per-node 2", True, id="one"),
        pytest.param("--nnodes 1", True, id="said-to-be-one"),
        pytest.param("--nnodes=2 --node-rank 1", False, id="two"),
        pytest.param("--nnodes 1:4", False, id="elastic"),
        pytest.param("", True, id="without-torchrun"),
    ],
)
def test_whether_torchrun_starts_all_ranks(options: str, expected: bool) -> None:
    job = parse_job(parsers()[1]["trace"], [*options.split(), "train.py"], "trace")
    assert job.is_one_node is expected


def test_a_job_without_ddp_is_told_from_one_that_was_too_short(tmp_path: Path) -> None:
    assert "trained no DistributedDataParallel module, or" in nothing_recorded([tmp_path], "train.py")
    (tmp_path / RUN_FILE).write_text("{}")
    assert "ended within the first steps" in nothing_recorded([tmp_path], "train.py")
    assert "nothing was recorded: the job failed during its first steps" in nothing_recorded(
        [tmp_path], "train.py", failed=True
    )
    assert "had trained no Dist" in nothing_recorded([tmp_path / "none"], "train.py", failed=True)
    elsewhere = nothing_recorded([tmp_path / "none"], "train.py", is_one_node=False)
    assert "the ranks record into the --out directory of rank 0's node" in elsewhere


@pytest.mark.parametrize(
    ("words", "is_module", "name"),
    [
        pytest.param(["train.py"], False, "train", id="script"),
        pytest.param(["a/b/train_net.py", "x"], False, "train_net", id="path"),
        pytest.param(["pkg.cli.train"], True, "train", id="module"),
        pytest.param(["torchrun", "train.py"], False, "torchrun", id="command"),
        pytest.param(["python3.12", "train.py"], False, "python3", id="command-with-a-version"),
        pytest.param(["launch.sh"], False, "launch", id="shell-script"),
        pytest.param(["/usr/bin/srun"], False, "srun", id="absolute-command"),
    ],
)
def test_runs_are_named_after_what_ran(words: list[str], is_module: bool, name: str) -> None:
    assert default_out(words, is_module=is_module).startswith(f"runs/{name}-2")
