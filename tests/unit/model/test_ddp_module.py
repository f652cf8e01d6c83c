"""A DDP module's own numbers: how many bytes a bucket sends, which a comm hook decides."""

from __future__ import annotations

import pytest

from ddpprof.model.ddp_module import DdpModule, Parameter


@pytest.mark.parametrize(
    ("hook", "dtypes", "num_bytes"),
    [
        pytest.param(None, ("float32", "float32"), 12, id="no-hook"),
        pytest.param("timed_allreduce_hook", ("float32", "float32"), 12, id="as-they-are"),
        pytest.param("fp16_compress_hook", ("float32", "float32"), 6, id="fp16"),
        pytest.param("bf16_compress_hook", ("float32", "float32"), 6, id="bf16"),
        pytest.param("fp16_compress_hook", ("float32", "float64"), None, id="of-other-numbers"),
        pytest.param("fp16_compress_hook", (None, None), None, id="of-unknown-numbers"),
        pytest.param("powerSGD_hook", ("float32", "float32"), None, id="unknown"),
    ],
)
def test_the_size_of_a_buckets_all_reduce(
    hook: str | None, dtypes: tuple[str | None, str | None], num_bytes: int | None
) -> None:
    parameters = tuple(Parameter(f"p{size}", size, dtype) for size, dtype in zip((4, 8), dtypes, strict=True))
    module = DdpModule("Net", {}, hook, parameters, ((0, 1),), 0, 0, 0)
    assert module.message_bytes(0) == num_bytes
    assert module.bucket_bytes(0) == 12
