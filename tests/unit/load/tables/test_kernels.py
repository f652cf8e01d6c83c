"""Which kernels, and which ops of the CPU, are the same work."""

from typing import Any

from ddpprof.model import Kernel


def kernels(loaded: Any) -> list[Kernel]:
    return [loaded.kernels[index] for index in loaded.compute.kernel]


def test_a_kernel_is_known_by_its_name_and_launch_shape(trace: Any) -> None:
    trace.kernel("gemm", 0, 5, 1, grid=[2, 1, 1], block=[128, 1, 1])
    trace.kernel("gemm", 10, 15, 2, grid=[4, 1, 1], block=[128, 1, 1])
    found = kernels(trace.kernel("gemm", 20, 25, 3, grid=[2, 1, 1], block=[128, 1, 1]).load())
    assert found == [
        Kernel("gemm", "[2,1,1][128,1,1]"),
        Kernel("gemm", "[4,1,1][128,1,1]"),
        Kernel("gemm", "[2,1,1][128,1,1]"),
    ]


def test_a_kernel_has_the_input_shapes_of_the_op_that_launched_it(trace: Any) -> None:
    arguments = {"Input Dims": [[32, 64], [64, 8], []], "Input type": ["float", "float", ""]}
    trace.op("aten::mm", 0, 10, **{"External id": 5, **arguments}).op("aten::mm", 20, 30, **{"External id": 6})
    trace.kernel("gemm", 40, 50, 1, **{"External id": 5}).kernel("gemm", 60, 70, 2, **{"External id": 6})
    assert kernels(trace.load()) == [Kernel("gemm", None, "[[32,64],[64,8],[]]"), Kernel("gemm")]


def test_shapes_are_found_whether_the_op_stands_before_or_after_the_kernel_in_the_file(trace: Any) -> None:
    """Also by the argument's name in traces of 2021, and as text."""
    trace.kernel("gemm", 40, 50, 1, **{"external id": "5"})
    trace.op("aten::mm", 0, 10, **{"External id": 5, "Input Dims": [[7]]})
    assert kernels(trace.load()) == [Kernel("gemm", None, "[[7]]")]


def test_blanks_in_the_file_make_no_difference(trace: Any) -> None:
    trace.op("aten::mm", 0, 10, **{"External id": 5, "Input Dims": [[7, 8]]})
    trace.op("aten::mm", 10, 20, **{"External id": 6, "Input Dims": [[7, 8]]})
    trace.kernel("gemm", 40, 50, 1, **{"External id": 5}).kernel("gemm", 60, 70, 2, **{"External id": 6})
    trace.path.write_text(trace.text().replace("[[7, 8]]", "[[7,8 ]\n]", 1))
    from ddpprof.load.rank import load_trace

    assert len(set(kernels(load_trace(trace.path)))) == 1


def test_an_op_of_the_cpu_is_known_by_its_place_in_the_step(trace: Any) -> None:
    for number, start in ((3, 0), (4, 1000)):
        trace.step(number, start, start + 1000)
        trace.op("aten::mm", start + 10, start + 20).op("aten::add", start + 30, start + 40)
        trace.op("aten::mm", start + 50, start + 60)
    one_step = [Kernel("aten::mm", position=0), Kernel("aten::add", position=0), Kernel("aten::mm", position=1)]
    assert kernels(trace.load()) == one_step * 2


def test_the_pieces_of_one_op_are_one_op(trace: Any) -> None:
    trace.step(3, 0, 1000).op("autograd::engine::evaluate_function: Add", 10, 100).op("c10d::allreduce_", 40, 50)
    found = kernels(trace.op("autograd::engine::evaluate_function: Add", 200, 300).load())
    assert [kernel.position for kernel in found] == [0, 0, 1]
