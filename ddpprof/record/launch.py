"""Launch the user's command with ddpprof injected, forward signals to it, and return its exit code.

Nothing here needs torch. The job uses the terminal's stdin, stdout and stderr, except in trials.

`run_netbench` starts the ranks of `ddpprof netbench`. If all ranks run on this machine, they rendezvous through a file,
and gloo listens on the loopback interface, so that other machines cannot connect to them.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

from ddpprof import own_files, rundir
from ddpprof.child_processes import (
    Process,
    adopt_orphans,
    descendants,
    end_descendants,
    end_with_parent,
    helper_environment,
    start,
)
from ddpprof.errors import CannotRecord, how_to_install
from ddpprof.own_files import scratch_folder
from ddpprof.record import run_directory
from ddpprof.record.run_directory import refuse_earlier_run
from ddpprof.record.settings import ENVIRONMENT_VARIABLE, Settings

_INJECT = Path(__file__).parent / "inject"
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_SLURM_RANK = "SLURM_PROCID"
"""environment variable that contains the rank; Slurm also sets it for a batch script, which is not a rank"""
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_POLL_S = 1.0
"""seconds between two checks of whether the job has ended. SIGCHLD is not enough, because a library's thread may
receive it
"""
_GRACE_S = 10.0
"""seconds after a signal until ddpprof sends SIGKILL to processes that are still running"""
_SI_KERNEL = 0x80
"""`si_code` of a signal sent by the kernel, such as Ctrl-C in a terminal. The terminal sends such a signal to the job,
too, if the job is in the same process group
"""


@dataclass(frozen=True)
class JobEnd:
    """How the job ended."""

    exit_code: int
    signal: int | None
    """signal that ended the job's first process; ``None`` if no signal ended it"""
    needs_rank: str | None
    """environment variable of a launcher, such as RANK, whose absence made the script fail"""
    interrupted: bool
    """True if ddpprof received a termination signal and forwarded it"""
    is_timed_out: bool
    """True if ddpprof ended the job because it reached its time limit"""
    was_reached: bool
    """whether any Python process of the job loaded ddpprof; always False if the job has a separate file system"""

    @property
    def was_stopped(self) -> bool:
        """Whether a signal ended the job. Such a job has neither succeeded nor failed by itself."""
        return self.interrupted or self.signal is not None


def inside_job() -> bool:
    """Return True if this process is one of the per-rank processes that torchrun, Slurm or MPI has started."""
    if any(name in os.environ for name in _RANK_VARIABLES):
        return True
    return {_SLURM_RANK, "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"} <= os.environ.keys()


def is_first_rank() -> bool:
    """Return True if this process is rank 0 or has no rank, and may therefore report for the whole job."""
    return rank_given() in (None, "0")


def rank_given() -> str | None:
    """Return this process's rank as set by its launcher."""
    return next((os.environ[name] for name in (*_RANK_VARIABLES, _SLURM_RANK) if name in os.environ), None)


def script_command(script: Sequence[str], as_module: bool, torchrun: Sequence[str] | None) -> list[str]:
    """Return the command that runs `script`, which is a file or module name and its arguments.

    `torchrun`: torchrun's options, if the script runs under torchrun. Raises `CannotRecord` if the script does not
    exist, or if torchrun is needed but torch is not installed.
    """
    if not as_module and not Path(script[0]).is_file():
        raise CannotRecord(
            f"there is no script {script[0]}. To run a command, write -- before the command: -- {script[0]} …"
        )
    module = ["-m"] if as_module else []
    if torchrun is None:
        return [sys.executable, *module, *script]
    return torchrun_command([*torchrun, *module, *script])


def torchrun_command(words: Sequence[str]) -> list[str]:
    """Return the command that runs torchrun. Raises `CannotRecord` if torch is not installed."""
    refuse_without_torch()
    return [sys.executable, "-m", "torch.distributed.run", *words]


def refuse_without_torch() -> None:
    """Raise `CannotRecord` if torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise CannotRecord(f"torch is not installed in this environment. {how_to_install('torch')}")


def clear_out(settings: Settings, inside: bool = False) -> Settings:
    """Remove an earlier run before the job starts, if `force` is set.

    Return the settings without `force`, so that a second job of the same command cannot remove the run.
    `inside`: torchrun has started this process, possibly as a restart. Raises ``RunExists`` if an earlier run must be
    kept.
    """
    directory = Path(settings.out)
    if inside and run_directory.is_restart(directory, settings):
        return dataclasses.replace(settings, force=False)
    refuse_earlier_run(directory, settings.force)
    if settings.force and directory.is_dir():
        try:
            rundir.remove_run(directory)
            rundir.remove_nccl_logs(directory)
        except OSError as error:
            raise CannotRecord(f"cannot replace the run in {directory}: {error.strerror}.") from error
    elif not rundir.is_run(directory):
        with suppress(OSError):  # this file only exists if ranks of an earlier job failed before the run was created
            own_files.remove_file(directory / rundir.EXITS_FILE)
    return dataclasses.replace(settings, force=False)


def run_job(
    command: Sequence[str],
    settings: Settings,
    explain_rank: bool,
    *,
    variables: Mapping[str, str] = MappingProxyType({}),
    output: BinaryIO | None = None,
    when_started: Callable[[], None] | None = None,
    limit_s: float | None = None,
) -> JobEnd:
    """Run `command`, record all of its Python processes, and return when it has ended.

    `explain_rank`: if the first process ends because RANK is not set, report this in the result instead of printing a
    traceback. `variables`: environment variables of the job, in addition to ddpprof's own variables. `when_started`:
    called once the job runs; from then on, this process may start threads. `output`: file for the job's output instead
    of the terminal; the job's stdin is then empty. `limit_s`: seconds after which the job is ended. Raises
    `CannotRecord` if the command cannot be started.
    """
    if shutil.which(command[0]) is None:
        raise CannotRecord(f"there is no command {command[0]}")
    with scratch_folder() as scratch:
        note, reached = scratch / "needs-rank", scratch / "reached"
        settings = dataclasses.replace(settings, launched_unix_s=time.time())
        environment = {**_environment(settings, note if explain_rank else None), "DDPPROF_REACHED": str(reached)}
        environment |= variables
        if settings.nccl_log:
            environment |= _nccl_log_variables(Path(settings.out), environment)
        streams: dict[str, Any] = {}
        if output is not None:
            streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        ended = run_to_its_end(command, environment, when_started, limit_s, **streams)
        needs_rank = note.read_text(encoding="utf-8") if note.exists() else None
        was_reached = reached.exists()
    number = -ended.returncode if ended.returncode < 0 else None
    exit_code = ended.returncode if number is None else 128 + number
    return JobEnd(exit_code, number, needs_rank, ended.interrupted, ended.is_timed_out, was_reached)


def _nccl_log_variables(directory: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that make NCCL log into the run directory, except variables in `given`.

    The log folder is created, because NCCL would otherwise log to the terminal. Raises `CannotRecord`.
    """
    folder = directory / rundir.NCCL_DIRECTORY
    try:
        own_files.make_named_folder(directory)
        own_files.make_folder(folder)
    except OSError as error:
        raise CannotRecord(f"cannot create {folder}: {error.strerror}.") from error
    variables = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,TUNING,GRAPH",
        "NCCL_DEBUG_FILE": str(directory / rundir.nccl_log_file("%h", "%p")),
    }
    return {name: value for name, value in variables.items() if name not in given}


class CommandEnd(NamedTuple):
    """How a command ended."""

    returncode: int
    """exit code, or -N if signal N ended the command"""
    interrupted: bool
    """True if ddpprof received a termination signal"""
    is_timed_out: bool = False


def run_to_its_end(
    command: Sequence[str],
    environment: Mapping[str, str],
    when_started: Callable[[], None] | None = None,
    limit_s: float | None = None,
    **streams: Any,
) -> CommandEnd:
    """Run a command until it ends. Signals are forwarded to it. If this process is killed, the command ends, too.

    After a termination signal, this function waits until the command has ended, and then ends its remaining
    descendants. After `limit_s` seconds, it ends the command and its descendants. `streams`: stream arguments of
    ``subprocess.Popen``. Raises `CannotRecord` if the command cannot be started.
    """
    adopt_orphans()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if the parent ignored SIGCHLD, it would never arrive
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    try:
        # Without a terminal, a signal to this process's group must not reach the job twice.
        job = start(command, environment, _begin_job, process_group=None if _has_terminal() else 0, **streams)
        if when_started is not None:
            when_started()
        ended = _wait(job, limit_s)
    except OSError as error:
        raise CannotRecord(f"cannot start {command[0]}: {error.strerror}") from error
    finally:
        _unblock()
    if ended.interrupted or ended.is_timed_out:
        end_descendants(_GRACE_S)  # ranks that outlived their launcher
    return ended


def _has_terminal() -> bool:
    """Return True if this process has a terminal. A terminal sends Ctrl-C and Ctrl-Z to the whole foreground group."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _group_of(process: int) -> int | None:
    """Return a process's group ID; ``None`` if there is no such process."""
    try:
        return os.getpgid(process)
    except ProcessLookupError:
        return None


def _environment(settings: Settings, note: Path | None) -> dict[str, str]:
    inherited = os.environ.get("PYTHONPATH")
    return {
        "KINETO_LOG_LEVEL": "99",  # otherwise Kineto reports its start and stop on the job's stderr
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(_INJECT), *([inherited] if inherited else [])]),
        **({"DDPPROF_EXPLAIN_RANK": str(note)} if note is not None else {}),
        **settings.to_environment(),
    }


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*_PASSED_ON, signal.SIGCHLD})


def _begin_job() -> None:
    end_with_parent()
    _unblock()


def end_jobs_into(out: Path) -> None:
    """End all processes of this user that record into `out` and have lost their parent."""
    deadline, found_none = time.monotonic() + _GRACE_S, False
    while time.monotonic() < deadline:
        left = _recording_into(out)
        if not left and found_none:  # checked twice, because a starting process may not have its environment yet
            return
        found_none = not left
        for process in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


def _recording_into(out: Path) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, KeyError, TypeError):  # belongs to another user, or has just ended
            words = (folder / "environ").read_bytes().split(b"\0")
            prefix = f"{ENVIRONMENT_VARIABLE}=".encode()
            settings = next((word.removeprefix(prefix) for word in words if word.startswith(prefix)), None)
            is_into = settings is not None and os.path.realpath(json.loads(settings)["out"]) == os.path.realpath(out)
            if is_into and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found


def _wait(job: Process, limit_s: float | None = None) -> CommandEnd:
    """Wait until the job ends. After `limit_s` seconds, end it."""
    interrupted, deadline = False, None if limit_s is None else time.monotonic() + limit_s
    while True:
        has_ended = job.poll() is not None
        if deadline is not None and not has_ended and time.monotonic() > deadline:
            return CommandEnd(_end(job), interrupted, is_timed_out=True)
        info = signal.sigtimedwait({*_PASSED_ON, signal.SIGCHLD}, 0 if has_ended else _POLL_S)
        if info is None and has_ended:
            return CommandEnd(job.returncode, interrupted)
        if (
            info is not None and info.si_signo in _PASSED_ON
        ):  # `si_signo` is 0 if this process was stopped in the meantime, for example by Ctrl-Z
            interrupted |= info.si_signo not in (signal.SIGUSR1, signal.SIGUSR2)
            has_got_it = info.si_code == _SI_KERNEL and _group_of(job.pid) == os.getpgrp()
            if not has_ended and not has_got_it:
                _pass_on(job.pid, info.si_signo)


def _end(job: Process) -> int:
    """End the job with SIGTERM, or with SIGKILL after a grace period. Return its return code."""
    job.terminate()
    try:
        return job.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        job.kill()
        return job.wait()


def _pass_on(job: int, number: int) -> None:
    """Forward a signal to the job. SIGINT is sent to all processes of the job's process group, as Ctrl-C is.

    torchrun's ranks are in separate groups and receive the signal only from torchrun. A second signal would interrupt
    the script's response to the first signal, such as saving a checkpoint.
    """
    processes = [job]
    if number == signal.SIGINT:
        group = _group_of(job)
        processes += [one for one in descendants(job) if _group_of(one) == group]  # before any of them ends
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


STORE_VARIABLE = "DDPPROF_NETBENCH_STORE"
"""environment variable with the path of the file that the ranks use for rendezvous"""

_ON_THIS_MACHINE = ("--nproc-per-node", "--nproc_per_node", "--standalone")
_OWN_WORDS = re.compile(r"^ddpprof: (.*)$", re.MULTILINE)
_ENDED_RANKS = re.compile(r"^\s*rank\s*: (\d+) .*\n\s*exitcode\s*: (-?\d+)", re.MULTILINE)


def run_netbench(torchrun: Sequence[str], words: Sequence[str]) -> bool:
    """Run `ddpprof netbench` with the options `words` in every rank that torchrun starts.

    Return True if it was interrupted. Raises `CannotRecord`.
    """
    with scratch_folder() as scratch:
        options, variables = _on_this_machine(scratch) if _is_on_this_machine(torchrun) else ([], {})
        given = [word for word in torchrun if not (options and word == "--standalone")]
        command = torchrun_command([*options, *given, "-m", "ddpprof", "netbench", *words])
        with (scratch / "errors").open("w+b") as errors:
            ended = run_to_its_end(command, {**helper_environment(), **variables}, stderr=errors)
            errors.seek(0)
            said = errors.read().decode(errors="replace")
    if ended.returncode and not ended.interrupted:
        raise CannotRecord(_why_netbench_failed(said, ended.returncode))
    return ended.interrupted


def _is_on_this_machine(torchrun: Sequence[str]) -> bool:
    return all(word.startswith(_ON_THIS_MACHINE) for word in torchrun if word.startswith("-"))


def _on_this_machine(scratch: Path) -> tuple[list[str], dict[str, str]]:
    rendezvous = ["--rdzv-backend=c10d", f"--rdzv-endpoint={scratch}/rendezvous", "--rdzv-conf=store_type=file"]
    variables = {
        STORE_VARIABLE: f"{scratch}/store",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
    }
    return ["--nnodes=1", "--local-addr=127.0.0.1", *rendezvous], variables


def _why_netbench_failed(said: str, code: int) -> str:
    """Return the first problem in the output of the ranks and torchrun."""
    for rank, exit_code in _ENDED_RANKS.findall(said):
        if int(exit_code) < 0 and -int(exit_code) != signal.SIGTERM:  # torchrun ends the remaining ranks with SIGTERM
            return f"rank {rank} was terminated by {signal.Signals(-int(exit_code)).name}."
    own = _OWN_WORDS.search(said)
    if own is not None:
        return own.group(1)
    last = [line.strip() for line in said.splitlines() if "rror" in line]
    return f"torchrun ended with exit code {code}: {last[-1] if last else 'it printed no error'}"
