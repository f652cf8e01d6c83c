"""Parameters are unused only where no rank uses them."""

import pytest
from msgspec import structs
from tables import ddp_module

from ddpprof.model import DdpModule
from ddpprof.topics.unused_parameters import as_all_ranks_use

MODULE = ddp_module((4, 4, 4), [[2, 1], [0]])


def seen(unused: tuple[str, ...] | None, is_static: bool | None, num_passes: int, num_lacking: int | None) -> DdpModule:
    """Return the module as one rank saw it."""
    return structs.replace(
        MODULE,
        unused=unused,
        graph_is_static=is_static,
        num_searched_passes=num_passes,
        num_lacking_passes=num_lacking,
    )


def merged(*ranks: DdpModule) -> DdpModule:
    (module,) = as_all_ranks_use([MODULE], [[one] for one in ranks])
    return module


@pytest.mark.parametrize(
    ("ranks", "unused"),
    [
        pytest.param([("a", "b"), ("a", "b")], ("a", "b"), id="alike"),
        pytest.param([("a",), ("b",)], (), id="each-rank-its-own-expert"),
        pytest.param([("a", "b", "c"), ("c", "b")], ("b", "c"), id="in-the-first-rank's-order"),
        pytest.param([("a",), None], ("a",), id="a-rank-did-not-look"),
        pytest.param([None, None], None, id="nobody-looked"),
    ],
)
def test_unused_is_what_no_rank_used(ranks: list[tuple[str, ...] | None], unused: tuple[str, ...] | None) -> None:
    assert merged(*(seen(one, True, 5, 5) for one in ranks)).unused == unused


def test_a_pass_that_lacked_a_gradient_on_any_rank_counts() -> None:
    module = merged(seen((), True, 5, 0), seen((), False, 4, 3))
    assert (module.num_searched_passes, module.num_lacking_passes, module.graph_is_static) == (4, 3, False)


def test_a_rank_that_does_not_say_how_many_passes_lacked_one() -> None:
    assert merged(seen((), True, 5, 0), seen((), None, 5, None)).num_lacking_passes is None


def test_one_rank_is_what_it_saw() -> None:
    assert as_all_ranks_use([MODULE], [[MODULE]]) == (MODULE,)


@pytest.mark.parametrize("ranks", [[], [[]]], ids=["none", "of-other-modules"])
def test_without_ranks_modules_are_as_recorded(ranks: list[list[DdpModule]]) -> None:
    assert as_all_ranks_use([MODULE], ranks) == (MODULE,)
