"""DDP's own work on the training thread, part by part; waiting for communication is not in it."""

import pytest
from tables import collective, forward, recorded, trace

from ddpprof.model import UNKNOWN, Mark, Phase, RecordedStep
from ddpprof.topics.steps.wrapper_cost import WrapperCost, measure_wrapper_cost

BACKWARD = (Mark.BACKWARD, 20, 60, 0)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        pytest.param([], WrapperCost(None, 0, 0, 0, 0, None), id="nothing"),
        pytest.param(
            [(Mark.UNUSED_SEARCH, 0, 5, 0), (Mark.BUCKET_COPY_IN, 20, 23, 0), (Mark.BUCKET_COPY_IN, 30, 34, 0)],
            WrapperCost(None, 5, 7, 0, 0, None),
            id="search-and-copies-in",
        ),
        pytest.param(
            [BACKWARD, (Mark.COLLECTIVE_CALL, 30, 34, 0), (Mark.COLLECTIVE_CALL, 70, 79, 0)],
            WrapperCost(None, 0, 0, 4, 0, None),
            id="only-collectives-called-in-backward-are-launches",
        ),
        pytest.param(
            [BACKWARD, (Mark.COLLECTIVE_CALL, 30, 34, 0), (Mark.BUCKET_COPY_IN, 33, 36, 0)],
            WrapperCost(None, 0, 3, 3, 0, None),
            id="nothing-counts-twice",
        ),
        pytest.param([(Mark.UNUSED_SEARCH, 0, 5, 1)], WrapperCost(None, 0, 0, 0, 0, None), id="another-step"),
    ],
)
def test_parts_by_mark(host: list[tuple[Mark, int, int, int]], expected: WrapperCost) -> None:
    measured = measure_wrapper_cost(trace(host=host), 0, None)
    assert measured == expected
    parts = (expected.unused_search_ns, expected.copy_in_ns, expected.launch_ns, expected.copy_out_ns)
    assert measured.total_ns == sum(parts)


@pytest.mark.parametrize(
    ("comm", "device", "finalise_ns"),
    [
        pytest.param([], "cpu", 27, id="all-but-the-copy-out"),
        pytest.param([(40, 75)], "cpu", 12, id="waiting-is-left-out"),
        pytest.param([(70, 75, 50)], "cpu", 12, id="waiting-for-what-is-queued-too"),
        pytest.param([(70, 75, UNKNOWN)], "cpu", 22, id="launch-not-known"),
        pytest.param([(40, 75)], "gpu", None, id="not-known-on-an-accelerator"),
    ],
)
def test_finalise_is_what_lies_between_backward_and_the_last_copy_out(
    comm: list[tuple[int, ...]], device: str, finalise_ns: int | None
) -> None:
    made = trace(
        compute=[(20, 60, Phase.BACKWARD, 0)],
        comm=[collective(*span[:2], launched=span[2] if len(span) > 2 else None) for span in comm],
        host=[(Mark.BUCKET_COPY_OUT, 80, 82, 0), (Mark.BUCKET_COPY_OUT, 89, 90, 0)],
        device=device,
    )
    assert measure_wrapper_cost(made, 0, None) == WrapperCost(None, 0, 0, 0, 3, finalise_ns)


def test_copies_out_within_backward_leave_nothing_to_finalise() -> None:
    made = trace(compute=[(20, 60, Phase.BACKWARD, 0)], host=[(Mark.BUCKET_COPY_OUT, 50, 55, 0)])
    assert measure_wrapper_cost(made, 0, None).finalise_ns == 0


@pytest.mark.parametrize(
    ("step", "epoch", "comm", "pre_forward_ns"),
    [
        pytest.param(recorded(forwards=()), 0, [], None, id="no-forward"),
        pytest.param(recorded(), None, [], None, id="no-common-clock"),
        pytest.param(recorded(forwards=(forward(0, 5, 30, 33),)), 0, [], 8, id="before-and-after-the-inner-forward"),
        pytest.param(
            recorded(forwards=(forward(1000, 1005, 1030, 1033),)), 1000, [], 8, id="by-the-trace's-clock"
        ),
        pytest.param(recorded(forwards=(forward(0, 5, 30, 33),)), 0, [(1, 4)], 5, id="less-the-buffers'-broadcast"),
        pytest.param(
            recorded(forwards=(forward(0, 5, 30, 33), forward(40, 41, 45, 46))), 0, [], 10, id="two-forwards"
        ),
    ],
)  # fmt: skip
def test_pre_forward(step: RecordedStep, epoch: int | None, comm: list[tuple[int, int]], pre_forward_ns: int) -> None:
    made = trace(comm=[collective(*span, Phase.FORWARD) for span in comm], epoch=epoch)
    assert measure_wrapper_cost(made, 0, step).pre_forward_ns == pre_forward_ns


def test_the_search_for_unused_parameters_counts_once() -> None:
    made = trace(host=[(Mark.UNUSED_SEARCH, 30, 32, 0)])
    cost = measure_wrapper_cost(made, 0, recorded(forwards=(forward(0, 5, 30, 33),)))
    assert (cost.pre_forward_ns, cost.unused_search_ns, cost.total_ns) == (6, 2, 8)
