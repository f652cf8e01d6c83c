"""Boards on which the ranks of a job leave notes for each other, to agree on a capture.

If all ranks run on one machine, their board is a folder in the run directory; otherwise it is the job's own store,
which needs no shared disk. No note is ever changed, so that each rank reads the same.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Protocol

from torch.distributed import Store

from ddpprof import own_files
from ddpprof.monitor.pulse_files import machine_id
from ddpprof.rundir import BOARD_DIRECTORY

_PATIENCE_S = 10.0
"""seconds for all ranks to say on which machine they run"""


class Board(Protocol):
    def post(self, note: str, text: str) -> None:
        """Leave a note. Raises ``OSError`` or ``RuntimeError``."""

    def read(self, note: str) -> str | None:
        """Return the text of a note; ``None`` if it is not there. Raises as `post` does."""

    def sign(self, list_name: str) -> None:
        """Put this rank on a list, where it may be already. Raises as `post` does."""

    def num_signed(self, list_name: str) -> int:
        """Return how many ranks are on a list. Raises as `post` does."""


class FolderBoard:
    """A board for ranks on one machine."""

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
    """A board in the job's store, through a connection of its own where torch can make one.

    Training waits for the store's connection while another thread uses it, so the thread that looks at the board needs
    its own.
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
    """Do all ranks run on this machine and see this folder? Every rank says where it is, and asks a little later."""

    def __init__(self, directory: Path, store: Store, rank: int, world_size: int) -> None:
        """Say where this rank is. Every rank calls this at the same step. Raises ``OSError``."""
        self._directory, self._store, self._rank, self._world_size = directory, store, rank, world_size
        folder = directory.stat()  # containers of one machine may have folders of the same name
        self._key = f"on-{machine_id()}-{folder.st_dev}-{folder.st_ino}"
        self._deadline = time.monotonic() + _PATIENCE_S
        self._num_here = store.add(self._key, 1)

    def board(self) -> Board | None:
        """Return the board of the ranks; ``None`` while it is not known where they are. Raises as `Board.post` does."""
        if self._num_here < self._world_size:
            self._num_here = self._store.add(self._key, 0)
        if self._num_here >= self._world_size:
            return FolderBoard(self._directory, self._rank)
        if time.monotonic() > self._deadline:
            return StoreBoard(self._store, self._rank)
        return None
