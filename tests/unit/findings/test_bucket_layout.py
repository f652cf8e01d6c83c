"""Which buckets DDP would make under other caps."""

import pytest
from msgspec import structs
from tables import ddp_module

from ddpprof.findings.bucket_layout import bucket_sizes_under


@pytest.mark.parametrize(
    ("caps", "settings", "sizes"),
    [
        # As torch 2.13 did it for five Linear(600, 600), weights of 1 440 000 bytes and biases of 2 400.
        pytest.param([1, 25], {}, [1442400, 5769600], id="default"),
        pytest.param([1], {}, [1442400] * 5, id="cap-1"),
        pytest.param([1, 25], {"find_unused_parameters": True}, [5772000, 1440000], id="no-rebuild"),
        pytest.param([1], {"find_unused_parameters": True}, [2400] + [1442400] * 4 + [1440000], id="no-rebuild-cap-1"),
        pytest.param([25], {"find_unused_parameters": True, "static_graph": True}, [7212000], id="static-graph"),
    ],
)
def test_buckets_are_laid_out_as_torch_does(caps: list[float], settings: dict[str, bool], sizes: list[int]) -> None:
    module = ddp_module([1440000, 2400] * 5, [range(9, -1, -1)], **settings)
    assert bucket_sizes_under(module, caps) == tuple(sizes)


def test_gradients_of_different_types_never_share_a_bucket() -> None:
    module = ddp_module([400, 200] * 3, [range(5, -1, -1)])
    kinds = ["float32", "float16"] * 3
    parameters = tuple(
        structs.replace(one, dtype=kind, shape=(100,)) for one, kind in zip(module.parameters, kinds, strict=True)
    )
    assert sorted(bucket_sizes_under(structs.replace(module, parameters=parameters), [1, 25])) == [600, 1200]
