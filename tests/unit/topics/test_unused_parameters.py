"""Parameters are unused only where no rank uses them; embeddings of which few rows are used."""

from typing import Any

import pytest
from msgspec import structs
from tables import ddp_module, record

from ddpprof.engine.finding import Predicted, sparse_embeddings_change
from ddpprof.engine.topic import View
from ddpprof.model import DdpModule, OptimizerFacts, Parameter
from ddpprof.topics.unused_parameters import as_all_ranks_use, dense_embedding_gradients

MS = 10**6
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


def with_embedding(used_rows: float | None, comm_hook: str | None = None) -> DdpModule:
    """Return a module with an embedding of 10,000 rows of 64 numbers, and a linear layer of a quarter of its size."""
    parameters = (
        Parameter("embedding.weight", 2_560_000, "float32", (10_000, 64), used_rows=used_rows),
        Parameter("linear.weight", 640_000, "float32", (400, 400)),
    )
    return structs.replace(ddp_module(), parameters=parameters, comm_hook=comm_hook)


def of_job(ranks: int = 2, optimizer: str = "SGD", takes_sparse: bool = True, **facts: Any) -> View:
    records = {0: record(optimizers=(OptimizerFacts(optimizer, 0, takes_sparse=takes_sparse),))}
    given = {"backend": "gloo", "device": "cpu", "exposed_ns": 80 * MS, "optimizer_ns": 20 * MS, **facts}
    return View(ranks, step_ns=200 * MS, group_size=ranks, records=records, **given)


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_sparse_gradients_would_save(ranks: int) -> None:
    (found,) = dense_embedding_gradients([with_embedding(0.04)], of_job(ranks))
    sent = ranks / 2 * 0.04 * 10_000 * (64 * 4 + 8)  # each used row with its index, from the other ranks
    sent_ms = (2_560_000 - sent) / 3_200_000 * 100
    memory_ms = 3 * (2_560_000 - sent) / 5e6
    expected = [sent_ms + memory_ms / 2 - 1.25, sent_ms - 5, sent_ms + memory_ms]
    assert found.predicted == Predicted(*(round(one * MS) for one in expected))
    assert found.gain_ns == found.predicted.high_ns
    assert found.change == sparse_embeddings_change()
    assert found.numbers == {"embedding_bytes": 2_560_000, "saved_bytes": round(2_560_000 - sent)}
    assert "4.0% of the rows" in found.evidence


def test_an_optimizer_that_refuses_sparse_gradients_leaves_the_change_to_the_author() -> None:
    (found,) = dense_embedding_gradients([with_embedding(0.04)], of_job(optimizer="Adam", takes_sparse=False))
    assert found.change is None
    assert "SparseAdam" in found.advice


@pytest.mark.parametrize(
    ("module", "view"),
    [
        pytest.param(with_embedding(0.5), of_job(), id="half-of-the-rows"),
        pytest.param(with_embedding(0.1), of_job(8), id="many-ranks-gather-more-than-a-ring-sends"),
        pytest.param(with_embedding(None), of_job(), id="not-recorded"),
        pytest.param(with_embedding(0.04, "fp16_compress_hook"), of_job(), id="a-hook-takes-no-sparse-gradients"),
        pytest.param(with_embedding(0.04), of_job(backend="nccl", device="cuda"), id="not-with-nccl"),
        pytest.param(with_embedding(0.04), of_job(exposed_ns=MS, optimizer_ns=0), id="costs-nothing"),
    ],
)
def test_where_sparse_gradients_are_not_advised(module: DdpModule, view: View) -> None:
    assert not list(dense_embedding_gradients([module], view))
