"""Numbers as they are shown."""

from __future__ import annotations

import pytest

from ddpprof.layout import ms


@pytest.mark.parametrize(
    ("ns", "shown"), [(None, "-"), (0, "0.00"), (-1e-9, "0.00"), (-5e6, "-5.00"), (1_234_567, "1.23")]
)
def test_milliseconds(ns: float | None, shown: str) -> None:
    assert ms(ns) == shown
