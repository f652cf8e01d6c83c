"""Arguments of DDP's constructor that take the place of the script's."""

from __future__ import annotations

from typing import Any

import pytest

from ddpprof.record.ddp_variants import _init
from ddpprof.record.settings import Settings


@pytest.mark.parametrize(
    ("replaced", "became"),
    [
        pytest.param({"bucket_cap_mb": 5}, {"bucket_cap_mb": 5}, id="a-cap-instead-of-the-list-that-goes-before-it"),
        pytest.param({"bucket_cap_mb_list": [2]}, {"bucket_cap_mb_list": [2]}, id="another-list"),
        pytest.param(
            {"static_graph": True}, {"bucket_cap_mb_list": [1, 3], "static_graph": True}, id="another-argument"
        ),
    ],
)
def test_a_script_that_gives_a_list_of_caps(replaced: dict[str, Any], became: dict[str, Any]) -> None:
    got: dict[str, Any] = {}

    def original(
        self: object, bucket_cap_mb: Any = None, bucket_cap_mb_list: Any = None, static_graph: Any = None
    ) -> None:
        given = {"bucket_cap_mb": bucket_cap_mb, "bucket_cap_mb_list": bucket_cap_mb_list, "static_graph": static_graph}
        got.update({name: value for name, value in given.items() if value is not None})

    _init(original, Settings("run", ddp=replaced))(object(), bucket_cap_mb_list=[1, 3])
    assert got == became
