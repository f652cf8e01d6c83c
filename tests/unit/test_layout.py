"""Numbers as they are shown."""

from __future__ import annotations

import pytest

from ddpprof.layout import gigabytes_per_s, ms, percent


@pytest.mark.parametrize(
    ("ns", "shown"), [(None, "-"), (0, "0.00"), (-1e-9, "0.00"), (-5e6, "-5.00"), (1_234_567, "1.23")]
)
def test_milliseconds(ns: float | None, shown: str) -> None:
    assert ms(ns) == shown


@pytest.mark.parametrize(
    ("bytes_per_s", "shown"), [(None, "-"), (1.25e9, "1.25"), (450e9, "450"), (999.6e9, "1000"), (1.8e12, "1800")]
)
def test_rates_of_links_have_no_exponent(bytes_per_s: float | None, shown: str) -> None:
    assert gigabytes_per_s(bytes_per_s) == shown


@pytest.mark.parametrize(("fraction", "shown"), [(None, "-"), (-0.001, "0%"), (0.126, "13%"), (-0.5, "-50%")])
def test_percent(fraction: float | None, shown: str) -> None:
    assert percent(fraction) == shown
