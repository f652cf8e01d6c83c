"""Captures: on request by ``ddpprof capture``, all ranks of a running job profile the same steps.

The ranks agree on these steps through a board, which is a small key-value store:

    a listening rank   receives a request on its socket, and posts it on the board as a note
    the leading rank   creates the capture's folder, and posts a note that the folder exists
    every rank         reads that note, and registers as ready
    the leading rank   once all ranks are ready, posts at the beginning of step n that the capture begins at step n + 1
    every rank         reads that note at the beginning of step n + 1. The note exists by then, because the leading rank
                       posted it before it took part in the all-reduces of step n

All but the last two actions run in the pulse keeper's thread. The training thread reads the board only while a capture
is about to begin. If all ranks run on one machine, the board is a folder in the run directory. Otherwise, it is the
job's rendezvous store, which does not need a shared disk. A note never changes, so all ranks read the same text.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
from torch.distributed import Store

from ddpprof import own_files, rundir
from ddpprof.model.json_files import CaptureAnswer, CaptureRequest
from ddpprof.model.tables import Int64Column
from ddpprof.monitor.pulse_files import machine_id, read_head
from ddpprof.record.job import JobRank
from ddpprof.record.settings import Settings
from ddpprof.record.window import Window
from ddpprof.rundir import BOARD_DIRECTORY, CONTROL_SOCKET

_PLACES_S = 10.0
"""seconds within which every rank must report which machine it runs on"""


class Board(Protocol):
    """Key-value store of notes. The ranks of a job use it to agree on a capture."""

    def post(self, note: str, text: str) -> None:
        """Post a note. Raises ``OSError`` or ``RuntimeError``."""

    def read(self, note: str) -> str | None:
        """Return the text of a note; ``None`` if it has not been posted. Raises the same errors as `post`."""

    def sign(self, list_name: str) -> None:
        """Add this rank to the list `list_name`, unless it is already on the list. Raises the same errors as `post`."""

    def num_signed(self, list_name: str) -> int:
        """Return the number of ranks on the list `list_name`. Raises the same errors as `post`."""


class FolderBoard:
    """Board in a folder of the run directory, for a job that runs on one machine."""

    def __init__(self, directory: Path, rank: int) -> None:
        self._folder = directory / BOARD_DIRECTORY
        self._rank = rank
        own_files.make_folder(self._folder)

    def post(self, note: str, text: str) -> None:
        own_files.write_whole(self._folder / note, text.encode())

    def read(self, note: str) -> str | None:
        try:
            return (self._folder / note).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def sign(self, list_name: str) -> None:
        own_files.write_whole(self._folder / f"{list_name}.{self._rank}", b"")

    def num_signed(self, list_name: str) -> int:
        return sum(name.startswith(f"{list_name}.") for name in os.listdir(self._folder))


class StoreBoard:
    """Board in the job's rendezvous store, for a job that runs on several machines.

    If torch can open a separate connection to the store, the board uses it. With a shared connection, training would
    have to wait while another thread uses the connection.
    """

    def __init__(self, store: Store, rank: int) -> None:
        self._store = store.clone() if hasattr(store, "clone") else store
        self._rank = rank

    def post(self, note: str, text: str) -> None:
        self._store.set(note, text)

    def read(self, note: str) -> str | None:
        return self._store.get(note).decode() if self._store.check([note]) else None

    def sign(self, list_name: str) -> None:
        if self._store.add(f"{list_name}.{self._rank}", 1) == 1:
            self._store.add(list_name, 1)

    def num_signed(self, list_name: str) -> int:
        return self._store.add(list_name, 0)


class Neighbours:
    """Checks whether all ranks run on this machine and can access this rank's run directory, and chooses the board."""

    def __init__(self, directory: Path, store: Store, rank: int, world_size: int) -> None:
        """Announce this rank's machine and folder. Every rank calls this at the same step. Raises ``OSError``."""
        self._directory, self._store, self._rank, self._world_size = directory, store, rank, world_size
        folder = directory.stat()  # containers on one machine may have different folders with the same path
        self._key = f"on-{machine_id()}-{folder.st_dev}-{folder.st_ino}"
        self._deadline = time.monotonic() + _PLACES_S
        self._num_here = store.add(self._key, 1)

    def board(self) -> Board | None:
        """Return the job's board, or ``None`` until all ranks have announced their machine or 10 s have passed.

        Raises the same errors as `Board.post`.
        """
        if self._num_here < self._world_size:
            self._num_here = self._store.add(self._key, 0)
        if self._num_here >= self._world_size:
            return FolderBoard(self._directory, self._rank)
        if time.monotonic() > self._deadline:
            return StoreBoard(self._store, self._rank)
        return None


_MOST_REQUEST_BYTES = 4096
_REQUEST_S = 5.0
"""seconds within which a client must send its request after connecting"""
_CREDENTIALS = struct.Struct("3i")


class Control:
    """Accepts capture requests on a socket in the run directory, in a separate thread, until it is closed.

    Only one request is handled at a time. Requests that arrive in the meantime are refused.
    """

    def __init__(self, directory: Path, handle: Callable[[CaptureRequest], Iterator[CaptureAnswer]]) -> None:
        """Start listening. `handle`: function that yields the answers to a request. Raises ``OSError``."""
        self._handle = handle
        self._answering = threading.Lock()
        self._path = directory / CONTROL_SOCKET
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        own_files.remove_file(self._path)
        os.fchmod(self._socket.fileno(), 0o600)  # before `bind`, so that the path never has wider permissions
        with own_files.short_path(self._path) as path:
            self._socket.bind(path)
        self._socket.listen(4)
        self._thread = threading.Thread(target=self._serve, name="ddpprof-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        own_files.remove_file(self._path)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes up the thread
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:  # closed
                return
            try:
                threading.Thread(target=self._answer, args=(client,), name="ddpprof-request", daemon=True).start()
            except RuntimeError:  # the interpreter is exiting, and from Python 3.12 on can no longer start threads
                client.close()

    def _answer(self, client: socket.socket) -> None:
        with client, suppress(OSError):  # the client has disconnected
            client.settimeout(_REQUEST_S)
            for answer in self._answers(client):
                client.sendall(msgspec.json.encode(answer) + b"\n")

    def _answers(self, client: socket.socket) -> Iterator[CaptureAnswer]:
        _, user, _ = _CREDENTIALS.unpack(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        with client.makefile("rb") as lines:
            request = lines.readline(_MOST_REQUEST_BYTES)  # first: closing with unread data would discard the answer
        if user != os.geteuid():
            yield CaptureAnswer(refused="the job belongs to another user.")
            return
        try:
            asked = msgspec.json.decode(request, type=CaptureRequest)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            yield CaptureAnswer(refused=f"the request is not valid: {error}.")
            return
        if not self._answering.acquire(blocking=False):
            yield CaptureAnswer(refused="the job is handling another request, which may be waiting for a slowdown.")
            return
        try:
            yield from self._handle(asked)
        finally:
            self._answering.release()


_ANSWER_S = 60.0
"""seconds within which all ranks must become ready for a capture"""
_WRITE_S = 3600.0
"""seconds within which all ranks must run the steps of a capture and write their files"""
_LOOK_S = 0.05
_RANKS_PER_LOOK = 500
"""with up to this many ranks, each rank reads the board in every round; with more ranks, it reads less often, to limit
the load on the store
"""
_CANCELLED = -1
_BOARD_FAILS = (OSError, RuntimeError, ValueError)
"""errors that reading or writing a board may raise while the job is ending"""
_KEPT_STEPS = 2000
_USUAL_STEPS = 200
_RECENT_STEPS = 5
_RECENT_NS = 1_000_000_000
_USUAL_PER_RECENT = 5


class Captures:
    """Performs captures on one rank. Neither `round` nor the handling of requests runs in the training thread."""

    def __init__(self, job: JobRank, settings: Settings) -> None:
        """Announce on which machine this rank runs, and accept requests if it is the first rank on its file system.

        The rank's files must be open.
        """
        assert job.files is not None
        self._job, self._settings, self._directory = job, settings, job.files.directory
        self._neighbours = Neighbours(self._directory, job.agreement.store, job.rank, job.world_size)
        self._board: Board | None = None
        self._number = 1
        """number of the current capture or, between captures, of the next capture"""
        self._num_rounds, self._rounds_per_look = 0, max(1, job.world_size // _RANKS_PER_LOOK)
        self._asked_since: float | None = None
        self.request: CaptureRequest | None = None
        """request for a capture that is about to begin; while it is set, the training thread reads the board"""
        self._first_step: int | None = None
        self._over: Window | None = None
        self._control: Control | None = None
        if job.leads or job.began_part:
            with suppress(OSError):  # the folder's file system does not support sockets
                self._control = Control(self._directory, self._handle)

    @property
    def folder(self) -> Path:
        """Folder of the current or next capture."""
        return self._directory / rundir.capture_directory(self._number)

    def close(self) -> None:
        if self._control is not None:
            self._control.close()

    def round(self) -> None:
        """Check the board for a request, and complete a finished capture.

        The pulse keeper's thread calls this repeatedly.
        """
        if self._board is None:
            self._board = self._neighbours.board()
            return
        self._num_rounds += 1
        if self._num_rounds % self._rounds_per_look:
            return
        if self._over is not None:
            window, self._over = self._over, None
            with suppress(*_BOARD_FAILS):
                window.close_in_background()
            self._board.sign(self._note("done"))
            self._number += 1
        if self.request is None:
            self._look_for_request(self._board)

    def _note(self, name: str) -> str:
        return f"{name}-{self._number}"

    def _look_for_request(self, board: Board) -> None:
        text = board.read(self._note("request"))
        if text is None:
            return
        request = msgspec.json.decode(text, type=CaptureRequest)
        is_open = board.read(self._note("open")) is not None
        if not self._job.leads and not is_open:
            return
        if not self._job.leads or not is_open:
            self._job.prepare_capture(self.folder, self._settings.to_capture(request, self.folder, 0))
        if not is_open:
            board.post(self._note("open"), "")
        self._first_step, self._asked_since = None, time.monotonic()
        self.request = request
        board.sign(self._note("ready"))

    def begins_with(self, step: int) -> bool:
        """Return True if the capture begins with step number `step`, which begins now.

        The training thread calls this. On an accelerator, the device must have finished the previous step.
        """
        board = self._board
        assert board is not None
        try:
            if self._first_step is None:
                self._first_step = self._posted_first_step(board, step)
        except _BOARD_FAILS:
            self.request = None
            return False
        if self._first_step == _CANCELLED:
            self._first_step = None
            self._number += 1
            self.request = None  # last, because `round` then looks for the next request
            return False
        return self._first_step is not None and step >= self._first_step

    def _posted_first_step(self, board: Board, step: int) -> int | None:
        posted = board.read(self._note("start"))
        if posted is not None:
            return int(posted)
        if not self._job.leads:
            return None
        if board.num_signed(self._note("ready")) >= self._job.world_size:
            board.post(self._note("start"), str(step + 1))
        elif self._asked_since is not None and time.monotonic() - self._asked_since > _ANSWER_S:
            board.post(self._note("start"), str(_CANCELLED))
        return None

    def is_over(self, window: Window) -> None:
        """Record that this rank has captured its steps. Another thread completes the files of the capture."""
        self._over = window  # before the next line, or `round` could handle the same request again
        self.request = None

    def _handle(self, request: CaptureRequest) -> Iterator[CaptureAnswer]:
        """Handle a request and yield the answers. Each request has its own thread."""
        board = self._board
        if board is None:
            yield CaptureAnswer(refused="the job has just started. Try again in a few seconds.")
            return
        try:
            if request.slower_than is not None and not self._is_busy:
                yield CaptureAnswer(armed=True, number=self._number)
                yield from self._await_slow_down(request.slower_than)
            if self._is_busy:
                yield CaptureAnswer(refused="another capture is in progress.")
                return
            number = self._number
            board.post(f"request-{number}", msgspec.json.encode(request).decode())
            yield from self._follow(board, number)
        except _BOARD_FAILS as error:
            yield CaptureAnswer(refused=f"the job is ending, or its ranks cannot reach each other: {error}.")

    @property
    def _is_busy(self) -> bool:
        return self.request is not None or self._over is not None

    def _await_slow_down(self, factor: float) -> Iterator[CaptureAnswer]:
        """Wait until steps take `factor` times as long as usual.

        Yields an answer every second, so that the caller notices if the client disconnects.
        """
        while not is_slower(read_head(self._directory, self._job.rank, _KEPT_STEPS).steps.length_ns, factor):
            time.sleep(1.0)
            yield CaptureAnswer(armed=True)

    def _follow(self, board: Board, number: int) -> Iterator[CaptureAnswer]:
        """Yield an answer when the capture begins, and another answer when all ranks have written their files."""
        world_size = self._job.world_size
        deadline = time.monotonic() + 2 * _ANSWER_S
        while (posted := board.read(f"start-{number}")) is None and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        if posted is None or int(posted) == _CANCELLED:
            ready = board.num_signed(f"ready-{number}")
            yield CaptureAnswer(refused=f"only {ready} of {world_size} ranks responded, so no steps were profiled.")
            return
        yield CaptureAnswer(number=number, first_step=int(posted))
        deadline = time.monotonic() + _WRITE_S
        while (done := board.num_signed(f"done-{number}")) < world_size:
            if time.monotonic() > deadline:
                yield CaptureAnswer(refused=f"only {done} of {world_size} ranks wrote their steps in time.")
                return
            time.sleep(_LOOK_S)
        folder = self._directory / rundir.capture_directory(number)
        yield CaptureAnswer(number=number, first_step=int(posted), folder=str(folder))


def is_slower(length_ns: Int64Column, factor: float) -> bool:
    """Return True if the median of recent steps is more than `factor` times the median of the steps before them.

    Recent steps are the last 5 steps, or the steps of the last second if there are more. They are compared with the
    preceding 200 steps or, if that is more, with five times as many steps as there are recent steps.
    """
    backward = length_ns[::-1]
    num_recent = max(_RECENT_STEPS, int(np.searchsorted(np.cumsum(backward), _RECENT_NS)))
    recent, before = backward[:num_recent], backward[num_recent:]
    usual = before[: max(_USUAL_STEPS, _USUAL_PER_RECENT * num_recent)]
    return len(usual) >= num_recent and bool(np.median(recent) > factor * np.median(usual))
