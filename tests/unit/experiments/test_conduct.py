"""What is started for a trial, and which trials are still to be run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from experiments import PLAN, result

from ddpprof.errors import CannotRecord, DdpprofError, RunExists
from ddpprof.experiments.conduct import (
    compiled_otherwise,
    job_of,
    last_error,
    open_experiment,
    remaining,
    steps_of,
    trial_settings,
)
from ddpprof.experiments.plan import ExperimentKind, Trial, TrialEnd, Variant, read_plan, write_end, write_plan
from ddpprof.experiments.trials import refuse_short_job
from ddpprof.model.ddp_module import Compilation

TUNING = replace(PLAN, kind=ExperimentKind.TUNE, variants=(Variant(2),), most_variants=5)


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "train.py").touch()
    return str(tmp_path / "train.py")


def test_one_process_is_started_without_a_launcher(script: str) -> None:
    command, variables = job_of(replace(PLAN, command=(script, "--lr", "1")), Variant(1, words=("--batch=8",)))
    assert command[1:] == [script, "--lr", "1", "--batch=8"]
    assert {variables[name] for name in ("RANK", "LOCAL_RANK")} == {"0"}
    assert {variables[name] for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")} == {"1"}


def test_several_are_started_by_torchrun(script: str) -> None:
    command, variables = job_of(replace(PLAN, command=(script,)), Variant(3))
    assert command[1:] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", script]
    assert variables == {}


def test_a_module_is_started_as_one() -> None:
    command, _ = job_of(replace(PLAN, command=("package.train",), as_module=True), Variant(1))
    assert command[1:] == ["-m", "package.train"]


def test_a_script_that_is_told_the_number_starts_its_own(script: str) -> None:
    command, variables = job_of(replace(PLAN, command=(script, "--ranks={nproc}")), Variant(4))
    assert command[1:] == [script, "--ranks=4"]
    assert variables == {}


def test_any_other_command_is_run_as_it_is() -> None:
    wrapped = replace(PLAN, command=("mpirun", "-n", "{nproc}", "train", "b={batch}"), is_wrapped=True)
    command, variables = job_of(wrapped, Variant(2, places={"batch": "8"}, words=("x=1",)))
    assert (command, variables) == (["mpirun", "-n", "2", "train", "b=8", "x=1"], {})


def test_a_script_that_is_not_there_is_said() -> None:
    with pytest.raises(CannotRecord, match="there is no script"):
        job_of(replace(PLAN, command=("absent.py",)), Variant(1))


def test_a_trial_ends_itself_and_saves_nothing(tmp_path: Path) -> None:
    settings = trial_settings(tmp_path, PLAN, Variant(1, ddp={"bucket_cap_mb": 5}, profiled_steps=3))
    assert (settings.trial, settings.stop_after, settings.ddp) == (True, True, {"bucket_cap_mb": 5})
    assert (settings.timed_steps, settings.steps, settings.profiler) == (20, 3, True)


def test_blocks_take_the_place_of_timed_steps(tmp_path: Path) -> None:
    settings = trial_settings(tmp_path, PLAN, Variant(1, ddp_blocks=4))
    assert (settings.timed_steps, settings.ddp_blocks, settings.block_steps, settings.profiler) == (0, 4, 20, False)


def test_only_what_has_no_times_is_run_again(tmp_path: Path) -> None:
    open_experiment(tmp_path, PLAN, force=False)
    for trial, problem in ((Trial(0, 0), None), (Trial(1, 0), "exit code 1")):
        (tmp_path / trial.name).mkdir()
        write_end(tmp_path / trial.name, TrialEnd(0, 1.0, problem))
    open_experiment(tmp_path, PLAN, force=False)
    assert remaining(tmp_path, PLAN) == [Trial(1, 0), Trial(1, 1), Trial(0, 1)]


def test_another_plan_replaces_an_experiment_only_where_that_is_wanted(tmp_path: Path) -> None:
    open_experiment(tmp_path, PLAN, force=False)
    folder = tmp_path / Trial(0, 0).name
    folder.mkdir()
    (tmp_path / "mine.txt").touch()
    other = replace(PLAN, rounds=3)
    with pytest.raises(RunExists, match="--force"):
        open_experiment(tmp_path, other, force=False)
    open_experiment(tmp_path, other, force=True)
    assert read_plan(tmp_path) == other
    assert not folder.exists()
    assert (tmp_path / "mine.txt").exists()


def test_a_folder_of_the_user_does_not_become_a_trial(tmp_path: Path) -> None:
    (tmp_path / Trial(0, 0).name).mkdir()
    with pytest.raises(RunExists, match="needs this folder for a trial"):
        open_experiment(tmp_path, PLAN, force=True)
    assert not (tmp_path / "experiment.json").exists()


@pytest.mark.parametrize("name", ["trial-3-0", "profile", "choice.json"])
def test_nor_one_that_only_the_profile_of_a_tuning_will_suggest(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(RunExists, match="needs this folder for a trial"):
        open_experiment(tmp_path, TUNING, force=True)


def test_a_tuning_that_has_chosen_goes_on_where_it_is_asked_for_again(tmp_path: Path) -> None:
    open_experiment(tmp_path, TUNING, force=False)
    chosen = replace(TUNING, variants=(*TUNING.variants, Variant(2, "bucket_cap_mb=5")))
    write_plan(tmp_path, chosen)
    for trial in chosen.trials():
        (tmp_path / trial.name).mkdir()
    open_experiment(tmp_path, TUNING, force=False)
    assert read_plan(tmp_path) == chosen
    with pytest.raises(RunExists, match="--force"):
        open_experiment(tmp_path, replace(TUNING, most_variants=9), force=False)
    open_experiment(tmp_path, TUNING, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["experiment.json"]


def test_a_run_is_not_replaced_by_an_experiment(tmp_path: Path) -> None:
    (tmp_path / "run.json").touch()
    with pytest.raises(RunExists, match="contains a run"):
        open_experiment(tmp_path, PLAN, force=True)


def test_how_many_steps_a_trial_takes() -> None:
    assert steps_of(PLAN, Variant(1)) == 5 + 20
    assert steps_of(PLAN, Variant(1, profiled_steps=5)) == 5 + 20 + 1 + 5
    assert steps_of(PLAN, Variant(1, profiled_steps=5, ddp_blocks=2)) == 5 + 1 + 5 + 2 * 2 * (3 + 20)


def test_more_steps_are_skipped_where_torch_waits_for_an_accelerator() -> None:
    blocks = Variant(1, profiled_steps=5, ddp_blocks=2)
    assert steps_of(PLAN, blocks, on_accelerator=True) == 11 + 1 + 5 + 2 * 2 * (11 + 20)


@pytest.mark.parametrize(
    ("variant", "blocks", "says"),
    [
        pytest.param(
            Variant(1, ddp_blocks=10),
            ((20.0,), (20.0,)),
            "training runs for only 30 steps, but a trial needs 81. Make the script run more steps, or measure fewer "
            "steps in each trial: --blocks 3.",
            id="overhead",
        ),
        pytest.param(
            Variant(1, profiled_steps=9), ((20.0,),), "a trial needs 31. .*--timed-steps 19", id="one-step-too-few"
        ),
        pytest.param(
            Variant(1, profiled_steps=29), ((20.0,),), "Make the script run more steps.$", id="no-option-helps"
        ),
        pytest.param(Variant(1, ddp_blocks=2), ((20.0,), (20.0,)), None, id="long-enough"),
    ],
)
def test_a_training_that_is_too_short_is_known_after_the_first_trial(
    variant: Variant, blocks: tuple[tuple[float, ...], ...], says: str | None
) -> None:
    plan = replace(PLAN, variants=(variant,), skip_first=1, timed_steps=1 if variant.ddp_blocks else 20)
    first = result(0, 0, *blocks, without_ddp_ns=blocks[:1], num_steps=10)
    if says is None:
        refuse_short_job(plan, first, 30, on_accelerator=False)
        return
    with pytest.raises(DdpprofError, match=says):
        refuse_short_job(plan, first, 30, on_accelerator=False)


@pytest.mark.parametrize(
    ("compilation", "problem"),
    [
        pytest.param(Compilation("model_first", "no_optimization"), None, id="as-wanted"),
        pytest.param(None, "the script does not compile its DDP module", id="not-compiled"),
        pytest.param(
            Compilation("submodules", "no_optimization"), "compile_order=model_first has no effect", id="order"
        ),
        pytest.param(Compilation("model_first", "ddp_optimizer"), "the script sets torch._dynamo.config", id="mode"),
    ],
)
def test_a_trial_that_is_compiled_otherwise_has_a_problem(compilation: Compilation | None, problem: str | None) -> None:
    variant = Variant(2, compile_order="model_first", optimize_ddp="no_optimization")
    found = compiled_otherwise(compilation, variant)
    assert (found is None) == (problem is None)
    assert problem is None or (found is not None and found.startswith(problem))
    assert compiled_otherwise(compilation, Variant(2)) is None


@pytest.mark.parametrize(
    ("variables", "number"), [({"OMP_NUM_THREADS": "3"}, 3), ({"OMP_NUM_THREADS": "4,2"}, 0), ({}, 0)]
)
def test_a_trial_with_another_number_of_threads_fixes_it(variables: dict[str, str], number: int) -> None:
    assert trial_settings(Path(), PLAN, Variant(1, variables=variables)).num_threads == number


TORCHRUN = """\
W1124 02:35:17.724000 25268 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 1 closing signal
E1124 02:35:17.839000 25268 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1
Traceback (most recent call last):
  File "torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
THREADS = """\
*****************************************
Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being
*****************************************
"""
BOOM = """\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    raise ValueError("odd")
ValueError: odd
"""
LOST = "[rank0]: RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:11174. This is typically caused by\n"


@pytest.mark.parametrize(
    ("output", "error"),
    [
        pytest.param(BOOM, "ValueError: odd", id="one-process"),
        pytest.param(BOOM + TORCHRUN, "ValueError: odd", id="torchrun"),
        pytest.param("".join(f"[rank1]: {line}\n" for line in BOOM.splitlines()) + LOST + TORCHRUN, "ValueError: odd",
                     id="the-other-rank-lost-it"),
        pytest.param("usage: train.py\ntrain.py: error: unrecognized arguments: --x\n" + TORCHRUN,
                     "train.py: error: unrecognized arguments: --x", id="argparse"),
        pytest.param("loss 3.5\nno data\n" + TORCHRUN, "no data", id="sys.exit"),
        pytest.param(LOST, LOST.removeprefix("[rank0]: ").strip(), id="only-a-lost-peer"),
        pytest.param(THREADS + TORCHRUN, "rank 1 ended with exit code 1, and printed nothing", id="os._exit"),
        pytest.param(TORCHRUN.replace(": 1)", ": -9)"),
                     "rank 1 was terminated by signal 9, and printed nothing", id="killed"),
        pytest.param(THREADS, "it printed nothing", id="torchrun-alone"),
        pytest.param("", "it printed nothing", id="nothing"),
    ],
)  # fmt: skip
def test_the_scripts_own_last_error_is_shown(output: str, error: str) -> None:
    assert last_error(output) == error
