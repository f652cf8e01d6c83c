"""The live view as text: what stands in it, in which order, and that it fits."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from pulse_files import BEGIN_NS, SECOND, MadeStep, write_pulse
from reports import HOSTILE
from rich.console import Console

from ddpprof.model.pulse import Ended
from ddpprof.model.whole_run import NonfiniteSteps
from ddpprof.monitor.overview import Overview, Standing, look_at
from ddpprof.render.top import ORDERS, Shown, in_order, one_line, rows_that_fit, top_view


@pytest.fixture
def four(tmp_path: Path) -> Overview:
    """Four ranks, of which the last has failed."""
    folder = tmp_path / "a-run"
    steps = [(30, 5), (90, 1), (40, 30), (20, 20)]
    for rank, (wait_ms, data_ms) in enumerate(steps):
        ended = Ended.FAILED if rank == 3 else Ended.NOT_YET
        write_pulse(folder, rank, [MadeStep(wait_ms=wait_ms, data_ms=data_ms)] * 10, world_size=4, ended=ended)
    return look_at(folder, BEGIN_NS + SECOND)


USUAL = Shown()


def shown(overview: Overview, how: Shown = USUAL, width: int = 100, height: int = 24) -> str:
    console = Console(file=StringIO(), width=width, height=height, color_system=None)
    with console.capture() as captured:
        console.print(top_view(overview, how, console))
    return captured.get()


@pytest.mark.parametrize(
    ("key", "ranks"), [("o", [3, 0, 2, 1]), ("r", [0, 1, 2, 3]), ("w", [3, 1, 2, 0]), ("d", [3, 2, 0, 1])]
)
def test_orders(four: Overview, key: str, ranks: list[int]) -> None:
    """The one in trouble comes first, except by rank."""
    assert [one.rank for one in in_order(four.ranks, ORDERS[key])] == ranks


def test_one_line_with_several_ranks_that_failed_before_their_first_step(four: Overview) -> None:
    *others, last = four.ranks
    gone = [replace(one, standing=Standing.FAILED, own_ns=None) for one in (others[0], last)]
    line = one_line(replace(four, ranks=(gone[0], *others[1:], gone[1])))
    assert "largest own time 60.0 ms" in line
    assert "failed: ranks 0, 3" in line


def test_many_steps_per_second_are_shown_without_an_exponent(four: Overview) -> None:
    assert "2346 steps/s" in one_line(replace(four, steps_per_s=2345.6))


def test_a_view(four: Overview) -> None:
    lines = [line.rstrip() for line in shown(four).splitlines()]
    assert lines[:2] == [
        "a-run · 4 ranks on node-a · step 13 · 10 steps/s · running 1.0 s",
        "step 100.0 ms (p90 100.0, p99 100.0), last 10 steps of rank 0",
    ]
    assert lines[2].endswith("1.0 s, up to 100.0 ms")
    assert " ".join(lines[4].split()) == "rank step activity step ms own ms data ms wait ms MB state"
    assert lines[5].split() == ["3", "13", "other", "0.0", "s", "100.0", "80.0", "20.0", "20.0", "400", "failed"]
    assert [line.split()[0] for line in lines[5:9]] == ["3", "0", "2", "1"]


def test_hosts_are_a_column_if_there_are_several(four: Overview) -> None:
    several = replace(four, ranks=(*four.ranks[:3], replace(four.ranks[3], host="node-b")))
    text = shown(several)
    assert "4 ranks on 2 hosts" in text
    assert "node-b" in text


def many(four: Overview, num_ranks: int) -> Overview:
    ranks = [replace(four.ranks[0], rank=rank, own_ns=60_000_000 + rank * 1000) for rank in range(num_ranks)]
    return replace(four, ranks=tuple(ranks), world_size=num_ranks)


@pytest.mark.parametrize("height", [24, 50])
@pytest.mark.parametrize("lines", [(), ("a slowdown",) * 9])
def test_a_thousand_ranks_fit_the_terminal(four: Overview, height: int, lines: tuple[str, ...]) -> None:
    console = Console(file=StringIO(), width=100, height=height, color_system=None)
    overview, how = many(four, 1000), Shown(slowdowns=lines, keys="keys")
    how = replace(how, most_rows=rows_that_fit(overview, how, console))
    text = shown(overview, how, height=height)
    assert height - 2 <= len(text.splitlines()) <= height
    assert f"… and {1000 - how.most_rows} more ranks: own 60.0 - 61.0 ms" in text
    assert text.splitlines()[-1].strip() == "keys"


def test_unknown_times_are_dashes(four: Overview) -> None:
    absent = replace(four.ranks[0], step_ns=None, own_ns=None, data_ns=None, wait_ns=None, memory_bytes=None)
    text = shown(replace(four, ranks=(absent,), times=None, steps_per_s=None))
    assert "no step has ended yet" in text
    assert text.splitlines()[4].split()[5:] == ["-", "-", "-", "-", "-", "training"]


@pytest.mark.parametrize("name", [pytest.param(name, id=kind) for kind, name in HOSTILE.items()])
def test_names_are_only_names(four: Overview, name: str) -> None:
    ranks = (replace(four.ranks[0], host=name), four.ranks[1])
    overview = replace(four, run=name, ranks=ranks, waiting=(), missing=(name,))
    text = shown(overview, Shown(slowdowns=(name,)), width=400) + one_line(overview)
    assert all(char.isprintable() or char == "\n" for char in text)
    assert max(map(len, text.splitlines())) <= 500


def test_one_line_for_a_log(four: Overview) -> None:
    assert one_line(replace(four, waiting=("rank 1 is late",))) == (
        "step 13 · 10 steps/s · step median 100.0, p99 100.0 ms · largest own time 80.0 ms · failed: rank 3 · "
        "rank 1 is late"
    )


def test_a_loss_that_is_nan_is_told(four: Overview) -> None:
    bad = replace(four.ranks[1], nonfinite=NonfiniteSteps(first_step=12, num_steps=1, follows_finite=True))
    overview = replace(four, ranks=(four.ranks[0], bad, *four.ranks[2:]))
    for text in (shown(overview), one_line(overview)):
        assert "The loss has been NaN or infinite, first in step 12 on rank 1" in text
    assert "NaN" not in shown(four) + one_line(four)


def test_no_sign_says_for_how_long(four: Overview) -> None:
    silent = replace(four.ranks[0], standing=Standing.NO_SIGN, sign_age_ns=12 * SECOND)
    assert "no update for 12 s" in shown(replace(four, ranks=(silent,)))
