"""Collect evidence about each rank of a run, as seen from another process.

The stacks of all threads of a process can be read with py-spy, without stopping the process.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ddpprof import rundir
from ddpprof.child_processes import helper_environment, start
from ddpprof.errors import DdpprofError, how_to_install
from ddpprof.load.record import BadRecordError, load_exits, load_record
from ddpprof.model import ProcessExit, Record
from ddpprof.model.json_files import oom_kills_seen
from ddpprof.model.overdue import Frame, OverdueFacts, Wait, crc_of, read_stack
from ddpprof.model.pulse import Ended, PulseIdentity, PulseState, PulseSteps
from ddpprof.monitor import pulse_files, ras
from ddpprof.monitor.processes import Process, holder_of_lock, look_at, num_swapped_in, workers_of
from ddpprof.monitor.pulse_files import PulseHead, is_gone, is_here, read_head
from ddpprof.monitor.ras import NcclRank

_STEPS = 64
_LOOK_AGAIN_S = 0.2
"""seconds between two samples of a process; the difference between them shows whether the process computes"""
_COMPUTES = 0.3
"""a process counts as computing if it uses at least this share of a core"""
_MOVES_BYTES_PER_S = 2**20
"""a thread counts as reading or writing data if it transfers data at least at this rate; a thread that only polls
transfers less
"""
_SWAPPING_PER_S = 50
"""a thread counts as swapping if it swaps in at least this many pages per second"""
_MUCH_SWAPPED_BYTES = 16 * 2**20
_NO_FACTS = OverdueFacts()


@dataclass(frozen=True, slots=True)
class RankEvidence:
    identity: PulseIdentity
    state: PulseState
    steps: PulseSteps
    stack: tuple[Frame, ...]
    """stack of the training thread, outermost frame first; empty if unknown"""
    record: Record | None
    process: Process | None
    """the rank's process, if it is alive and runs on this machine"""
    workers: tuple[Process, ...]
    computes: bool
    helpers_compute: bool
    """whether processes that the rank has started, or (on CPU) other threads of the rank, compute"""
    moves_data: bool
    """whether the training thread reads or writes at least `_MOVES_BYTES_PER_S` bytes per second"""
    is_swapping: bool
    exit: ProcessExit | None
    num_oom_kills: int | None
    """number of processes on the rank's host that the kernel's OOM killer has ended; see `ProcessExit`"""
    now_ns: int
    facts: OverdueFacts = _NO_FACTS
    """facts that the process reports while its step is overdue"""
    nccl: NcclRank | None = None
    """what NCCL's RAS subsystem reports about the rank, if the job uses NCCL and hangs"""

    @property
    def rank(self) -> int:
        return self.identity.rank

    @property
    def is_here(self) -> bool:
        """Whether the rank runs, or ran, on this machine."""
        return pulse_files.is_here(self.identity)

    @property
    def has_ended(self) -> bool:
        """Whether the rank reported the end of its training."""
        return self.state.ended != Ended.NOT_YET

    @property
    def is_dead(self) -> bool:
        """Whether the rank's process ended without finishing the training."""
        if self.state.ended == Ended.FAILED:
            return True
        if self.exit is not None:  # launchers send SIGTERM to all ranks when one fails
            return self.exit.exit_code != 0 and not (
                self.state.ended == Ended.FINISHED and self.exit.exit_code == -signal.SIGTERM
            )
        return not self.has_ended and self.is_here and self.process is None

    @property
    def lingers_s(self) -> float:
        """Time in seconds that the rank's process has existed since its training ended; 0 if the process has exited."""
        process, ended_ns = self.process, self.state.ended_ns
        if not self.has_ended or self.exit is not None or process is None:
            return 0.0
        if process.started_ns is not None and process.started_ns > ended_ns:
            return 0.0  # its PID has been reused
        return max(0, self.now_ns - ended_ns) / 1e9

    @property
    def wait(self) -> Wait | None:
        """What the rank's training thread waits for, according to the system or, if unknown, to the rank's process."""
        seen = None if self.process is None else self.process.wait
        return seen if self.is_silent else seen or self.facts.wait

    @property
    def is_silent(self) -> bool:
        """Whether ddpprof's own thread in the rank's process no longer runs."""
        return pulse_files.is_silent(self.identity, self.state, self.now_ns)


def gather(directory: Path, records: bool = True) -> tuple[RankEvidence, ...]:
    """Return the evidence about all ranks that have a pulse. `records`: also read the ranks' records.

    Raises ``OSError`` if the directory does not exist.
    """
    before = {rank: _process_now(directory, rank) for rank in rundir.pulses_in(directory)}
    exits, swapped_in_before = load_exits(directory), num_swapped_in()
    time.sleep(_LOOK_AGAIN_S)
    swapped_in = num_swapped_in() - swapped_in_before
    found = (_of_rank(directory, rank, exits, earlier, swapped_in, records) for rank, earlier in before.items())
    gathered = [one for one in found if one is not None]
    ranks = {one.process.pid for one in gathered if one.process is not None}
    return tuple(_with_holder(one, ranks) for one in gathered)


def _with_holder(one: RankEvidence, ranks: Collection[int]) -> RankEvidence:
    """Return the evidence with `Wait.FOREIGN_LOCK` if the rank waits for a file lock that is held outside the job."""
    if one.process is None or one.process.wait is not Wait.LOCK:
        return one
    holder = holder_of_lock(one.process.pid)
    is_foreign = holder is not None and holder > 0 and holder not in ranks
    return replace(one, process=replace(one.process, wait=Wait.FOREIGN_LOCK)) if is_foreign else one


def with_nccl(evidence: Sequence[RankEvidence]) -> tuple[RankEvidence, ...]:
    """Add the report of NCCL's RAS subsystem to the evidence, if a rank on this machine uses NCCL.

    This takes up to two seconds.

    An answer from another job on this machine is recognized by its PIDs and ignored.
    """
    asked = next((one for one in evidence if one.process is not None and _uses_nccl(one)), None)
    answer = None if asked is None else ras.ask(ras.address_of(asked.identity.pid))
    found = None if asked is None or answer is None else ras.read_answer(answer, asked.identity.world_size)
    if found is None or any(_is_of_another_job(one, found.get(one.rank)) for one in evidence):
        return tuple(evidence)
    return tuple(replace(one, nccl=found.get(one.rank)) for one in evidence)


def _uses_nccl(one: RankEvidence) -> bool:
    return one.record is not None and one.record.backend == "nccl"


def _is_of_another_job(one: RankEvidence, said: NcclRank | None) -> bool:
    pid = None if said is None or not one.is_here else said.pid
    return pid is not None and pid > 0 and pid != one.identity.pid


def are_all_on_cpu(evidence: Sequence[RankEvidence]) -> bool:
    """Return True if all ranks of the job are known and train on CPU."""
    are_all = {one.identity.world_size for one in evidence} == {len(evidence)}
    return are_all and all(one.identity.device == "cpu" for one in evidence)


def _process_now(directory: Path, rank: int) -> Process | None:
    with suppress(OSError, DdpprofError):
        return _process_of(read_head(directory, rank, 0))
    return None


def _process_of(head: PulseHead) -> Process | None:
    """Return the rank's process, if it is alive and on this machine."""
    identity = head.identity
    if not is_here(identity) or (head.state.ended == Ended.NOT_YET and is_gone(identity)):
        return None
    return look_at(identity.pid, None if head.facts is None else head.facts.thread)


def _of_rank(
    directory: Path,
    rank: int,
    exits: tuple[ProcessExit, ...],
    earlier: Process | None,
    swapped_in: int,
    records: bool,
) -> RankEvidence | None:
    try:
        head = read_head(directory, rank, _STEPS)
    except (OSError, DdpprofError):
        return None
    identity = head.identity
    process, seen = _process_of(head), _exit_of(identity, exits)
    return RankEvidence(
        identity=identity,
        state=head.state,
        steps=head.steps,
        stack=read_stack(head.stack),
        record=record_of(directory, rank) if records else None,
        process=process,
        workers=tuple(workers_of(identity.pid)) if process is not None else (),
        computes=process is not None and _computes(earlier, process),
        helpers_compute=earlier is not None
        and process is not None
        and _helpers_compute(earlier, process, with_threads=identity.device == "cpu" or not len(head.steps)),
        moves_data=earlier is not None and process is not None and _moves_data(earlier, process),
        is_swapping=earlier is not None and process is not None and _is_swapping(earlier, process, swapped_in),
        exit=seen,
        num_oom_kills=oom_kills_seen(seen, identity.host, identity.created_ns, exits),
        now_ns=time.time_ns(),
        facts=_facts_of(head),
    )


def _facts_of(head: PulseHead) -> OverdueFacts:
    """Return the facts that the process reported, if they are about its current stack or its failure."""
    if head.facts is None:
        return _NO_FACTS
    is_of_now = head.state.ended == Ended.FAILED or head.facts.stack_crc == crc_of(head.stack or "")
    return head.facts if is_of_now else _NO_FACTS


def _computes(earlier: Process | None, now: Process) -> bool:
    if now.state == "R" or earlier is None:
        return now.state == "R"
    took_s = now.seen_s - earlier.seen_s
    return now.main_thread_cpu_s - earlier.main_thread_cpu_s > _COMPUTES * took_s


def _helpers_compute(earlier: Process, now: Process, with_threads: bool) -> bool:
    """Return True if child processes or, if `with_threads` is true, other threads of the process compute.

    With an accelerator, library threads may busy-wait, so they must not be counted.
    """
    if now.do_children_run and earlier.do_children_run:
        return True
    if with_threads and now.do_threads_run and earlier.do_threads_run:
        return True
    computed_s = now.children_cpu_s - earlier.children_cpu_s
    if with_threads:
        computed_s = max(computed_s, now.threads_cpu_s - earlier.threads_cpu_s)
    return computed_s > _COMPUTES * (now.seen_s - earlier.seen_s)


def _moves_data(earlier: Process, now: Process) -> bool:
    return now.moved_bytes - earlier.moved_bytes > _MOVES_BYTES_PER_S * (now.seen_s - earlier.seen_s)


def _is_swapping(earlier: Process, now: Process, swapped_in: int) -> bool:
    """Return True if memory of the process is being swapped in.

    `swapped_in`: number of pages that the whole machine has swapped in between the two samples. The process's own count
    is limited to this number, because it also includes pages of mapped files.
    """
    num_paged_in = min(now.num_paged_in - earlier.num_paged_in, swapped_in)
    enough = _SWAPPING_PER_S * (now.seen_s - earlier.seen_s)
    return now.swapped_bytes > _MUCH_SWAPPED_BYTES and num_paged_in > enough


def _exit_of(identity: PulseIdentity, exits: tuple[ProcessExit, ...]) -> ProcessExit | None:
    """Return the exit of the rank's process, as recorded by its launcher.

    If the job succeeded, the rank is assumed to have succeeded.
    """
    own = (one for one in exits if not one.is_job and _is_of(one, identity))
    of_job = (one for one in exits if one.is_job and one.exit_code == 0 and _is_later(one, identity))
    return next(own, None) or next(of_job, None)


def _is_later(seen: ProcessExit, identity: PulseIdentity) -> bool:
    return seen.unix_ns is None or seen.unix_ns >= identity.created_ns


def _is_of(seen: ProcessExit, identity: PulseIdentity) -> bool:
    """Return True if `seen` is the exit of this rank's process, not of the same rank in an earlier attempt."""
    if not _is_later(seen, identity):
        return False
    return seen.rank == identity.rank or (seen.host, seen.pid) == (identity.host, identity.pid)


def record_of(directory: Path, rank: int) -> Record | None:
    """Return the record of a rank. If it is damaged, return the readable part."""
    try:
        return load_record(directory, rank)
    except BadRecordError as error:
        return error.record


_PATIENCE_S = 20.0
"""time limit of py-spy for one process, in seconds"""


def find_py_spy() -> str:
    """Return the path of py-spy. Raises `DdpprofError` if it is not installed."""
    beside_python = Path(sys.executable).with_name("py-spy")
    found = str(beside_python) if beside_python.exists() else shutil.which("py-spy")
    if found is None:
        raise DdpprofError(f"--dump-stacks needs py-spy. {how_to_install('py-spy')}")
    return found


def dump_stacks(evidence: Iterable[RankEvidence]) -> str:
    """Return the stacks of all threads of the ranks on this machine.

    If the stacks of a process cannot be read, the reason is returned instead.

    Raises `DdpprofError` if py-spy is not installed.
    """
    py_spy = find_py_spy()
    return "\n".join(_stacks_of(py_spy, one) for one in evidence)


def _stacks_of(py_spy: str, one: RankEvidence) -> str:
    if not one.is_here:
        return f"Rank {one.rank} runs on {one.identity.host}: run this command there as well.\n"
    if one.process is None:
        return f"The process of rank {one.rank} no longer exists.\n"
    command = [py_spy, "dump", "--nonblocking", "--full-filenames", "--pid", str(one.process.pid)]
    try:
        found, said = _output_of(command)
    except (OSError, subprocess.TimeoutExpired) as error:
        found, said = "", str(error)
    if not found:
        return f"Rank {one.rank}: py-spy cannot read process {one.process.pid}: {said}\n"
    return f"Rank {one.rank}, process {one.process.pid}:\n{found}\n"


def _output_of(command: list[str]) -> tuple[str, str]:
    """Return a command's output (empty if the command fails) and its last line on stderr."""
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with start(command, helper_environment(), begin=None, **options) as process:
        try:
            printed, complaints = process.communicate(timeout=_PATIENCE_S)
        finally:
            process.kill()
    last = (complaints.strip().splitlines() or ["it printed no error"])[-1].removeprefix("Reason: ")
    return ("" if process.returncode else printed.strip()), last
