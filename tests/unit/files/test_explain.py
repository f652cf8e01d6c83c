"""Where web servers may send us on to: nowhere further in than they are themselves."""

from __future__ import annotations

import pytest

from ddpprof.files import explain


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("8.8.8.8", 2), ("2001:4860:4860::8888", 2), ("10.1.2.3", 1), ("192.168.0.1", 1), ("fd00::1", 1),
        ("127.0.0.1", 0), ("127.9.9.9", 0), ("::1", 0), ("169.254.169.254", 0), ("fe80::1%eth0", 0), ("0.0.0.0", 0),
        ("::ffff:127.0.0.1", 0),
    ],
)  # fmt: skip
def test_how_far_in_an_address_lies(address: str, place: int) -> None:
    assert explain._place(address) == place
