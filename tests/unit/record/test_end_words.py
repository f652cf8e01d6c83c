"""In which words a rank says how it ended."""

from __future__ import annotations

import pytest

from ddpprof.record.end_words import how_it_ends


def exit_while_handling(error: BaseException) -> SystemExit:
    """`mp.spawn` ends a rank so: it catches the error, and calls ``sys.exit(1)``."""
    made = SystemExit(1)
    made.__context__ = error
    return made


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (None, "finished"),
        (SystemExit(0), "finished"),
        (SystemExit(None), "finished"),
        (SystemExit(3), "failed: SystemExit: 3"),
        (KeyboardInterrupt(), "interrupted"),
        (ValueError("boom\nmore"), "failed: ValueError: boom"),
        (exit_while_handling(ValueError("boom")), "failed: ValueError: boom"),
        (exit_while_handling(KeyboardInterrupt()), "interrupted"),
        (ValueError("x" * 300), "failed: ValueError: " + "x" * 199 + "…"),
    ],
)
def test_how_it_ends(error: BaseException | None, said: str) -> None:
    assert how_it_ends(error) == said
