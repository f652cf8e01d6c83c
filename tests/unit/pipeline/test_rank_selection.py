"""Which ranks of many are read."""

from pathlib import Path

import pytest
from fleets import make_fleet, make_traces

from ddpprof.load.run import find_ranks
from ddpprof.pipeline.rank_selection import select_ranks


def chosen(path: Path, sample: int) -> tuple[list[int | None], tuple[str, ...]]:
    selection = select_ranks(find_ranks(path).ranks, None, sample)
    return [one.rank for one in selection.ranks], selection.notes


@pytest.mark.parametrize(
    ("sample", "ranks"), [(1, [0]), (2, [0, 8]), (3, [0, 4, 8]), (5, [0, 2, 4, 6, 8]), (9, [*range(9)])]
)
def test_ranks_are_chosen_evenly(tmp_path: Path, sample: int, ranks: list[int]) -> None:
    """Traces say nothing of who is late until they are read."""
    found, notes = chosen(make_traces(tmp_path, 9), sample)
    assert found == ranks
    were = "was" if sample == 1 else "were"
    assert notes == ((f"only {sample} of 9 ranks {were} read, as requested, evenly chosen",) if sample < 9 else ())


def test_a_rank_that_is_late_by_the_light_record_is_read(tmp_path: Path) -> None:
    found, notes = chosen(make_fleet(tmp_path / "fleet", 8, late=5), 3)
    assert found == [0, 5, 7]
    assert notes == ("only 3 of 8 ranks were read, as requested, of which rank 5 is late in the light record",)
