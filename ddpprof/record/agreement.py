"""All ranks record into one run directory, or none does.

One rank leads: it opens the run directory and announces it in the job's own store. Every rank counts itself in before
its first synchronising backward pass. Once the all-reduces of that pass are over on the device, all ranks of its
process group have counted themselves in; with a comm hook that does not wait, they get a moment to appear. The first of
the group to look writes the verdict, and the others read it.

A job may have ranks that never train with DDP, and only generate. If rank 0 is one of them, the lowest rank of a
process group leads.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from zlib import crc32

from torch.distributed import PrefixStore, Store

_PATIENCE_S = 2.0
"""seconds that a rank may be behind if nothing synchronised it"""
_OFFER_S = 30.0
"""seconds that the rank that leads may take to open the run directory"""


@dataclass(frozen=True)
class AgreedRecording:
    out: str | None
    """run directory; ``None`` if nothing can be recorded"""
    run_id: str
    everyone: bool
    """True if every rank of the process group records"""
    problem: str | None
    leader: int
    """the rank that leads"""


class Agreement:
    def __init__(self, store: Store, world_size: int, group: Sequence[int]) -> None:
        """Create this rank's part.

        `store`: the part of the job's own store that belongs to this agreement. `group`: the ranks that average
        gradients together, including this one.
        """
        self.store = store
        self._world_size, self.group = world_size, group
        self._verdict = f"verdict/{crc32(repr(tuple(group)).encode()):x}"

    def renewed(self, purpose: str) -> Agreement:
        """Return an agreement of the same ranks about something else."""
        return Agreement(PrefixStore(purpose, self.store), self._world_size, self.group)

    def is_possible(self) -> bool:
        """Return whether the store keeps anything; that of the MPI backend does not."""
        try:
            self.store.add("possible", 0)
        except (RuntimeError, NotImplementedError) as error:
            if isinstance(error, NotImplementedError) or "virtual" in str(error):
                return False
            raise
        return True

    def lead(self, rank: int) -> bool:
        """Try to lead. Return False if another rank does."""
        return bool(self.store.compare_set("leader", "", str(rank)).decode() == str(rank))

    def offer(self, out: str | None, run_id: str, problem: str | None) -> None:
        """Announce where the run goes, or why it cannot. The rank that leads calls this."""
        self.store.set("offer", json.dumps([out, run_id, problem]))

    def join(self, rank: int) -> None:
        """Say that this rank records. Every rank calls this before its first synchronising backward pass."""
        self.store.set(f"joined/{rank}", "1")

    def is_led(self) -> bool:
        return bool(self.store.check(["leader"]))

    def verdict(self, patience_s: float = _PATIENCE_S, offer_s: float = _OFFER_S) -> AgreedRecording | None:
        """Return the verdict; ``None`` if no rank has led so far.

        Every rank calls this after its first synchronising backward pass.

        `patience_s`: time for other ranks to appear. `offer_s`: time for the rank that leads to open the run directory.
        """
        deadline = time.monotonic() + patience_s
        all_joined = self._by(deadline, lambda: bool(self.store.check([f"joined/{rank}" for rank in self.group])))
        if not self._by(deadline, self.is_led):
            return None
        if not self._by(time.monotonic() + offer_s, lambda: bool(self.store.check(["offer"]))):
            return None
        said = self.store.compare_set(self._verdict, "", "all" if all_joined else "some").decode()
        out, run_id, problem = json.loads(self.store.get("offer"))
        return AgreedRecording(out, run_id, said == "all", problem, int(self.store.get("leader")))

    def _by(self, deadline: float, is_so: Callable[[], bool]) -> bool:
        """Return whether something becomes so in time, or until another rank of the group has decided."""
        while not is_so():
            if self.store.check([self._verdict]) or time.monotonic() > deadline:
                return is_so()  # it may have become so just before
            time.sleep(0.02)
        return True

    def come_to_the_end(self) -> None:
        """Note that this rank still records. Call this before an all-reduce of the last step that ranks share."""
        self.store.add("at-end", 1)

    def all_came_to_the_end(self) -> bool:
        """Return whether all ranks still recorded: the same answer on all. Call this after that step's all-reduces."""
        return self.store.add("at-end", 0) >= self._world_size

    def veto(self) -> None:
        """Keep all ranks from profiling, since this one cannot."""
        self.store.set("veto", "1")

    def vetoed(self) -> bool:
        """Return whether any rank vetoed before the all-reduces whose end this rank has seen."""
        return bool(self.store.check(["veto"]))
