"""Real traces of training without torch's DDP: gradients reduced by hooks are recognised, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import Run, script

LAYER_BYTES = 4 * (256 * 256 + 256)


@pytest.fixture
def traced(tmp_path: Path, two_ranks: Run, report: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
    """The report of the traces that the script leaves."""

    def run(how: str) -> dict[str, Any]:
        (tmp_path / "traces").mkdir()
        done = two_ranks(*script("own_reduction.py", "traces", how))
        assert done.returncode == 0, done.stderr
        return report("traces")

    return run


def test_hooks_as_apex_has_them(traced: Callable[[str], dict[str, Any]]) -> None:
    made = traced("hooks")
    own = made["own_reduction"]
    assert (own["num_all_reduces"], own["num_bytes"]) == (3, 6 * LAYER_BYTES)
    assert 0 <= own["exposed_ns"] <= own["comm_ns"]
    assert own["flatten_ns"] > 0
    assert [bucket["num_bytes"] for bucket in made["buckets"]] == [2 * LAYER_BYTES] * 3
    launched = [bucket["launched_ns"] for bucket in made["buckets"]]
    assert launched == sorted(launched)
    assert launched[0] > 0
    measured = "overlap-slowdown"  # on a busy machine, computation may well be slower beside communication
    assert {finding["rule"] for finding in made["findings"]} - {measured} == {"own-reduction"}
    assert all(step["trailing_ns"] is not None for rank in made["ranks"] for step in rank["steps"])


@pytest.mark.long
@pytest.mark.parametrize("how", ["after", "fsdp", "metrics", "fsdp-whole"])
def test_what_is_not_taken_for_it(how: str, traced: Callable[[str], dict[str, Any]]) -> None:
    made = traced(how)
    assert sum(row["num_calls"] for row in made["across"]["collectives"]) >= 3
    assert (made["own_reduction"], made["buckets"]) == (None, [])
    assert {finding["rule"] for finding in made["findings"]} <= {"overlap-slowdown"}
