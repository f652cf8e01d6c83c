"""What the arguments of events say, odd ones too."""

import json
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("batch_bytes")

OPS: list[dict[str, Any]] = [
    {"ph": "X", "cat": "cpu_op", "name": f"aten::op{i % 3}", "pid": 1, "tid": 1, "ts": 10 * i + 0.125, "dur": 5.001,
     "args": {"External id": i, "Input Dims": [[i], []]}}
    for i in range(40)
]  # fmt: skip


def one_with(**changes: Any) -> str:
    return json.dumps({"traceEvents": [{"ph": "X", "cat": "kernel", "name": "a", "ts": 5, "dur": 3, **changes}]})


@pytest.mark.parametrize(
    "arguments", [5, "x", [{}], {"correlation": [1], "stream": {}}, {"correlation": 2**70, "stream": "x"}, None]
)
def test_odd_arguments_are_unknown_and_no_error(read: Any, arguments: object) -> None:
    _, columns = read(one_with(args=arguments))
    assert columns.correlation.tolist() == [0]


@pytest.mark.parametrize("arguments", [5, "x", [{}], {"correlation": [1], "stream": {}}, None])
def test_odd_arguments_are_unknown_also_where_shapes_are_recorded(read: Any, arguments: object) -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 500, "dur": 1, "args": arguments}
    _, columns = read(json.dumps({"traceEvents": [*OPS, kernel]}))
    assert (columns.correlation.tolist()[-1], columns.input_shape.tolist()[-1]) == (0, -1)


@pytest.mark.parametrize("offset_us", [0, 1_700_000_000_000_000], ids=["float", "exact"])
def test_a_kernel_has_the_shapes_of_the_op_that_launched_it(read: Any, offset_us: int) -> None:
    arguments = {"External id": 38, "correlation": 1, "stream": 7, "device": 0}
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 500, "dur": 1, "args": arguments}
    events = [{**event, "ts": event.get("ts", 0) + offset_us} for event in [*OPS, kernel]]
    _, columns = read(json.dumps({"traceEvents": events}))
    assert [columns.shapes[index] for index in columns.input_shape.tolist() if index != -1] == ["[[38],[]]"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"In msg nelems": 2**63 - 1, "dtype": "Float"},
        {"In msg nelems": 2**62, "Out msg nelems": 1, "dtype": "Byte"},
        {"Input Dims": [[10**9, 10**9]], "Input type": ["double"]},
    ],
    ids=["nelems", "few-bytes-each", "dims"],
)
def test_a_message_larger_than_any_memory_has_no_known_size(read: Any, arguments: dict[str, Any]) -> None:
    _, columns = read(one_with(name="ncclKernel_AllReduce", args={"Collective name": "allreduce", **arguments}))
    assert [details.num_bytes for details in columns.details] == [-1]
