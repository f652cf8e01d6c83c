"""Read the pulses of a run from another process, and read and write ``hang.json`` and ``slowdowns.json``.

A rank writes its pulse to shared memory (``/dev/shm``) and copies it into the run directory every second. Processes on
the same machine read the pulse in shared memory. Processes on other machines read the copy.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from ddpprof import own_files, rundir
from ddpprof.errors import DdpprofError
from ddpprof.files import Location
from ddpprof.model import UNKNOWN
from ddpprof.model import pulse_layout as layout
from ddpprof.model.hang import Verdict
from ddpprof.model.overdue import OverdueFacts, decode_facts
from ddpprof.model.pulse import Ended, Pulse, PulseIdentity, PulseSamples, PulseState, PulseSteps
from ddpprof.model.pulse_layout import NotAPulseError
from ddpprof.model.tables import rows_of
from ddpprof.model.whole_run import Slowdowns

SHARED_FOLDER = Path("/dev/shm")  # noqa: S108 (memory; files in it are created exclusively, under random names)
_PREFIX = "ddpprof-pulse-"
SILENT_NS = 4 * 10**9
"""a process counts as silent if its last heartbeat is older than this; ddpprof's thread writes a heartbeat
every second
"""
SILENT_FAR_NS = 15 * 10**9
"""a process on another machine counts as silent if its last heartbeat is older than this: clocks may differ, and files
may appear late on a shared file system
"""
MOST_COMPARED = 64
"""maximum number of ranks whose steps are compared one by one"""


@cache
def machine_id() -> str:
    """Return an ID of this machine's boot and this process's PID namespace.

    PIDs are unique among processes with the same ID.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def shared_path(rank: int) -> Path:
    """Return an unused path for a rank's pulse in shared memory."""
    return SHARED_FOLDER / f"{_PREFIX}{os.getuid()}-{os.getpid()}-{rank}-{os.urandom(4).hex()}"


@dataclass(frozen=True, slots=True)
class PulseHead:
    """The part of a pulse that live views read: identity, current activity and most recent steps."""

    identity: PulseIdentity
    state: PulseState
    stack: str | None
    steps: PulseSteps
    memory_bytes: int | None = None
    """resident memory of the process in the last sample"""
    facts: OverdueFacts | None = None
    """facts that the process reports if its step is overdue, if a loss was not finite, or if the process has failed"""


def read_pulse(directory: Path, rank: int) -> Pulse:
    """Return a rank's pulse. Raises `DdpprofError` if the pulse is unreadable, `FileNotFoundError` if it is missing."""
    path = directory / rundir.pulse_file(rank)
    with _newest(path) as file, _named(path):
        return layout.decode(os.pread(file, layout.NUM_BYTES, 0))


def read_head(directory: Path, rank: int, num_steps: int) -> PulseHead:
    """Return a rank's state and up to `num_steps` of its most recent steps. Raises the same errors as `read_pulse`."""
    path = directory / rundir.pulse_file(rank)
    with _newest(path) as file, _named(path):
        begin = os.pread(file, layout.STEPS.at, 0)
        identity = layout.decode_identity(begin[: layout.HEAD_BYTES])
        state = layout.decode_state(begin[layout.STATE_AT : layout.STACK_AT])
        return PulseHead(
            identity,
            state,
            layout.decode_stack(state, begin[layout.STACK_AT : layout.FACTS_AT]),
            _last_steps(file, identity, state, num_steps),
            _last_memory_bytes(file, state),
            decode_facts(begin[layout.FACTS_AT :]) if _has_facts(state) else None,
        )


def _has_facts(state: PulseState) -> bool:
    return state.stack_ns != UNKNOWN or state.ended == Ended.FAILED or state.num_nonfinite > 0


def is_here(identity: PulseIdentity) -> bool:
    """Return True if the rank runs, or ran, on this machine."""
    return identity.machine_id == machine_id()


def last_sign_ns(identity: PulseIdentity, state: PulseState) -> int:
    """Return the time of the last heartbeat by the training thread or ddpprof's own thread, in ns since 1970."""
    return max(state.last_ns, identity.created_ns)


def is_silent(identity: PulseIdentity, state: PulseState, now_ns: int) -> bool:
    """Return True if a rank has not recorded its end, but ddpprof's own thread in its process no longer runs.

    The process is then stopped or dead, or a thread holds Python's GIL.
    """
    most_ns = SILENT_NS if is_here(identity) else SILENT_FAR_NS
    return state.ended == Ended.NOT_YET and now_ns - last_sign_ns(identity, state) > most_ns


def is_gone(identity: PulseIdentity) -> bool | None:
    """Return True if the rank's process died without recording its end; ``None`` if it runs on another machine."""
    if not _is_in_this_memory(identity):
        return None
    try:
        file = own_files.open_regular(Path(identity.shared))
    except FileNotFoundError:
        return True
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # raises while the process is alive
        return True
    except OSError:
        return False
    finally:
        os.close(file)


def _is_in_this_memory(identity: PulseIdentity) -> bool:
    """Return True if the rank's pulse is or was in the shared memory of this machine."""
    return is_here(identity) and Path(identity.shared).parent == SHARED_FOLDER


def _last_memory_bytes(file: int, state: PulseState) -> int | None:
    """Return the resident memory in the latest sample, in bytes."""
    if state.num_samples <= 0:
        return None
    row = layout.SAMPLES.row
    content = os.pread(file, row.size, layout.SAMPLES.place(state.num_samples - 1))
    if len(content) != row.size:
        raise NotAPulseError("it is truncated")
    num_bytes = PulseSamples(*row.unpack(content)).memory_bytes
    return int(num_bytes) if num_bytes >= 0 else None


def _last_steps(file: int, identity: PulseIdentity, state: PulseState, num_steps: int) -> PulseSteps:
    first = max(identity.first_step, state.num_steps - min(num_steps, layout.STEPS.num_places), 0)
    until = max(first, state.num_steps)
    content = b"".join(os.pread(file, end - begin, begin) for begin, end in layout.STEPS.spans(first, until))
    if len(content) != (until - first) * layout.STEPS.row.size:
        raise NotAPulseError("it is truncated")
    steps = layout.decode_rows(PulseSteps, content)
    return rows_of(steps, steps.number == np.arange(first, until))


def read_heads(directory: Path, num_steps: int) -> Iterator[PulseHead]:
    """Yield the state and most recent steps of each rank with a readable pulse file.

    Raises ``OSError`` if the directory does not exist.
    """
    for rank in rundir.pulses_in(directory):
        with suppress(OSError, DdpprofError):
            yield read_head(directory, rank, num_steps)


def read_pulses(directory: Path, most: int = MOST_COMPARED) -> dict[int, Pulse]:
    """Return the readable pulses of the first `most` ranks."""
    found = {}
    for rank in rundir.pulses_in(directory)[:most]:
        with suppress(OSError, DdpprofError):
            found[rank] = read_pulse(directory, rank)
    return found


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except NotAPulseError as error:
        raise DdpprofError(f"{path} cannot be read: {error}.") from error


@contextmanager
def _newest(path: Path) -> Iterator[int]:
    """Open the pulse in shared memory if it is on this machine, otherwise the copy at `path`."""
    copy = own_files.open_regular(path)
    try:
        shared = _open_shared(copy)
        if shared is None:
            yield copy
        else:
            try:
                yield shared
            finally:
                os.close(shared)
    finally:
        os.close(copy)


def _open_shared(copy: int) -> int | None:
    """Open the pulse in shared memory that belongs to this copy, if it is on this machine and has the same owner."""
    try:
        head = os.pread(copy, layout.HEAD_BYTES, 0)
        identity = layout.decode_identity(head)
        if not _is_in_this_memory(identity):
            return None
        shared = own_files.open_regular(Path(identity.shared))
    except (NotAPulseError, OSError):
        return None
    if os.fstat(shared).st_uid == os.fstat(copy).st_uid and os.pread(shared, layout.HEAD_BYTES, 0) == head:
        return shared
    os.close(shared)
    return None


def gather_left() -> None:
    """Move the pulses that this user's dead ranks left in shared memory to their run directories."""
    with suppress(OSError):
        for name in os.listdir(SHARED_FOLDER):
            if name.startswith(f"{_PREFIX}{os.getuid()}-"):
                with suppress(OSError, NotAPulseError):
                    _gather(SHARED_FOLDER / name)


def _gather(shared: Path) -> None:
    file = own_files.open_regular(shared)
    try:
        if os.fstat(file).st_uid != os.geteuid():
            return
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while the process is alive
        content = os.pread(file, layout.NUM_BYTES, 0)
        try:
            _keep(content)
        except NotAPulseError:
            return  # written by another version of ddpprof, which moves it itself
        except OSError:
            pass  # its run directory no longer exists
        own_files.remove_file(shared)
    finally:
        os.close(file)


def _keep(content: bytes) -> None:
    """Update the copy in the run directory and the rank's last step, unless the files belong to another recording."""
    head = content[: layout.HEAD_BYTES]
    identity, state = layout.decode_identity(head), layout.decode_state(content[layout.STATE_AT :])
    kept = Path(identity.kept)
    copy = os.open(kept, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if os.pread(copy, layout.HEAD_BYTES, 0) == head:
            os.pwrite(copy, content, 0)
            last_step = own_files.overwrite(kept.with_name(rundir.last_step_file(identity.rank)))
            rundir.write_last_step(last_step, state.step, state.step_since_ns)
            os.close(last_step)
    finally:
        os.close(copy)


def write_verdict(directory: Path, verdict: Verdict) -> None:
    """Write ``hang.json``. Raises ``OSError``."""
    own_files.write_whole(directory / rundir.HANG_FILE, msgspec.json.encode(verdict))


def read_verdict(directory: Location) -> Verdict | None:
    """Return the latest verdict from ``hang.json``; ``None`` if there is none."""
    return rundir.read_json(directory / rundir.HANG_FILE, Verdict)


def write_slowdowns(directory: Path, found: Slowdowns) -> None:
    """Write ``slowdowns.json``. Raises ``OSError``."""
    content = msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"
    own_files.write_whole(directory / rundir.SLOWDOWNS_FILE, content)


def read_slowdowns(directory: Location) -> Slowdowns | None:
    """Return the slowdowns and pauses so far from ``slowdowns.json``; ``None`` if it does not exist."""
    return rundir.read_json(directory / rundir.SLOWDOWNS_FILE, Slowdowns)
