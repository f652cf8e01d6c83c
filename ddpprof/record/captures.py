"""Captures: the ranks of a running job agree to profile the same steps, whenever ``ddpprof capture`` asks for it.

    a rank that listens   is asked through its socket, and posts the request on the job's board
    the rank that leads   makes the folder of the capture, and posts that it is open
    every rank            finds that note, and signs that it is ready
    the rank that leads   at the beginning of step n, when all are ready: posts that the capture begins with step n + 1
    every rank            finds that note at the beginning of step n + 1, since it has the all-reduces of step n behind
                          it, to which that rank has contributed after its note

All but the last two happen in the thread that keeps the pulse, so that training only looks at the board while all ranks
are about to begin.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from ddpprof import rundir
from ddpprof.model.capture import CaptureAnswer, CaptureRequest
from ddpprof.model.tables import Int64Column
from ddpprof.monitor.pulse_files import read_head
from ddpprof.record.boards import Board
from ddpprof.record.control import Control
from ddpprof.record.job import JobRank
from ddpprof.record.settings import Settings
from ddpprof.record.window import Window

_ANSWER_S = 60.0
"""seconds for all ranks to be ready"""
_WRITE_S = 3600.0
"""seconds for all ranks to train the steps and write them"""
_LOOK_S = 0.05
_RANKS_PER_LOOK = 500
"""number of ranks from which on each looks at the board less often, as one store serves all"""
_CANCELLED = -1
_BOARD_FAILS = (OSError, RuntimeError, ValueError)
"""errors of a board whose job is about to end"""
_KEPT_STEPS = 2000
_USUAL_STEPS = 200
_RECENT_STEPS = 5
_RECENT_NS = 1_000_000_000
_USUAL_PER_RECENT = 5


class Captures:
    """The captures of one rank's run. `round`, and all that answers requests, run outside the training thread."""

    def __init__(self, job: JobRank, settings: Settings) -> None:
        """Say where this rank runs, and begin to take requests if it listens. The rank's files must be open."""
        assert job.files is not None
        self._job, self._settings, self._directory = job, settings, job.files.directory
        self._neighbours = job.neighbours()
        self._board: Board | None = None
        self._number = 1
        """number of the current or next capture"""
        self._num_rounds, self._rounds_per_look = 0, max(1, job.world_size // _RANKS_PER_LOOK)
        self._asked_since: float | None = None
        self.request: CaptureRequest | None = None
        """what is to begin soon; training looks at the board while this is not ``None``"""
        self._first_step: int | None = None
        self._over: Window | None = None
        self._control: Control | None = None
        if job.leads or job.began_part:
            with suppress(OSError):  # the folder's file system has no sockets
                self._control = Control(self._directory, self._handle)

    @property
    def folder(self) -> Path:
        """Folder of the current capture."""
        return self._directory / rundir.capture_directory(self._number)

    def close(self) -> None:
        if self._control is not None:
            self._control.close()

    def round(self) -> None:
        """Look at the board; called again and again by the thread that keeps the pulse."""
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
        """Return whether the capture begins with this step, which begins now. The training thread calls this.

        On an accelerator, the device must have finished the step before.
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
            self.request = None  # last: until then, a round does not look for the next one
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
        """Note that this rank has captured its steps; its files are completed outside the training thread."""
        self._over = window  # first: a round that saw neither would find the same request again
        self.request = None

    def _handle(self, request: CaptureRequest) -> Iterator[CaptureAnswer]:
        """Answer a request, in the thread that listens."""
        board = self._board
        if board is None:
            yield CaptureAnswer(refused="the job has only begun. Ask again soon.")
            return
        try:
            if request.slower_than is not None and not self._is_busy:
                yield CaptureAnswer(armed=True, number=self._number)
                yield from self._await_slow_down(request.slower_than)
            if self._is_busy:
                yield CaptureAnswer(refused="a capture is under way.")
                return
            number = self._number
            board.post(f"request-{number}", msgspec.json.encode(request).decode())
            yield from self._follow(board, number)
        except _BOARD_FAILS as error:
            yield CaptureAnswer(refused=f"the job ends, or its ranks cannot reach each other: {error}.")

    @property
    def _is_busy(self) -> bool:
        return self.request is not None or self._over is not None

    def _await_slow_down(self, factor: float) -> Iterator[CaptureAnswer]:
        """Wait until steps take `factor` times as long as usual. Answers each second show whether the client left."""
        while not is_slower(read_head(self._directory, self._job.rank, _KEPT_STEPS).steps.length_ns, factor):
            time.sleep(1.0)
            yield CaptureAnswer(armed=True)

    def _follow(self, board: Board, number: int) -> Iterator[CaptureAnswer]:
        """Tell the client when the capture begins, and when all ranks have written it."""
        world_size = self._job.world_size
        deadline = time.monotonic() + 2 * _ANSWER_S
        while (posted := board.read(f"start-{number}")) is None and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        if posted is None or int(posted) == _CANCELLED:
            ready = board.num_signed(f"ready-{number}")
            yield CaptureAnswer(refused=f"{ready} of {world_size} ranks answered, so that none is profiled.")
            return
        yield CaptureAnswer(number=number, first_step=int(posted))
        deadline = time.monotonic() + _WRITE_S
        while (done := board.num_signed(f"done-{number}")) < world_size:
            if time.monotonic() > deadline:
                yield CaptureAnswer(refused=f"{done} of {world_size} ranks have written their steps in time.")
                return
            time.sleep(_LOOK_S)
        folder = self._directory / rundir.capture_directory(number)
        yield CaptureAnswer(number=number, first_step=int(posted), folder=str(folder))


def is_slower(length_ns: Int64Column, factor: float) -> bool:
    """Return whether the last 5 steps, or those of the last second, take `factor` times as long as those before them.

    These are 200 steps, or five times as many as the last ones if that is more; fewer if there are no more.
    """
    backward = length_ns[::-1]
    num_recent = max(_RECENT_STEPS, int(np.searchsorted(np.cumsum(backward), _RECENT_NS)))
    recent, before = backward[:num_recent], backward[num_recent:]
    usual = before[: max(_USUAL_STEPS, _USUAL_PER_RECENT * num_recent)]
    return len(usual) >= num_recent and bool(np.median(recent) > factor * np.median(usual))
