"""All ranks record into one run directory, or none does.

Rank 0 opens the run directory and says so in the job's own store; every rank counts itself in before its first
synchronising backward. Once the all-reduces of that backward are over on the device, all ranks of its process group
have counted themselves in. Ranks of other groups, or under a comm hook that does not wait, get a moment to appear.
Whoever looks first writes the verdict, and the others read it.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import Store

_PATIENCE_S = 2.0
"""How long a rank may be behind where nothing made it keep up."""


@dataclass(frozen=True)
class Verdict:
    out: str | None
    """the run directory; ``None`` if nothing can be recorded"""
    run_id: str
    everyone: bool
    """every rank records"""
    problem: str | None


class Agreement:
    def __init__(self, store: Store, world_size: int, session: int) -> None:
        self._store = store
        self._world_size = world_size
        self._prefix = f"ddpprof/{session}"

    def is_possible(self) -> bool:
        """Whether the store keeps anything: that of the MPI backend does not."""
        try:
            self._store.add(f"{self._prefix}/joined", 0)
        except (RuntimeError, NotImplementedError) as error:
            if isinstance(error, NotImplementedError) or "virtual" in str(error):
                return False
            raise
        return True

    def offer(self, out: str | None, run_id: str, problem: str | None) -> None:
        """Rank 0, before `join`: where the run goes, or why it cannot."""
        self._store.set(f"{self._prefix}/offer", json.dumps([out, run_id, problem]))

    def join(self) -> None:
        """Every rank, before its first synchronising backward."""
        self._store.add(f"{self._prefix}/joined", 1)

    def verdict(self) -> Verdict:
        """Every rank, after its first synchronising backward."""
        ready = self._all_joined() and self._store.check([f"{self._prefix}/offer"])
        said = self._store.compare_set(f"{self._prefix}/verdict", "", "all" if ready else "some").decode()
        if not self._store.check([f"{self._prefix}/offer"]):
            return Verdict(None, "", False, None)
        out, run_id, problem = json.loads(self._store.get(f"{self._prefix}/offer"))
        return Verdict(out, run_id, said == "all", problem)

    def _all_joined(self) -> bool:
        deadline = time.monotonic() + _PATIENCE_S
        while self._store.add(f"{self._prefix}/joined", 0) < self._world_size:
            if self._store.check([f"{self._prefix}/verdict"]) or time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def come_to_the_end(self) -> None:
        """A rank that still records, before an all-reduce of the last step that all ranks train alike."""
        self._store.add(f"{self._prefix}/at-end", 1)

    def all_came_to_the_end(self) -> bool:
        """Every rank, after the all-reduces of that step: the answer is the same on all."""
        return self._store.add(f"{self._prefix}/at-end", 0) >= self._world_size

    def veto(self) -> None:
        """A rank that cannot profile keeps the others from it."""
        self._store.set(f"{self._prefix}/veto", "1")

    def vetoed(self) -> bool:
        """Whether any rank vetoed before the all-reduces that this rank has seen the end of."""
        return bool(self._store.check([f"{self._prefix}/veto"]))
