"""In which words a rank says how it ended."""

from __future__ import annotations

import pytest

from ddpprof.record.end_words import EndPlace, how_it_ends, where_it_ends


def exit_while_handling(error: BaseException) -> SystemExit:
    """`mp.spawn` ends a rank so: it catches the error, and calls ``sys.exit(1)``."""
    made = SystemExit(1)
    made.__context__ = error
    return made


KILLED = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (None, "finished"),
        (SystemExit(0), "finished"),
        (SystemExit(None), "finished"),
        (SystemExit(3), "failed: SystemExit: 3"),
        (KeyboardInterrupt(), "interrupted"),
        (ValueError("boom\nmore"), "failed: ValueError: boom"),
        (
            RuntimeError("NCCL error in: a.cpp:9\nncclInvalidUsage: bad\nLast error:\nTwo ranks on one GPU\nmore"),
            "failed: RuntimeError: Two ranks on one GPU (NCCL error in: a.cpp:9)",
        ),
        (
            RuntimeError("Caught OSError in DataLoader worker process 0.\nOriginal Traceback:\n  x\nOSError: no space"),
            "failed: RuntimeError: OSError: no space (Caught OSError in DataLoader worker process 0.)",
        ),
        (exit_while_handling(ValueError("boom")), "failed: ValueError: boom"),
        (exit_while_handling(KeyboardInterrupt()), "interrupted"),
        (
            caused(RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"), KILLED),
            f"failed: RuntimeError: {KILLED}",
        ),
        (caused(RuntimeError("no batch"), KILLED), "failed: RuntimeError: no batch"),
        (ValueError("x" * 300), "failed: ValueError: " + "x" * 199 + "…"),
    ],
)
def test_how_it_ends(error: BaseException | None, said: str) -> None:
    assert how_it_ends(error) == said


def raised(place: str) -> BaseException:
    """Return an error as raised by a script of that name, within a collective or not."""
    torch_file = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    names: dict[str, object] = {}
    exec(compile("def barrier():\n    raise RuntimeError('lost')\n", torch_file, "exec"), names)
    call = "barrier()" if place == "in-a-collective" else "raise ValueError('own')"
    exec(compile(f"def train():\n    {call}\n", "/home/me/train.py", "exec"), names)
    try:
        names["train"]()  # type: ignore[operator]
    except (RuntimeError, ValueError) as error:
        return error
    raise AssertionError("it must fail")


def test_where_it_ends() -> None:
    assert where_it_ends(raised("elsewhere")) == EndPlace("/home/me/train.py:2 in train", None)
    assert where_it_ends(raised("in-a-collective")) == EndPlace("/home/me/train.py:2 in train", "barrier")
    assert where_it_ends(None) == where_it_ends(SystemExit(3)) == EndPlace()
    caught = SystemExit(1)
    caught.__context__ = raised("elsewhere")
    assert where_it_ends(caught).line == "/home/me/train.py:2 in train"
