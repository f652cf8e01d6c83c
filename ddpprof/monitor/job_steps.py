"""The steps that all ranks of a job have in common.

All-reduces keep the ranks in step, so that a step takes nearly as long on each. The job's step is the median of them. A
flag that a step has on one rank, it has on all: when one rank saves, the others wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np

from ddpprof.model.pulse import PulseSteps
from ddpprof.model.tables import Int64Column, rows_of
from ddpprof.monitor.step_noise import Flags


@dataclass(frozen=True, slots=True)
class JobSteps:
    """Steps that all ranks have finished; each rank's rows are those of the same steps."""

    number: Int64Column
    start_ns: Int64Column
    length_ns: Int64Column
    flags: Int64Column
    ranks: Mapping[int, PulseSteps]

    @property
    def is_usual(self) -> Flags:
        """Whether no known reason makes a step longer."""
        usual: Flags = self.flags == 0
        return usual

    def __len__(self) -> int:
        return len(self.number)


def common_steps(ranks: Mapping[int, PulseSteps]) -> JobSteps | None:
    """Return the steps that all ranks have; ``None`` if there are no ranks."""
    if not ranks:
        return None
    number: Int64Column = reduce(np.intersect1d, [steps.number for steps in ranks.values()])
    rows = {rank: rows_of(steps, np.searchsorted(steps.number, number)) for rank, steps in ranks.items()}
    return JobSteps(
        number=number,
        start_ns=np.median([steps.start_ns for steps in rows.values()], axis=0).astype(np.int64),
        length_ns=np.median([steps.length_ns for steps in rows.values()], axis=0).astype(np.int64),
        flags=np.bitwise_or.reduce([steps.flags for steps in rows.values()]),
        ranks=rows,
    )
