"""Where a training thread stands, by its stack."""

from __future__ import annotations

from pathlib import Path

import pytest
from hung_ranks import ENGINE, USER, distributed

from ddpprof.model.overdue import Frame, collective_of, place_of_user, read_stack, stack_of_crash
from ddpprof.monitor.position import (
    is_at_a_lock,
    is_debugged,
    is_in_a_loop,
    is_in_engine,
    loop_left,
    place_at_exit,
    why_no_exit,
)

THREADING = Frame("/usr/lib/python3.11/threading.py", 300, "wait")


def test_a_stack_is_read_as_it_is_written() -> None:
    text = "/a b/train.py:12 in <module>\nnonsense\n/a b/c:d.py:3 in f"
    assert read_stack(text) == (Frame("/a b/train.py", 12, "<module>"), Frame("/a b/c:d.py", 3, "f"))
    assert read_stack(None) == ()


@pytest.mark.parametrize(
    ("file", "is_of_user"),
    [
        ("/home/me/train.py", True),
        ("/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", False),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False),
        ("/usr/lib/python3.12/threading.py", False),
        ("<frozen runpy>", False),
        ("<stdin>", True),
        ("<eval_with_key>.5", False),
        ("/tmp/torchinductor_me/ab/cabc.py", False),
    ],
)
def test_what_the_user_wrote(file: str, is_of_user: bool) -> None:
    assert Frame(file, 1, "f").is_of_user is is_of_user


def test_the_innermost_line_of_the_user() -> None:
    inner = Frame("/home/me/model.py", 7, "forward")
    assert place_of_user([USER, ENGINE, inner, THREADING]) == inner
    assert place_of_user([ENGINE]) is None


def test_the_outermost_collective_is_named() -> None:
    inside = [distributed(function) for function in ("wrapper", "all_gather_object", "all_gather")]
    assert collective_of([USER, *inside]) == "all_gather_object"
    wrapped = [Frame("/site-packages/torch/nn/parallel/distributed.py", 1064, "__init__")]
    verifies = Frame("/site-packages/torch/distributed/utils.py", 286, "_verify_param_shape_across_processes")
    assert collective_of([USER, *wrapped, verifies]) == "_verify_param_shape_across_processes"
    assert collective_of([USER, *wrapped]) is None
    assert collective_of([USER, Frame("/home/me/barrier.py", 1, "barrier")]) is None


def test_locks_debuggers_and_the_engine() -> None:
    assert is_at_a_lock([USER, THREADING])
    assert not is_at_a_lock([THREADING, USER])
    assert is_debugged([USER, Frame("/usr/lib/python3.11/pdb.py", 1, "interaction"), THREADING])
    assert not is_debugged([USER])
    assert is_in_engine([USER, ENGINE])
    assert not is_in_engine([ENGINE, USER])


def of_python(file: str, function: str) -> Frame:
    return Frame(f"/usr/lib/python3.11/{file}", 1, function)


@pytest.mark.parametrize(
    ("stack", "why"),
    [
        pytest.param(
            [of_python("multiprocessing/util.py", "_exit_function"), of_python("mp/queues.py", "_finalize_join")],
            "a multiprocessing.Queue still contains items that this process has put into the queue", id="queue",
        ),
        pytest.param(
            [of_python("concurrent/futures/thread.py", "_python_exit")],
            "a concurrent.futures executor still has work", id="executor",
        ),
        pytest.param([of_python("threading.py", "_shutdown")], "a non-daemon thread is still running", id="thread"),
        pytest.param([Frame("/home/me/train.py", 3, "_shutdown")], None, id="of-the-script"),
        pytest.param([], None, id="unknown"),
    ],
)  # fmt: skip
def test_why_a_process_does_not_exit(stack: list[Frame], why: str | None) -> None:
    assert why_no_exit(stack) == why


def test_where_a_process_stands_that_does_not_exit() -> None:
    queue, join = of_python("multiprocessing/queues.py", "_finalize_join"), of_python("threading.py", "join")
    assert place_at_exit([queue, join]) == queue
    assert place_at_exit([join]) is None


CRASH = """Fatal Python error: Aborted

Thread 0x00007f4a96d536c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 982 in run

Thread 0x00007f4a975546c0 (most recent call first):
  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 3000 in all_reduce
  File "/home/me/train.py", line 8 in metrics
  File "/home/me/train.py", line 12 in <module>
"""


CODE_IN_C = """
Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python3.14", at _Py_DumpStack+0x34 [0x55d0c1a2]
  Binary file "/lib/x86_64-linux-gnu/libc.so.6", at abort+0xd3 [0x7f4a9]
"""


def test_the_stack_that_python_leaves_when_a_signal_ends_it() -> None:
    stack = stack_of_crash(CRASH)
    assert [frame.function for frame in stack] == ["<module>", "metrics", "all_reduce"]
    assert (collective_of(stack), place_of_user(stack)) == ("all_reduce", Frame("/home/me/train.py", 8, "metrics"))
    assert stack_of_crash("") == ()
    current = CRASH.replace("Thread 0x00007f4a975546c0", "Current thread 0x00007f4a975546c0 [python]")
    assert stack_of_crash(current + CODE_IN_C) == stack, "of Python 3.14"
    assert stack_of_crash(CRASH.replace("metrics", "_worker_loop")) == (), "of a worker of a DataLoader"


LOOPS = """\
def train():
    for batch in range(9):
        step(batch)
    barrier()


while True:
    train()
"""


@pytest.mark.parametrize(
    ("lines", "in_a_loop"),
    [((3,), True), ((4,), False), ((8, 4), True), ((99,), False)],
)
def test_whether_a_line_is_part_of_a_loop(lines: tuple[int, ...], in_a_loop: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOPS)
    assert is_in_a_loop([Frame(str(tmp_path / "train.py"), line, "f") for line in lines]) is in_a_loop


def test_a_source_that_cannot_be_read_tells_of_no_loops(tmp_path: Path) -> None:
    assert is_in_a_loop([Frame(str(tmp_path / "gone.py"), 1, "f")]) is None
    (tmp_path / "odd.py").write_text("for\n")
    assert is_in_a_loop([Frame(str(tmp_path / "odd.py"), 1, "f")]) is None


EARLY_STOP = """\
def train():
    for epoch in range(9):
        for batch in range(9):
            if is_bad(batch):
                break
        if is_good_enough():
            break
    barrier()


train()
"""


@pytest.mark.parametrize(
    ("script", "lines", "left_at"),
    [
        pytest.param(EARLY_STOP, (11, 8), (7,), id="by-a-break"),
        pytest.param(EARLY_STOP, (11, 6), (5,), id="an-inner-loop"),
        pytest.param(EARLY_STOP.replace("break", "return"), (11, 8), (5, 7), id="by-a-return-in-an-inner-loop"),
        pytest.param(LOOPS, (8, 4), (), id="that-ends-only-with-its-data"),
        pytest.param(EARLY_STOP, (11,), (), id="in-another-function"),
    ],
)
def test_how_the_last_loop_can_be_left(
    script: str, lines: tuple[int, ...], left_at: tuple[int, ...], tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(script)
    said = loop_left([Frame(str(file), line, "f") for line in lines])
    assert said == (
        f"its loop can be exited early at {', '.join(f'{file}:{line}' for line in left_at)}" if left_at else None
    )
