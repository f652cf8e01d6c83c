"""Which collectives of which ranks the profiler plugin is to count, in which order."""

from typing import Any

import pytest
from analysed import as_analysed
from tables import collective, trace

from ddpprof.model import CollectiveKind, Rank
from ddpprof.model.tables import PluginCollective
from ddpprof.render.tensorboard_plugin import PluginViews, plugin_views

BROADCAST = CollectiveKind.BROADCAST
GLOO = ("gloo:all_reduce",)


def views(*ranks: list[dict[str, int]], **changes: Any) -> PluginViews:
    """Of ranks with these collectives, in a step of 1000 ns."""
    given = {"names": GLOO, "steps": ((0, 1000),), **changes}
    return plugin_views(as_analysed(Rank(number, trace(comm=rows, **given), None)) for number, rows in enumerate(ranks))


def shown(made: PluginViews, rank: int = 0) -> list[tuple[str, int, int]]:
    return [(one.name, one.start_ns, one.end_ns) for one in made.of_rank[rank].collectives.values()]


def test_what_every_rank_has_counts() -> None:
    made = views(
        [collective(100, 300, num_bytes=8), collective(400, 500, kind=BROADCAST)],
        [collective(200, 300, num_bytes=8), collective(450, 500, kind=BROADCAST)],
    )
    assert made.missing == ()
    assert made.of_rank[0].collectives == {
        (100, 0): PluginCollective("gloo:all_reduce", 100, 300, 8),
        (400, 0): PluginCollective("gloo:broadcast", 400, 500, None),
    }
    assert shown(made, 1) == [("gloo:all_reduce", 200, 300), ("gloo:broadcast", 450, 500)]


def test_a_step_with_other_collectives_on_one_rank_counts_nowhere() -> None:
    steps = ((0, 1000), (1000, 2000))
    made = views([collective(100, 300), collective(1100, 1300, step=1)], [collective(100, 300)], steps=steps)
    assert shown(made) == [("gloo:all_reduce", 100, 300)]
    assert made.missing == (
        (
            "up to 1 collectives per rank are not counted: the Distributed view shows only collectives that "
            "all loaded ranks called"
        ),
    )


def test_where_ranks_begin_in_different_order_the_lowest_one_rules() -> None:
    """The plugin pairs by the order of starts."""
    made = views(
        [collective(100, 300, launched=10), collective(110, 400, kind=BROADCAST, launched=20)],
        [collective(5_100, 5_300, launched=10), collective(110, 400, kind=BROADCAST, launched=20)],
        steps=((0, 6000),),
    )
    starts = {row: one.start_ns for row, one in made.of_rank[1].collectives.items()}
    names = [one.name for _, one in sorted(made.of_rank[1].collectives.items(), key=lambda item: starts[item[0]])]
    assert names == ["gloo:all_reduce", "gloo:broadcast"]
    assert sorted(starts.values()) == [109, 110]
    assert made.missing == ("collectives that ranks start in different orders are shown up to 5 µs early",)


def test_a_kernel_that_is_moved_counts_as_long_as_it_runs() -> None:
    rows = [collective(100, 300, launched=10), collective(110, 400, kind=BROADCAST, launched=20)]
    late = [collective(120, 300, launched=10), collective(110, 400, kind=BROADCAST, launched=20)]
    made = views(rows, late, names=("ncclDevKernel_AllReduce",), device="gpu")
    assert sorted(shown(made, 1)) == [("nccl:all_reduce", 109, 109), ("nccl:broadcast", 110, 400)]


def test_a_collective_of_the_host_is_cut_where_its_step_ends() -> None:
    assert shown(views([collective(900, 1200)])) == [("gloo:all_reduce", 900, 1000)]
    assert shown(views([collective(900, 1200)], names=("ncclKernel",), device="gpu")) == [
        ("nccl:all_reduce", 900, 1200)
    ]


@pytest.mark.parametrize(
    ("rows", "missing"),
    [
        pytest.param([], "no Distributed view: no step has a collective", id="no-collective"),
        pytest.param([collective(100, 200, step=-1)], "no Distributed view: no step has a collective", id="in-no-step"),
        pytest.param([collective(100, 200)], "only one rank was read", id="one-rank"),
        pytest.param(
            [collective(100, 200, kind=CollectiveKind.ALL_TO_ALL)],
            "all-to-all are shown as all_reduce, because the plugin supports only five kinds of collectives",
            id="unknown-to-the-plugin",
        ),
    ],
)
def test_what_the_plugin_cannot_show_is_said(rows: list[dict[str, int]], missing: str) -> None:
    assert any(text.startswith(missing) for text in views(rows).missing)


def test_without_steps_there_is_no_view() -> None:
    assert views([collective(100, 200, step=-1)], steps=()).missing == ("no Distributed view: there are no steps",)
