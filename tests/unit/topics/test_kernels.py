"""Time per kernel identity: how often, how long, how much it varies."""

from dataclasses import fields, replace

import pytest
from tables import trace

from ddpprof.model import UNKNOWN, Kernel, Phase, Trace, Work
from ddpprof.topics.kernels import KernelSummary, runs_of_kernels, summarize_kernels

F, B, X = Phase.FORWARD, Phase.BACKWARD, Phase.OTHER
GEMM, ADD = Kernel("gemm", "[8,1,1] [128,1,1]"), Kernel("add", None, "[[4]]")
TWO = {"kernels": (GEMM, ADD), "steps": [(0, 100), (100, 200)], "device": "gpu"}


def durations(made: Trace, steps: list[int]) -> list[int]:
    """Return how long each run of any kernel takes in these steps."""
    found: list[int] = runs_of_kernels(made, steps, range(len(made.kernels))).duration_ns.tolist()
    return found


def test_kernels_come_by_their_time() -> None:
    made = trace(compute=[(0, 10, F, 0, 0), (20, 50, B, 0, 1), (110, 120, F, 1, 0), (130, 145, F, 1, 0)], **TWO)
    assert summarize_kernels(made, [0, 1]) == (
        KernelSummary(GEMM, "forward", num_steps=2, num_runs=3, total_ns=35, median_ns=10, spread=0.25),
        KernelSummary(ADD, "backward", num_steps=2, num_runs=1, total_ns=30, median_ns=30, spread=None),
    )


def test_rates_are_per_step_that_was_looked_at() -> None:
    (summary,) = summarize_kernels(trace(compute=[(0, 10, F, 0), (10, 15, F, 0)], **TWO), [0, 1])
    assert (summary.runs_per_step, summary.total_ns_per_step) == (1, 8)


def test_only_the_given_steps_count() -> None:
    made = trace(compute=[(0, 10, F, 0, 0), (110, 130, F, 1, 0), (90, 95, X, -1, 0)], **TWO)
    assert [(s.num_runs, s.total_ns) for s in summarize_kernels(made, [1])] == [(1, 20)]
    assert summarize_kernels(made, []) == ()


def test_the_phase_is_the_one_of_most_of_its_time() -> None:
    made = trace(compute=[(0, 10, F, 0), (10, 20, F, 0), (20, 50, B, 0)], **TWO)
    assert [summary.phase for summary in summarize_kernels(made, [0])] == [B.name.lower()]


def test_the_same_name_with_another_shape_is_another_kernel() -> None:
    other = Kernel("gemm", "[16,1,1] [128,1,1]")
    made = trace(compute=[(0, 10, F, 0, 0), (10, 40, F, 0, 1)], kernels=(GEMM, other), device="gpu")
    assert [summary.kernel for summary in summarize_kernels(made, [0])] == [other, GEMM]


def test_long_names_are_kept_whole() -> None:
    kernel = Kernel("void at::native::" + "elementwise<" * 400)
    (summary,) = summarize_kernels(trace(compute=[(0, 1, F, 0)], kernels=(kernel,), device="gpu"), [0])
    assert summary.kernel == kernel


def test_an_op_of_the_cpu_is_as_long_as_its_pieces() -> None:
    """A call to the backend cuts the op in two; on an accelerator two kernels of one name are two runs."""
    pieces = [(0, 10, B, 0, 0), (15, 40, B, 0, 0), (100, 130, B, 1, 0)]
    on_cpu = trace(compute=pieces, kernels=(Kernel("op", position=0),), steps=TWO["steps"])
    assert durations(on_cpu, [0, 1]) == [35, 30]
    assert durations(trace(compute=pieces, **TWO), [0, 1]) == [10, 25, 30]


def test_runs_come_in_order_of_launch() -> None:
    made = trace(compute=[(10, 30, F, 0, 0, 5), (20, 21, F, 0, 0, 2), (40, 43, F, 0, 0, 5)], **TWO)
    assert durations(made, [0]) == [1, 20, 3]


def test_work_without_identity_is_left_out() -> None:
    assert summarize_kernels(trace(compute=[(0, 10, F, 0, UNKNOWN)], **TWO), [0]) == ()


@pytest.mark.parametrize(
    ("lengths", "spread"),
    [
        pytest.param([10], None, id="one-run"),
        pytest.param([10, 10, 10], 0, id="all-alike"),
        pytest.param([10, 20, 30, 40, 50], 20 / 30, id="quartiles"),
        pytest.param([0, 0, 8], None, id="median-of-zero"),
    ],
)
def test_spread(lengths: list[int], spread: float | None) -> None:
    runs = [(100 * index, 100 * index + length, F, 0) for index, length in enumerate(lengths)]
    (summary,) = summarize_kernels(trace(compute=runs, **TWO), [0])
    assert summary.spread == spread


def test_what_starts_at_once_comes_in_the_same_order_however_the_file_has_it() -> None:
    made = trace(compute=[(0, 5, F, 0, 0, 0), (0, 9, F, 0, 0, 0), (3, 4, F, 0, 1, 0)], **TWO)
    rows = [1, 0, 2]
    turned = replace(made, compute=Work(*(getattr(made.compute, column.name)[rows] for column in fields(Work))))
    assert [durations(one, [0]) for one in (made, turned)] == [[5, 9, 1]] * 2
