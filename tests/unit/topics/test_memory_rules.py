"""Rules about memory."""

import pytest
from observations import beside

from ddpprof.topics.memory import DeviceUse, RankMemory

GB, MIB_256 = 10**9, 256 * 2**20


def held(rank: int, rss: int | None = None, gpus: tuple[int, ...] = (), strangers: tuple[int, ...] = ()) -> RankMemory:
    """`gpus`: bytes on its own; `strangers`: on those before them."""
    uses = [DeviceUse(index, False, None, size, size, None) for index, size in enumerate(strangers)]
    uses += [DeviceUse(rank + index, True, size, size, size, None) for index, size in enumerate(gpus)]
    return RankMemory(rank, "node", rss, rss, tuple(uses))


def test_memory_of_ranks_that_do_not_train_there() -> None:
    ranks = (held(0, gpus=(9 * GB,)), *(held(rank, gpus=(9 * GB,), strangers=(GB // 10,)) for rank in (1, 2)))
    (finding,) = beside("memory", ranks)
    assert (finding.rule, finding.gain_ns, finding.is_correctness) == ("memory-of-others", None, False)
    assert finding.title == "Ranks 1, 2 hold a context on GPU 0, where they do not train"
    assert finding.evidence.startswith("0.20 GB is reserved there for tensors, on node")
    assert "map_location" in finding.advice


def test_a_device_is_the_same_under_whatever_index_its_ranks_see_it() -> None:
    def on(rank: int, index: int, uuid: str) -> RankMemory:
        return RankMemory(rank, "node", None, None, (DeviceUse(index, False, None, GB, GB, None, uuid),))

    (together,) = beside("memory", (on(0, 1, "a"), on(1, 0, "a")))
    assert together.title == "Ranks 0, 1 hold a context on GPU 1, where they do not train"
    assert len(beside("memory", (on(0, 0, "a"), on(1, 0, "b")))) == 2


@pytest.mark.parametrize(
    ("ranks", "title"),
    [
        pytest.param(
            [held(0, gpus=(9 * GB,)), held(1, gpus=(6 * GB,)), held(2, gpus=(6 * GB,))],
            "GPU 0 holds 3.00 GB more memory than the other GPUs", id="one-gpu",
        ),
        pytest.param(
            [held(0, gpus=(5 * GB,)), held(0, gpus=(5 * GB,)), held(1, gpus=(5 * GB,))],
            "GPU 0 holds 5.00 GB more memory than the other GPUs", id="two-processes-on-one",
        ),
        pytest.param([held(0, gpus=(6 * GB,)), held(1, gpus=(5 * GB,))], None, id="less-than-a-quarter"),
        pytest.param(
            [held(0, GB), held(1, GB + MIB_256)],
            "Rank 1 holds 0.27 GB more memory than the other ranks", id="host",
        ),
        pytest.param([held(0, GB), held(1, GB + MIB_256 - 1)], None, id="too-little"),
        pytest.param([held(0, 9 * GB)], None, id="alone"),
        pytest.param([held(0), held(1)], None, id="unknown"),
        pytest.param([held(1, gpus=(5 * GB,), strangers=(0,))], None, id="a-context-where-nobody-trains"),
    ],
)  # fmt: skip
def test_memory_imbalance(ranks: list[RankMemory], title: str | None) -> None:
    findings = [f for f in beside("memory", tuple(ranks)) if f.rule != "memory-of-others"]
    assert [(f.rule, f.title, f.gain_ns) for f in findings] == ([("memory-imbalance", title, None)] if title else [])


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        ((held(0, GB), held(1, 2 * GB)), "loss.item()"),
        ((held(0, gpus=(9 * GB,)), held(1, gpus=(6 * GB,))), "loss.item()"),
        ((held(0, gpus=(5 * GB,)), held(0, gpus=(5 * GB,)), held(1, gpus=(5 * GB,))), "set_device(local_rank)"),
    ],
)
def test_what_to_do_about_an_imbalance(ranks: tuple[RankMemory, ...], says: str) -> None:
    assert [says in f.advice for f in beside("memory", ranks) if f.rule == "memory-imbalance"] == [True]
