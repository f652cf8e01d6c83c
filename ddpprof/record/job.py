"""A process's place in the job: its rank, the run directory that all ranks agree on, and its own files."""

from __future__ import annotations

import copy
import itertools
import os
import socket
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ddpprof import rundir
from ddpprof.errors import DdpprofError
from ddpprof.model import Record
from ddpprof.model.pulse import PulseIdentity
from ddpprof.monitor.pulse_files import machine_id, shared_path
from ddpprof.own_files import make_named_folder
from ddpprof.record.agreement import Agreement
from ddpprof.record.boards import Neighbours
from ddpprof.record.device import PATIENCE_S, TrainingDevice
from ddpprof.record.launch import is_first_rank, rank_given
from ddpprof.record.output import RankOutput
from ddpprof.record.run_directory import keep_part, open_capture, open_run
from ddpprof.record.settings import Settings
from ddpprof.redaction import without_secrets

_session_numbers = itertools.count()
_LAST_PATIENCE_S = 0.5
"""seconds that a rank which has failed, and is about to exit, waits for others"""


class JobRank:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._prefix = f"ddpprof/{next(_session_numbers)}"
        self._agreement: Agreement | None = None
        self._run_id = ""
        self._process = os.getpid()
        self.rank = 0
        self.world_size = 1
        self.leads = True
        """whether this rank speaks for all, as each does before they agree"""
        self._leader = 0
        self.files: RankOutput | None = None
        self.everyone_records = True
        self.began_part = False
        """True if this rank is the first of a host that does not see the folder of the rank that leads"""
        self.alone = False
        """True if the job is this process alone, without a process group"""

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
        """Number of ranks with which this one averages gradients, itself included."""
        return len(self._agreement.group) if self._agreement is not None else 1

    def in_this_process(self) -> bool:
        """Return False in a child that was forked from the training process."""
        return os.getpid() == self._process

    def warn(self, message: str) -> None:
        """Write a line on the job's stderr, which may be closed, or its disk full."""
        with suppress(Exception):
            sys.stderr.write(f"ddpprof: rank {self.rank}: {message}\n")

    def warn_for_all(self, message: str) -> None:
        """Write a line that says the same on all ranks."""
        with suppress(Exception):  # the job's store may have gone
            if self.leads or self._is_first_of_unled():
                self.warn(message)

    def _is_first_of_unled(self) -> bool:
        """Return whether no rank leads, as before the first steps are over, and this one may lead its group."""
        if self._agreement is None or self.files is not None or self.rank != self._agreement.group[0]:
            return False
        return not self._agreement.is_led()

    def attach(self, group: dist.ProcessGroup) -> None:
        """Join the job. Call this at the first DDP forward: the process group exists, and no backward pass has run.

        `group`: that of the DDP module.
        """
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        store = dist.PrefixStore(self._prefix, dist.distributed_c10d._get_default_store())
        agreement = Agreement(store, self.world_size, dist.get_process_group_ranks(group))
        if not agreement.is_possible():
            raise DdpprofError("the ranks cannot agree on what to record: the job's store keeps nothing, as with MPI.")
        self._join(agreement)

    def attach_alone(self) -> None:
        """Replace `attach` if there is no process group: this process agrees with itself.

        Raises `DdpprofError` in all but the first of several processes that a launcher started: each is a job of its
        own, and all of them would record into one directory.
        """
        if not is_first_rank():
            self.rank = int(rank_given() or 0)
            raise DdpprofError("each of the launcher's processes trains on its own: only the first one is recorded.")
        self.alone = True
        self._join(Agreement(dist.HashStore(), 1, (0,)))

    def _join(self, agreement: Agreement) -> None:
        self._agreement = agreement
        self._leads_if(self.rank == 0, agreement)
        agreement.join(self.rank)

    def _leads_if(self, it_may: bool, agreement: Agreement) -> None:
        self.leads = it_may and agreement.lead(self.rank)
        if self.leads:
            self._offer_run(agreement)

    def _offer_run(self, agreement: Agreement) -> None:
        """Open the run, and tell the other ranks where it is, or why there is none."""
        run_id, out, problem = uuid.uuid4().hex, None, None
        try:
            out = str(open_run(self._settings, run_id, self.world_size))
        except Exception as error:  # whatever it is, the other ranks wait for the offer
            problem = str(error) or type(error).__name__
        agreement.offer(out, run_id, problem)

    def open_files(self, device: TrainingDevice | None) -> bool:
        """Open this rank's files, after a synchronised backward pass on `device`.

        `device`: ``None`` if the rank has failed, so that it waits for no device, and leads if nobody else does.

        Returns False if the rank that leads cannot record, and reports that for all ranks. Raises `DdpprofError` and
        `OSError` for problems that this rank has to report.
        """
        if self._agreement is None or self.files is not None:
            return True
        if device is not None:
            device.comes_to_rest(PATIENCE_S)  # after this rank's all-reduces, every rank has come this far
        patience = (_LAST_PATIENCE_S, _LAST_PATIENCE_S) if device is None else ()
        verdict, first = self._agreement.verdict(*patience), self._agreement.group[0]
        if verdict is None and (first != 0 or device is None):  # rank 0 does not train with DDP, or is late
            self._leads_if(self.rank == first or device is None, self._agreement)
            verdict = self._agreement.verdict(*patience)
        if verdict is None:
            raise DdpprofError(f"rank {first} of this job runs without ddpprof, or has not said where it records.")
        if verdict.out is None:
            if not self.leads:
                return False
            raise DdpprofError(verdict.problem or "there is no run directory")
        directory = Path(verdict.out)
        make_named_folder(directory)
        self._run_id, self.everyone_records, self._leader = verdict.run_id, verdict.everyone, verdict.leader
        self.began_part = self._keep_part(directory, self._settings, verdict.run_id)
        self.files = RankOutput(directory, self.rank)
        return True

    def prepare_capture(self, directory: Path, settings: Settings) -> None:
        """Make the folder of a capture. The rank that leads calls this before the others do. Raises ``OSError``."""
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
        """Return this rank as it records a capture into another directory. Raises ``OSError``."""
        captured = copy.copy(self)
        captured._run_id = self._id_of_capture(directory)
        captured.files = RankOutput(directory, self.rank)
        captured._agreement = self.agreement.renewed(directory.name)
        return captured

    def neighbours(self) -> Neighbours:
        """Say to the other ranks where this one is; every rank calls this at the same step. Raises ``OSError``."""
        assert self.files is not None
        return Neighbours(self.files.directory, self.agreement.store, self.rank, self.world_size)

    def identity(self, device: str | None, first_step: int) -> PulseIdentity:
        """Return what the pulse says of this rank. The files must be open."""
        assert self.files is not None
        return PulseIdentity(
            run_id=self._run_id,
            rank=self.rank,
            world_size=self.world_size,
            host=socket.gethostname(),
            machine_id=machine_id(),
            pid=self._process,
            created_ns=time.time_ns(),
            shared=str(shared_path(self.rank)),
            kept=str((self.files.directory / rundir.pulse_file(self.rank)).absolute()),
            local_rank=_local_rank(),
            device=device,
            first_step=first_step,
        )

    def write_facts(self, noted: dict[str, Any], profiler_pause_ns: int, ended: str | None) -> None:
        """Write the rank's facts. Raises `OSError`."""
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
            profiler_pause_ns=profiler_pause_ns or None,
            ended=None if ended is None else without_secrets(ended),
            **noted,
        )
        self.files.write_facts(record)


def _local_rank() -> int | None:
    given = os.environ.get("LOCAL_RANK")
    return None if given is None else int(given)
