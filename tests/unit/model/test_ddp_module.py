"""A DDP module's own numbers: how many bytes a bucket sends, which a comm hook decides."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from ddpprof.model.ddp_module import (
    Buckets,
    Caps,
    DdpModule,
    Gradient,
    Parameter,
    final_buckets,
    rebuilds_buckets,
)


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


torch = pytest.importorskip("torch", reason="needs torch")
dist = pytest.importorskip("torch.distributed", reason="needs torch")
MB = 1 << 20
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def random_parameters(chance: random.Random) -> tuple[list[torch.Tensor], list[bool]]:
    """Without memory: from a byte to hundreds of MB, of one dtype or several."""
    dtypes = chance.sample(DTYPES, chance.choice([1, 1, 2, 4]))
    sizes = [int(2 ** chance.uniform(0, 27)) - chance.choice([0, 1]) for _ in range(chance.choice([1, 2, 7, 40, 160]))]
    tensors = [torch.empty(1, dtype=chance.choice(dtypes)).expand(size) for size in sizes]
    sparse_share = chance.choice([0, 0, 0.1, 1])
    return tensors, [chance.random() < sparse_share for _ in sizes]


def gradients_of(tensors: list[torch.Tensor], sparse: list[bool]) -> list[Gradient]:
    return [
        Gradient(tensor.numel() * tensor.element_size(), f"{tensor.dtype} {tensor.device}", is_sparse)
        for tensor, is_sparse in zip(tensors, sparse, strict=True)
    ]


def random_caps(chance: random.Random) -> tuple[Caps, list[int]]:
    """And the limits of which torch speaks."""
    cap, caps = chance.choice([None, 0, 0.001, 1, 25, 0.3, 1000]), [chance.uniform(0, 60) for _ in range(5)]
    if chance.random() < 0.4:
        some = caps[: chance.randint(1, 5)]
        return Caps.of(cap, some), [int(value * MB) for value in some]
    if cap is None:
        return Caps.of(), [dist._DEFAULT_FIRST_BUCKET_BYTES, 25 * MB]
    return Caps.of(cap), [int(cap * MB), int(cap * MB)]


def plain(buckets: list[list[int]]) -> Buckets:
    return tuple(map(tuple, buckets))


@pytest.mark.parametrize("seed", range(20))
def test_buckets_of_random_models_are_torchs(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(20):
        tensors, sparse = random_parameters(chance)
        caps, limits = random_caps(chance)
        gradients = gradients_of(tensors, sparse)
        order = list(range(len(tensors)))
        chance.shuffle(order)
        rebuilt, _ = dist._compute_bucket_assignment_by_size([tensors[i] for i in order], limits, sparse, order)
        assert final_buckets(gradients, caps, order, rebuilt=True) == plain(rebuilt)
        kept, _ = dist._compute_bucket_assignment_by_size(tensors, limits, sparse)
        assert final_buckets(gradients, caps, order, rebuilt=False) == plain(kept[::-1])


@pytest.mark.parametrize(
    ("caps", "buckets"),
    [
        pytest.param(Caps(100, 250), ((0,), (1, 2, 3), (4,)), id="first-then-others"),
        pytest.param(Caps(101, 200), ((0, 1), (2, 3), (4,)), id="at-the-cap-is-full"),
        pytest.param(Caps(per_bucket_bytes=(1, 150, 1)), ((0,), (1, 2), (3,), (4,)), id="the-last-of-a-list-goes-on"),
        pytest.param(Caps(1000, 1000), ((0, 1, 2, 3, 4),), id="one-is-enough"),
    ],
)
def test_caps(caps: Caps, buckets: Buckets) -> None:
    assert final_buckets([Gradient(100)] * 5, caps, range(5), rebuilt=True) == buckets


def test_kinds_have_caps_of_their_own_and_what_is_left_comes_last_kind_first() -> None:
    a, b, c, sparse = Gradient(60, "a"), Gradient(60, "b"), Gradient(9, "c"), Gradient(10, is_sparse=True)
    buckets = final_buckets([a, b, sparse, a, c], Caps(100, 1), range(5), rebuilt=True)
    assert buckets == ((2,), (0, 3), (4,), (1,))


class Model(torch.nn.Module):
    """Used in another order than it is written in; one layer not at all, if so asked."""

    def __init__(self, dtypes: int, unused: bool) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64, dtype=DTYPES[i % dtypes]) for i in range(7))
        self.sparse = torch.nn.Embedding(9, 64, sparse=True)
        self.unused = torch.nn.Linear(3, 3) if unused else None

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        x = self.sparse(numbers)
        for index in (3, 0, 6, 2, 1, 5, 4):
            layer = self.layers[index]
            x = torch.relu(layer(x.to(layer.weight.dtype)))
        return x.float().sum()


@pytest.fixture
def alone() -> Iterator[None]:
    """A job of one process, that listens nowhere."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore:You passed find_unused_parameters=true:UserWarning")
@pytest.mark.parametrize("dtypes", [1, 3])
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({}, id="default"),
        pytest.param({"bucket_cap_mb": 1}, id="one-bucket"),
        pytest.param({"bucket_cap_mb": 0.02}, id="small"),
        pytest.param({"bucket_cap_mb": 0.0157}, id="a-weight-fills-it"),
        pytest.param({"bucket_cap_mb_list": [0.0001, 0.05, 0.02]}, id="list"),
        pytest.param({"bucket_cap_mb": 0.02, "static_graph": True}, id="static"),
        pytest.param({"bucket_cap_mb": 0.02, "find_unused_parameters": True}, id="searches"),
        pytest.param({"bucket_cap_mb": 0.02, "find_unused_parameters": True, "static_graph": True}, id="searches-once"),
        pytest.param({"bucket_cap_mb_list": [0.02], "find_unused_parameters": True}, id="searches-list"),
    ],
)
def test_buckets_of_a_reducer_that_trains(arguments: dict, dtypes: int) -> None:
    from ddpprof.record.ddp_construction import reducer_parameters
    from ddpprof.record.ddp_module import bucket_layout

    searches = arguments.get("find_unused_parameters", False)
    static_graph = arguments.get("static_graph", False)
    rebuilt = rebuilds_buckets(find_unused_parameters=searches, static_graph=static_graph)
    ddp = torch.nn.parallel.DistributedDataParallel(Model(dtypes, unused=searches), **arguments)
    of_reducer = reducer_parameters(ddp)
    gradients = gradients_of(of_reducer.parameters, of_reducer.expect_sparse)
    caps = Caps.of(arguments.get("bucket_cap_mb"), arguments.get("bucket_cap_mb_list", ()))
    for _ in range(4):
        ddp(torch.arange(5)).backward()
    ready = ddp._get_ddp_logging_data()["prev_iteration_grad_ready_order_indices"]
    buckets = final_buckets(gradients, caps, [int(word) for word in ready.split(",")], rebuilt=rebuilt)
    assert buckets == plain(bucket_layout(ddp, of_reducer))
