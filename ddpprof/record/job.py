"""One process of a job: its rank, the common run directory, its files, and how it ends.

Either all ranks record into one run directory, or no rank records. The leading rank opens the run directory and
announces it in the job's rendezvous store. Every rank registers before its first synchronized backward pass. Once the
all-reduces of this pass have completed on the device, all ranks of the process group have registered. If a comm hook
does not wait for other ranks, these ranks get a short time to register. The first rank of the group that checks whether
all ranks have registered writes the verdict to the store, and the other ranks read the verdict.

Some ranks of a job may never train with DDP, for example if they only generate samples. If rank 0 is such a rank, the
lowest rank of a process group leads.
"""

from __future__ import annotations

import copy
import faulthandler
import itertools
import json
import os
import re
import socket
import sys
import threading
import time
import traceback
import uuid
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store

from ddpprof import own_files, rundir
from ddpprof.errors import DdpprofError
from ddpprof.model import Record, RecordedStep
from ddpprof.model.overdue import Frame, caller_of_user, collective_of, frames_of, place_of_user
from ddpprof.model.pulse import PulseIdentity
from ddpprof.monitor.pulse_files import machine_id, shared_path
from ddpprof.own_files import make_named_folder
from ddpprof.record.events import Listener
from ddpprof.record.launch import is_first_rank, rank_given
from ddpprof.record.machine import PATIENCE_S, TrainingDevice
from ddpprof.record.profiler import TraceFile
from ddpprof.record.run_directory import keep_part, open_capture, open_run
from ddpprof.record.settings import Settings
from ddpprof.redaction import without_secrets

_MOST_WORDS = 200


def _covered_ns(spans: Sequence[tuple[int, int]]) -> int:
    """Return the length of the union of time spans, each given by its beginning and end."""
    covered_ns = latest = 0
    for began, end in sorted(spans):
        covered_ns += max(0, end - max(began, latest))
        latest = max(latest, end)
    return covered_ns


def how_it_ends(error: BaseException | None) -> str:
    """Return how the process ends: ``"finished"``, ``"interrupted"`` (by Ctrl-C), or ``"failed: "`` and `error`."""
    if isinstance(error, SystemExit):
        if error.code in (None, 0):
            return "finished"
        error = error.__context__ or error  # `mp.spawn` catches the error that ends a rank, and exits with 1
    if error is None:
        return "finished"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if "exited unexpectedly" in str(error) and error.__cause__ is not None:
        error = error.__cause__  # `DataLoader` reports here why its worker was killed
    kind = type(error).__name__
    said = _in_one_line(str(error).strip()).removeprefix(f"{kind}: ")  # as in errors of `DataLoader` workers
    return f"failed: {kind}: {said if len(said) <= _MOST_WORDS else f'{said[: _MOST_WORDS - 1]}…'}"


def _in_one_line(said: str) -> str:
    """Return the first line of an error message, and for NCCL and `DataLoader` errors also the line with the cause."""
    said = _FROM_CALLBACKS.sub("", said)
    first, (_, _, cause) = said.partition("\n")[0], said.partition("Last error:\n")
    if first.startswith("Caught "):  # in a worker process, whose traceback follows
        cause = said.rpartition("\n")[2]
    cause = cause.partition("\n")[0].strip()
    return f"{cause} ({first})" if cause else first


_FROM_CALLBACKS = re.compile(r"^(?:Got the following error when running the callback: (?:\w+: )?)+")
"""what torch writes, once per callback, before an error that passed through callbacks of futures, as in comm hooks"""


def where_it_ends(error: BaseException | None) -> dict[str, Any]:
    """Return fields of the `Record`: where `error` was raised, and the parameters named in DDP's own errors."""
    if isinstance(error, SystemExit) and error.__context__ is not None:
        error = error.__context__
    if error is None or isinstance(error, SystemExit):
        return dict(_last_exit)
    frames = frames_of(traceback.walk_tb(error.__traceback__))
    where = {"ended_place": _text(place_of_user(frames)), "ended_called_at": _text(caller_of_user(frames))}
    where |= {"ended_in": collective_of(frames)}
    if (named := _PARAMETERS_IN_ERROR.search(str(error))) is None:
        return where
    return {
        **where,
        "ended_parameters": [int(number) for number in (named[1] or named[2]).split()],
        "ended_in_checkpoint": any(one.file.endswith(_CHECKPOINT) and one.function == "backward" for one in frames),
    }


def _text(frame: Frame | None) -> str | None:
    return None if frame is None else str(frame)


_last_exit: dict[str, str | None] = {}
"""fields of the `Record` about the last call to ``sys.exit()`` with an argument that is neither 0 nor ``None``"""


def note_exit(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``sys.exit``, because Python discards its exception before the process exits."""

    def leave(status: Any = None, /) -> Any:
        with suppress(Exception):  # for example, a status may not be comparable
            if status not in (None, 0):
                frames = frames_of(traceback.walk_stack(sys._getframe(1)))[::-1]
                said = without_secrets(" ".join(str(status).split())[:_MOST_WORDS])
                _last_exit.update(exit_message=said, exit_place=_text(place_of_user(frames)))
        return original(status)

    return leave


_PARAMETERS_IN_ERROR = re.compile(
    r"Parameter indices which did not receive grad for rank \d+: ([\d ]+)|Parameter at index (\d+) "
)
_CHECKPOINT = "torch/utils/checkpoint.py"


class LastStep(Listener):
    """The file with the number of steps that this rank has finished, rewritten after every step or by `PulseKeeper`.

    The number is passed to the operating system immediately, so it is not lost if the process is killed. The file is
    not mapped into memory, because truncating a mapped file would end the training with SIGBUS. Every method raises
    ``OSError``.
    """

    def __init__(self, path: Path) -> None:
        self._file = own_files.overwrite(path)

    def step_ends(self, num_steps: int, ended_ns: int | None = None) -> None:
        rundir.write_last_step(self._file, num_steps, time.time_ns() if ended_ns is None else ended_ns)

    def close(self) -> None:
        os.close(self._file)


class CrashFile:
    """The file into which Python writes the stacks of all threads if a signal such as SIGABRT ends the process.

    If the collectives of two ranks do not match, gloo aborts a process, and the process cannot report the error itself.
    If the script has enabled `faulthandler`, its setting is not changed.
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._number = -1
        self._held: Callable[[], object | None] = lambda: None
        """function that returns the open file; it returns ``None`` once the script has redirected `faulthandler`"""

    def open(self, path: Path) -> None:
        """Enable `faulthandler` for the file `path`. Raises ``OSError``."""
        if not faulthandler.is_enabled():
            self._number = own_files.overwrite(path)  # stays open, because a signal may arrive at any time
            self._path = path
            file = os.fdopen(self._number, "wb", buffering=0, closefd=False)
            if sys.version_info >= (3, 14):
                faulthandler.enable(file, c_stack=False)
            else:
                faulthandler.enable(file)
            self._held = weakref.ref(file)

    def close(self) -> None:
        """Disable `faulthandler`, and remove the file if it is empty."""
        path, self._path = self._path, None
        if path is None:
            return
        if self._held() is not None:
            faulthandler.disable()
        with suppress(OSError):  # the run may have been removed
            os.close(self._number)
            if not path.stat().st_size:
                own_files.remove_file(path)


class RankOutput:
    """Writes the facts, steps, trace and ``last_step`` file of one rank. Every method raises ``OSError``."""

    def __init__(self, directory: Path, rank: int) -> None:
        self.directory = directory
        self._rank = rank
        self.trace = TraceFile(directory, rank)
        self._steps = os.fdopen(own_files.overwrite(directory / rundir.steps_file(rank)), "wb")
        self._encode = msgspec.json.Encoder().encode
        self.last_step = LastStep(directory / rundir.last_step_file(rank))

    def write_facts(self, record: Record) -> None:
        """Write all facts about the rank except its steps, which are in another file."""
        facts = {"format": rundir.FORMAT, **msgspec.structs.asdict(record)}
        rundir.write_json(self.directory / rundir.facts_file(self._rank), msgspec.to_builtins(facts))

    def append_step(self, step: RecordedStep) -> None:
        """Append a line and flush it, so that it is not lost if this process is killed.

        The step's end is its last field. It is set after all other fields are encoded, so that the encoding time counts
        as part of the step.
        """
        line = self._encode(step).removesuffix(b"0}")
        self._steps.write(b"%b%d}\n" % (line, time.time_ns()))
        self._steps.flush()

    def close(self) -> None:
        self._steps.close()
        self.last_step.close()


_JOIN_PATIENCE_S = 2.0
"""seconds that ddpprof waits for late ranks if no collective has synchronized the ranks"""
_OFFER_S = 30.0
"""seconds within which the leading rank must open the run directory"""


@dataclass(frozen=True)
class AgreedRecording:
    out: str | None
    """run directory; ``None`` if the ranks cannot record"""
    run_id: str
    everyone: bool
    """True if all ranks of the process group record"""
    problem: str | None
    leader: int
    """number of the leading rank, which opens the run directory"""


_ROUND_TRIPS = 5


class Agreement:
    """Agreement of the ranks of a job, through the job's store, on where and what to record."""

    def __init__(self, store: Store, world_size: int, group: Sequence[int]) -> None:
        """Prepare the coordination with the other ranks.

        `store`: the job's store, with a key prefix reserved for this purpose. `group`: the ranks that average gradients
        together, including this one.
        """
        self.store = store
        self._world_size, self.group = world_size, group
        self._verdict = f"verdict/{crc32(repr(tuple(group)).encode()):x}"

    def is_possible(self) -> bool:
        """Return True if the store keeps values, unlike the store of the MPI backend."""
        try:
            self.store.add("possible", 0)
        except (RuntimeError, NotImplementedError) as error:
            if isinstance(error, NotImplementedError) or "virtual" in str(error):
                return False
            raise
        return True

    def lead(self, rank: int) -> bool:
        """Try to become the leading rank. Return False if there is already a leading rank."""
        return bool(self.store.compare_set("leader", "", str(rank)).decode() == str(rank))

    def offer(self, out: str | None, run_id: str, problem: str | None) -> None:
        """Announce the run directory, or the problem that prevents a run. The leading rank calls this."""
        self.store.set("offer", json.dumps([out, run_id, problem]))

    def join(self, rank: int) -> None:
        """Register that this rank records. Every rank calls this before its first synchronized backward pass."""
        self.store.set(f"joined/{rank}", "1")

    def is_led(self) -> bool:
        return bool(self.store.check(["leader"]))

    def round_trip_ns(self) -> int | None:
        """Return the shortest of a few round trips to the host of the store; ``None`` if the store is a file."""
        store = self.store
        while isinstance(store, PrefixStore):
            store = store.underlying_store
        if isinstance(store, dist.FileStore):
            return None
        times_ns = [time.perf_counter_ns()]
        for _ in range(_ROUND_TRIPS):
            self.is_led()
            times_ns.append(time.perf_counter_ns())
        return min(end - begin for begin, end in itertools.pairwise(times_ns))

    def verdict(self, patience_s: float = _JOIN_PATIENCE_S, offer_s: float = _OFFER_S) -> AgreedRecording | None:
        """Return the result of the agreement; ``None`` if no rank leads yet.

        Every rank calls this after its first synchronized backward pass.

        `patience_s`: time for other ranks to register. `offer_s`: time for the leading rank to open the run directory.
        """
        deadline = time.monotonic() + patience_s
        all_joined = self._by(deadline, lambda: bool(self.store.check([f"joined/{rank}" for rank in self.group])))
        if not self._by(deadline, self.is_led):
            return None
        if not self._by(time.monotonic() + offer_s, self._is_offered):
            return None
        said = self.store.compare_set(self._verdict, "", "all" if all_joined else "some").decode()
        return self._offered(everyone=said == "all")

    def offered(self) -> AgreedRecording | None:
        """Return what the leading rank has announced so far; ``None`` if it has not announced anything yet."""
        return self._offered(everyone=False) if self._is_offered() else None

    def _is_offered(self) -> bool:
        return bool(self.store.check(["offer"]))

    def _offered(self, everyone: bool) -> AgreedRecording:
        out, run_id, problem = json.loads(self.store.get("offer"))
        return AgreedRecording(out, run_id, everyone, problem, int(self.store.get("leader")))

    def _by(self, deadline: float, is_so: Callable[[], bool]) -> bool:
        """Wait until `is_so` returns True, the deadline passes, or another rank writes the verdict.

        Returns the last result of `is_so`.
        """
        while not is_so():
            if self.store.check([self._verdict]) or time.monotonic() > deadline:
                return is_so()  # may have become true in the meantime
            time.sleep(0.02)
        return True

    def come_to_the_end(self) -> None:
        """Register that this rank is still recording. Call this before the all-reduces of the last common step."""
        self.store.add("at-end", 1)

    def all_came_to_the_end(self) -> bool:
        """Return True if all ranks have called `come_to_the_end`. The result is the same on all ranks.

        Call this after the all-reduces of the last common step.
        """
        return self.store.add("at-end", 0) >= self._world_size

    def veto(self) -> None:
        """Prevent all ranks from profiling, because this rank cannot profile."""
        self.store.set("veto", "1")

    def vetoed(self) -> bool:
        """Return True if any rank called `veto` before the last all-reduces that have completed on this rank."""
        return bool(self.store.check(["veto"]))


_session_numbers = itertools.count()
_LAST_PATIENCE_S = 0.5
"""seconds that a failed rank waits for the other ranks before it exits"""


class JobRank:
    """Coordinates this process's rank with the other ranks, and manages the files that the rank writes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._prefix = f"ddpprof/{next(_session_numbers)}"
        self._agreement: Agreement | None = None
        self._round_trip_ns: int | None = None
        self._run_id = ""
        self._process = os.getpid()
        self._leading = threading.Lock()
        self._offer: tuple[str | None, str, str | None] | None = None
        """what this rank has announced, if it leads"""
        self.rank = 0
        self.world_size = 1
        self.leads = True
        """whether this rank reports for all ranks; until the ranks have agreed, True on every rank"""
        self._leader = 0
        self.files: RankOutput | None = None
        self.everyone_records = True
        self.began_part = False
        """True if this rank was the first to write on its host, and the host cannot access the leading rank's folder"""
        self.alone = False
        """True if this process is the whole job and has no process group"""

    @property
    def attached(self) -> bool:
        return self._agreement is not None

    @property
    def agreement(self) -> Agreement:
        """The agreement with the other ranks of the job. This rank must be attached."""
        assert self._agreement is not None
        return self._agreement

    @property
    def group_size(self) -> int:
        """Number of ranks that average gradients together, including this rank."""
        return len(self._agreement.group) if self._agreement is not None else 1

    def in_this_process(self) -> bool:
        """Return False in a child that was forked from the training process."""
        return os.getpid() == self._process

    def warn(self, message: str) -> None:
        """Write a line to the job's stderr. Errors are ignored, because stderr may be closed or on a full disk."""
        with suppress(Exception):
            sys.stderr.write(f"ddpprof: rank {self.rank}: {message}\n")

    def warn_for_all(self, message: str) -> None:
        """Write a message once for the whole job. Every rank calls this with the same message."""
        with suppress(Exception):  # the job's store may no longer exist
            if self.leads or self._is_first_of_unled():
                self.warn(message)

    def _is_first_of_unled(self) -> bool:
        """Return True if no rank leads yet, and this is the first rank of its process group."""
        if self._agreement is None or self.files is not None or self.rank != self._agreement.group[0]:
            return False
        return not self._agreement.is_led()

    def attach(self, group: dist.ProcessGroup) -> None:
        """Join the agreement of the job's ranks. `group`: process group of the DDP module.

        Call this at the first DDP forward pass, when the process group exists and no backward pass has run.
        """
        agreement = self._agreement_in(dist.get_process_group_ranks(group))
        if not agreement.is_possible():
            raise DdpprofError(
                "the ranks cannot agree on what to record, because they share no key-value store (with the MPI "
                "backend, for example)."
            )
        self._join(agreement)

    def _agreement_in(self, group: Sequence[int]) -> Agreement:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        store = PrefixStore(self._prefix, dist.distributed_c10d._get_default_store())
        return Agreement(store, self.world_size, group)

    def attach_alone(self) -> None:
        """Attach without a process group, if this process is the whole job.

        If a launcher has started several such processes, all except the first raise `DdpprofError`, because they would
        record into the same directory.
        """
        if not is_first_rank():
            self.rank = int(rank_given() or 0)
            raise DdpprofError(
                "each of the launcher's processes trains independently. Only the first process is recorded."
            )
        self.alone = True
        self._join(Agreement(dist.HashStore(), 1, (0,)))

    def _join(self, agreement: Agreement) -> None:
        self._agreement = agreement
        self._leads_if(self.rank == 0, agreement)
        agreement.join(self.rank)

    def _leads_if(self, it_may: bool, agreement: Agreement) -> None:
        """Lead if no other rank leads. Another thread may have made this rank lead: see `find_run`."""
        with self._leading:
            self.leads = (it_may or self._offer is not None) and agreement.lead(self.rank)
            if self.leads:
                self._offer = self._offer or self._open_run()
                agreement.offer(*self._offer)  # again, because the script may have created another store

    def find_run(self, may_lead: bool) -> Path | None:
        """Return the run directory before the ranks have agreed on it, or ``None`` if it does not exist yet.

        This is for ranks that make no progress, and is called outside the training thread. There must be a process
        group. `may_lead`: whether this rank may create the run directory. Raises ``OSError`` and ``RuntimeError``.
        """
        agreement = self._agreement_in(range(dist.get_world_size()))
        if not agreement.is_possible():
            return None
        if may_lead and not agreement.is_led():
            self._leads_if(it_may=True, agreement=agreement)
        found = agreement.offered()
        if found is None or found.out is None:
            return None
        self._enter(found)
        return Path(found.out)

    def _enter(self, run: AgreedRecording) -> None:
        """Use the run directory that the leading rank has announced. Raises ``OSError`` and ``RunExists``."""
        assert run.out is not None
        directory = Path(run.out)
        make_named_folder(directory)
        self._run_id, self._leader = run.run_id, run.leader
        self.began_part |= self._keep_part(directory, self._settings, run.run_id)

    def _open_run(self) -> tuple[str | None, str, str | None]:
        """Open the run. Return its directory and ID, and the problem if this fails."""
        run_id, out, problem = uuid.uuid4().hex, None, None
        try:
            out = str(open_run(self._settings, run_id, self.world_size))
        except Exception as error:  # any error, because the other ranks wait for the offer
            problem = str(error) or type(error).__name__
        return out, run_id, problem

    def open_files(self, device: TrainingDevice | None) -> bool:
        """Open this rank's files after a synchronized backward pass on `device`.

        `device`: ``None`` if the rank has failed. A failed rank does not wait for a device, and becomes the leading
        rank if there is no leading rank yet.

        Returns False if the leading rank cannot record. The leading rank then reports the problem for all ranks. Raises
        `DdpprofError` and `OSError` for problems that this rank has to report.
        """
        if self._agreement is None or self.files is not None:
            return True
        if device is not None:
            device.comes_to_rest(PATIENCE_S)  # once this rank's all-reduces have completed, every rank has registered
        patience = (_LAST_PATIENCE_S, _LAST_PATIENCE_S) if device is None else ()
        verdict, first = self._agreement.verdict(*patience), self._agreement.group[0]
        if verdict is None and (first != 0 or device is None):  # rank 0 does not train with DDP, or is late
            self._leads_if(self.rank == first or device is None, self._agreement)
            verdict = self._agreement.verdict(*patience)
        if verdict is None:
            raise DdpprofError(
                f"rank {first} of this job runs without ddpprof, or has not announced its run directory."
            )
        if verdict.out is None:
            if not self.leads:
                return False
            raise DdpprofError(verdict.problem or "the leading rank could not open a run directory")
        self._enter(verdict)
        self.everyone_records = verdict.everyone
        self.files = RankOutput(Path(verdict.out), self.rank)
        if device is not None:
            self._round_trip_ns = self._agreement.round_trip_ns()
        return True

    def prepare_capture(self, directory: Path, settings: Settings) -> None:
        """Create the folder of a capture. The leading rank must call this first. Raises ``OSError``."""
        run_id = self._id_of_capture(directory)
        if self.leads:
            open_capture(directory, settings, run_id, self.world_size)
        else:
            make_named_folder(directory)
            self._keep_part(directory, settings, run_id)

    def _keep_part(self, directory: Path, settings: Settings, run_id: str) -> bool:
        return keep_part(directory, settings, run_id, self.world_size, self._leader, self.warn)

    def _id_of_capture(self, directory: Path) -> str:
        return f"{self._run_id}-{directory.name}"

    def for_capture(self, directory: Path) -> JobRank:
        """Return a copy of this object that records a capture into `directory`. Raises ``OSError``."""
        captured = copy.copy(self)
        captured._run_id = self._id_of_capture(directory)
        captured.files = RankOutput(directory, self.rank)
        store = PrefixStore(directory.name, self.agreement.store)
        captured._agreement = Agreement(store, self.world_size, self.agreement.group)
        return captured

    def identity(self, directory: Path, device: str | None, first_step: int) -> PulseIdentity:
        """Return the identity of this rank, which is stored in its pulse file in `directory`."""
        return PulseIdentity(
            run_id=self._run_id,
            rank=self.rank,
            world_size=self.world_size,
            host=socket.gethostname(),
            machine_id=machine_id(),
            pid=self._process,
            created_ns=time.time_ns(),
            shared=str(shared_path(self.rank)),
            kept=str((directory / rundir.pulse_file(self.rank)).absolute()),
            local_rank=_local_rank(),
            device=device,
            first_step=first_step,
        )

    def write_facts(self, noted: dict[str, Any], pauses: Sequence[tuple[int, int]], ended: str | None) -> None:
        """Write the rank's facts. Raises `OSError`. `pauses`: beginning and end of each pause of training so far."""
        if self.files is None:
            return
        record = Record(
            run_id=self._run_id,
            rank=self.rank,
            world_size=self.world_size,
            local_rank=_local_rank(),
            host=socket.gethostname(),
            pid=self._process,
            torch=str(torch.__version__),
            round_trip_ns=self._round_trip_ns,
            profiler_pause_ns=_covered_ns([*pauses, *self.files.trace.pauses]) or None,
            ended=None if ended is None else without_secrets(ended),
            **noted,
        )
        self.files.write_facts(record)


def _local_rank() -> int | None:
    given = os.environ.get("LOCAL_RANK")
    return None if given is None else int(given)
