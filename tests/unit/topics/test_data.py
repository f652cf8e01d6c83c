"""Whether ranks train on the same samples: known from what they were fed, or nothing is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from observations import MS, beside, loader, observed, only
from tables import record, trace

from ddpprof.model import Batch, Loader, Phase, Rank
from ddpprof.report.topics import find_all
from ddpprof.topics.data import (
    Padding,
    RankInputs,
    RankPadding,
    SameRandomNumbers,
    SameSamples,
    find_same_samples,
    padding_of_rank,
    padding_of_ranks,
    unevenness,
)


def fed(*samples: range, iteration: int = 1, **changes: Any) -> Loader:
    """A loader that yielded these samples, a batch each."""
    batches = tuple(Batch(iteration, place, tuple(one)) for place, one in enumerate(samples, 1))
    return loader(**{"batches": batches, "num_passed_on": len(batches), **changes})


FOUR = (range(4), range(4, 8), range(8, 12), range(12, 16))
OTHER = (range(100, 104), range(104, 108), range(108, 112))


def test_the_same_batches() -> None:
    same = find_same_samples({0: (fed(*FOUR),), 1: (fed(*FOUR[:3]),)})
    assert same is not None
    assert (same.ranks, same.num_batches, same.num_samples, same.same_batches) == ((0, 1), 3, 12, True)


def test_other_ranks_samples_in_another_order() -> None:
    mine, others = (range(32),), (range(16, 48),)
    same = find_same_samples({0: (fed(*mine),), 1: (fed(*others),)})
    assert same is not None
    assert (same.num_batches, same.num_samples, same.num_compared, same.same_batches) == (0, 16, 32, False)


@pytest.mark.parametrize(
    ("zero", "one"),
    [
        pytest.param(fed(*FOUR), fed(*OTHER), id="divided"),
        pytest.param(fed(*FOUR[:2]), fed(*FOUR[:2]), id="too-few-batches"),
        pytest.param(fed(*[range(1)] * 9), fed(*[range(1)] * 9), id="data-that-does-not-change"),
        pytest.param(fed(*[range(8)] * 9), fed(*[range(8)] * 9), id="one-batch-again-and-again"),
        pytest.param(fed(*FOUR, num_fed=0), fed(*FOUR, num_fed=0), id="evaluation"),
        pytest.param(fed(*FOUR, num_passed_on=1), fed(*FOUR, num_passed_on=1), id="parts-of-a-batch-reach-the-model"),
        pytest.param(fed(), fed(), id="batches-that-cannot-be-read"),
        pytest.param(fed(range(15)), fed(range(15), range(20, 99)), id="too-few-shared"),
        pytest.param(fed(range(100)), fed(range(80, 180)), id="a-small-part-shared"),
        pytest.param(fed(range(32), range(8)), fed(range(16, 48)), id="a-rank-gets-samples-twice-itself"),
        pytest.param(fed(range(32)), fed(range(32), iteration=2), id="of-different-epochs"),
        pytest.param(fed(*FOUR), fed(*FOUR, num_iterations=4), id="of-passes-that-differ"),
    ],
)
def test_nothing_is_said(zero: Loader, one: Loader) -> None:
    assert find_same_samples({0: (zero,), 1: (one,)}) is None


def test_a_loader_that_is_divided_is_enough() -> None:
    both = {0: (fed(*FOUR), fed(*FOUR)), 1: (fed(*FOUR), fed(*OTHER))}
    assert find_same_samples(both) is None
    assert find_same_samples({rank: loaders[:1] for rank, loaders in both.items()}) is not None


def test_ranks_with_other_loaders_are_not_compared() -> None:
    assert find_same_samples({0: (fed(*FOUR), fed(*FOUR)), 1: (fed(*FOUR),)}) is None
    assert find_same_samples({0: (fed(*FOUR),)}) is None
    assert find_same_samples({}) is None


SAME = SameSamples(loader(), (0, 1), num_batches=9, num_samples=36, num_compared=36)
SHARED = SameSamples(loader(), (0, 1, 2), num_batches=0, num_samples=18, num_compared=36)


@pytest.mark.parametrize(
    ("same", "world_size", "title", "evidence"),
    [
        pytest.param(
            SAME, 2, "Every rank trains on the same batches",
            "9 of 9 compared batches were the same on both ranks; RandomSampler draws them", id="batches",
        ),
        pytest.param(
            SHARED, 3, "The training data is not sharded across the ranks",
            "in one pass over the DataLoader, 18 of 36 compared samples of one rank were also used by another rank; "
            "RandomSampler draws them", id="samples",
        ),
    ],
)  # fmt: skip
def test_same_samples(same: SameSamples, world_size: int, title: str, evidence: str) -> None:
    finding = only(observed(same_samples=same, world_size=world_size, group_size=world_size))
    assert (finding.rule, finding.gain_ns, finding.is_correctness) == ("same-samples", None, True)
    assert (finding.title, finding.evidence) == (title, evidence)
    assert "DistributedSampler(dataset, shuffle=True)" in finding.advice


DIVIDED = SameSamples(loader(sampler="DistributedSampler", batches_per_pass=13), (0, 1), 9, 36, 36)
"""13 batches of 4 of the 100 samples"""


def test_ranks_that_draw_the_same_samples_although_a_sampler_divides_the_data() -> None:
    job = {"same_samples": DIVIDED, "world_size": 2, "group_size": 2}
    finding = only(observed(**job))
    assert (finding.rule, finding.comes_first) == ("same-samples", True)
    assert "torch.manual_seed(seed + dist.get_rank())" in finding.advice
    cause = only(observed(**job, same_worker_seeds=loader()))
    assert (cause.rule, cause.comes_first) == ("same-worker-seeds", True)
    assert cause.title.startswith("Every rank trains on the same samples: the DataLoader workers of both ranks draw")


def test_a_sampler_that_was_told_of_one_rank_divides_nothing() -> None:
    told = replace(DIVIDED, loader=loader(sampler="DistributedSampler", batches_per_pass=25))
    finding = only(observed(same_samples=told, world_size=2, group_size=2, same_worker_seeds=None))
    assert "DistributedSampler(dataset" in finding.advice


@pytest.mark.parametrize(
    ("same", "group_size"),
    [
        pytest.param(None, 2, id="nothing-known"),
        pytest.param(SAME, 1, id="each-rank-averages-alone"),
        pytest.param(SAME, None, id="of-an-unknown-group"),
    ],
)
def test_ranks_that_may_have_the_same_samples(same: SameSamples | None, group_size: int | None) -> None:
    assert find_all(observed(same_samples=same, group_size=group_size)) == ()


@pytest.mark.parametrize(
    ("same", "title", "evidence", "seeds", "framework"),
    [
        pytest.param(
            SameRandomNumbers(("cpu",), (0, 1), 9), "Both ranks draw the same random numbers",
            "torch's CPU generator was in the same state on both ranks at the start of each of 9 recorded steps, and "
            "was used in every step",
            "torch.manual_seed(seed + dist.get_rank())", None, id="cpu",
        ),
        pytest.param(
            SameRandomNumbers(("cpu", "cuda"), (0, 1, 2), 9), "All 3 ranks draw the same random numbers",
            "torch's CPU generator and torch's accelerator generator were in the same state on all 3 ranks at the "
            "start of each of 9 recorded steps, and were used in every step", "set_seed(seed, device_specific=True)",
            "accelerate", id="both",
        ),
        pytest.param(
            SameRandomNumbers(("cuda",), (0, 1), 9), "Both ranks draw the same random numbers",
            "torch's accelerator generator was", "torch.cuda.manual_seed(args.seed + args.process_index).",
            "transformers", id="accelerator",
        ),
        pytest.param(
            SameRandomNumbers(("cpu",), (0, 1), 9), "Both ranks draw the same random numbers", "torch's CPU generator",
            "torch.manual_seed(args.seed + args.process_index), with TrainingArguments(data_seed=…)", "transformers",
            id="whose-samples-must-keep-their-order",
        ),
    ],
)  # fmt: skip
def test_same_random_numbers(
    same: SameRandomNumbers, title: str, evidence: str, seeds: str, framework: str | None
) -> None:
    size = len(same.ranks)
    finding = only(observed(same_random_numbers=same, world_size=size, group_size=size, framework=framework))
    assert (finding.rule, finding.title, finding.gain_ns) == ("same-random-numbers", title, None)
    assert finding.is_correctness
    assert finding.may_be_meant is (framework is not None)
    assert evidence in finding.evidence
    assert seeds in finding.advice


@pytest.mark.parametrize(
    ("generators", "evidence", "advice"),
    [
        pytest.param(("numpy",), "NumPy's generator was in the same state", "np.random.seed(seed + dist", id="numpy"),
        pytest.param(("random",), "Python's random module was in the same", "random.seed(seed + dist", id="python"),
        pytest.param(
            ("cpu", "numpy", "random"), "torch's CPU generator and NumPy's generator and Python's random module were",
            "torch.manual_seed(seed + dist.get_rank()). Call np.random.seed and random.seed in the same way.", id="all",
        ),
    ],
)  # fmt: skip
def test_the_generators_of_libraries(generators: tuple[str, ...], evidence: str, advice: str) -> None:
    same = SameRandomNumbers(generators, (0, 1), 9)
    finding = only(observed(same_random_numbers=same, group_size=2))
    assert finding.evidence.startswith(evidence)
    assert advice in finding.advice


@pytest.mark.parametrize(
    ("has_generator", "framework", "evidence", "advice"),
    [
        pytest.param(
            True, None, "its own generator has", "Add 2 * rank to torch.initial_seed() in a worker_i", id="own"
        ),
        pytest.param(
            False, "accelerate", "torch's CPU generator, which provides the seeds, has", "Add 2 * rank", id="torchs"
        ),
        pytest.param(True, "lightning", "its own generator has", "Call seed_everything(seed, workers=True)", id="pl"),
    ],
)
def test_workers_with_the_same_seeds(has_generator: bool, framework: str | None, evidence: str, advice: str) -> None:
    same = loader(has_generator=has_generator)
    finding = only(observed(same_worker_seeds=same, group_size=2, framework=framework))
    assert (finding.rule, finding.is_correctness) == ("same-worker-seeds", True)
    assert finding.title == "The DataLoader workers of both ranks draw the same random numbers"
    assert finding.evidence.startswith("the loader passes the same seeds to its workers (2) on both ranks, because")
    assert evidence in finding.evidence
    assert finding.advice.startswith(advice)
    assert "Generator()" not in finding.advice, "it may also order the samples that ranks divide"
    assert find_all(observed(same_worker_seeds=same, group_size=1)) == ()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"same_random_numbers": None}, id="others"),
        pytest.param({"group_size": 1}, id="each-rank-averages-alone"),
        pytest.param({"world_size": 4, "group_size": 4}, id="not-known-of-all"),
    ],
)
def test_ranks_that_may_draw_the_same_random_numbers(changes: dict[str, object]) -> None:
    given = {"same_random_numbers": SameRandomNumbers(("cpu",), (0, 1), 9), "world_size": 2, "group_size": 2, **changes}
    assert find_all(observed(**given)) == ()


@pytest.mark.parametrize(
    ("epochs", "shuffles", "fires"),
    [
        pytest.param((0, 0), True, True, id="never-set"),
        pytest.param((0, 1), True, False, id="set"),
        pytest.param((0,), True, False, id="one-epoch"),
        pytest.param((0, 0), False, False, id="not-shuffled"),
        pytest.param(None, True, False, id="has-no-epoch"),
    ],
)
def test_epoch_never_set(epochs: tuple[int, ...] | None, shuffles: bool, fires: bool) -> None:
    given = loader(sampler="DistributedSampler", epochs_set=epochs, shuffles=shuffles)
    findings = find_all(observed(loaders={0: (given,), 1: (given,)}))
    assert [(f.rule, f.gain_ns, f.is_correctness) for f in findings] == (
        [("set-epoch-never-called", None, True)] if fires else []
    )


@pytest.mark.parametrize(
    ("checkpoints", "evidence"),
    [
        pytest.param({0: ("a", ("/m.pt",)), 1: ("a", ())}, None, id="one-rank"),
        pytest.param({0: ("a", ("/m0.pt",)), 1: ("a", ("/m1.pt",))}, None, id="a-file-each"),
        pytest.param({0: ("a", ("/m.pt",)), 1: ("b", ("/m.pt",))}, None, id="disks-of-two-hosts"),
        pytest.param({0: ("a", ("/m.pt",)), 1: ("a", ("/m.pt",))}, "ranks 0, 1 all wrote /m.pt", id="same"),
        pytest.param(
            {0: ("a", ("/m.pt", "/n.pt")), 1: ("a", ("/m.pt", "/n.pt"))},
            "ranks 0, 1 all wrote /m.pt (2 such files)",
            id="two",
        ),
        pytest.param(
            dict.fromkeys(range(1024), ("a", ("/m.pt",))),
            "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1016 more all wrote /m.pt",
            id="many",
        ),
    ],
)
def test_same_checkpoint(checkpoints: dict[int, tuple[str, tuple[str, ...]]], evidence: str | None) -> None:
    findings = find_all(observed(checkpoints=checkpoints))
    assert [f.evidence for f in findings if f.rule == "same-checkpoint"] == ([evidence] if evidence else [])


@pytest.mark.parametrize(
    ("data_ns", "workers", "cores", "advice"),
    [
        pytest.param(5 * MS, 0, None, "persistent_workers=True), if the host has", id="five-percent"),
        pytest.param(5 * MS, 6, 32.0, "num_workers=12", id="twice-the-workers"),
        pytest.param(5 * MS, 0, 3.0, "num_workers=2", id="one-core-trains"),
        pytest.param(5 * MS, 0, 1.0, "the host has only 1 core for each rank", id="no-core-left"),
        pytest.param(5 * MS, 2, 2.5, "2.5 cores for each rank, and none is free", id="too-many-already"),
        pytest.param(5 * MS - 1, 0, None, None, id="below-five-percent"),
        pytest.param(None, 0, None, None, id="not-measured"),
    ],
)
def test_idle_for_data(data_ns: int | None, workers: int, cores: float | None, advice: str | None) -> None:
    given = observed(data_ns=data_ns, loaders={0: (loader(num_workers=workers),)}, cores_per_rank=cores)
    findings = find_all(given)
    assert [(f.rule, f.gain_ns) for f in findings] == ([("idle-for-data", 5 * MS)] if advice else [])
    assert all(advice in f.advice for f in findings if advice)


def test_workers_are_advised_for_the_loader_that_training_waits_for() -> None:
    loaders = (loader(num_workers=1, waited_ns=9), loader(num_workers=8, waited_ns=5), loader(waited_ns=99, num_fed=0))
    finding = only(observed(data_ns=9 * MS, loaders={0: loaders}, cores_per_rank=64.0))
    assert "with num_workers=1" in finding.evidence
    assert "num_workers=4" in finding.advice


def test_of_an_unknown_loader_no_number_of_workers_is_said() -> None:
    finding = only(observed(data_ns=9 * MS, loaders={0: (loader(num_fed=0),)}))
    assert "num_workers=" not in finding.evidence + finding.advice
    assert finding.advice.startswith("Load batches in DataLoader workers, or use more workers (num_workers)")


@pytest.mark.parametrize(
    ("data_ms", "num_workers", "cores", "gain_ms"),
    [
        pytest.param(30, 0, 64.0, 30, id="four-workers-keep-up"),
        pytest.param(90, 0, 2.0, 10, id="one-worker-loads-only-while-others-compute"),
        pytest.param(40, 1, 64.0, 40, id="four-instead-of-one"),
        pytest.param(80, 1, 3.0, 50, id="two-instead-of-one-are-still-slower-than-the-rest"),
    ],
)
def test_workers_gain_what_they_load_while_the_ranks_compute(
    data_ms: int, num_workers: int, cores: float, gain_ms: int
) -> None:
    """In a step of 100 ms."""
    given = {0: (loader(num_workers=num_workers),)}
    assert only(observed(data_ns=data_ms * MS, loaders=given, cores_per_rank=cores)).gain_ns == gain_ms * MS


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        pytest.param([{3: 100, 5: 300}, {3: 300, 5: 100}], 0.5, id="in-turn"),
        pytest.param([{3: 100, 5: 100}, {3: 100, 7: 900}], 0.0, id="the-same-in-the-common-step"),
        pytest.param([{3: 100}, {3: 0}], None, id="unknown-on-one-rank"),
        pytest.param([{3: 100}], None, id="one-rank"),
    ],
)
def test_how_uneven_the_inputs_are(ranks: list[dict[int, int]], expected: float | None) -> None:
    assert unevenness([RankInputs(one) for one in ranks]) == expected


def padded(*longest: int, width: int | None = 100, compute_ms: int = 40, **changes: Any) -> RankPadding | None:
    """Return the padding of a rank with two steps of 50 ms, which compute for `compute_ms`, without the optimizer."""
    batches = tuple(Batch(1, place, (place,), width, one) for place, one in enumerate(longest, 1))
    computed = [
        (50 * MS * step + start * MS, 50 * MS * step + end * MS, phase, step, 0)
        for step in (0, 1)
        for start, end, phase in (
            (0, compute_ms // 4, Phase.FORWARD),
            (compute_ms // 4, compute_ms, Phase.BACKWARD),
            (compute_ms, 50, Phase.OPTIMIZER),
        )
    ]
    steps = trace([(50 * MS * step, 50 * MS * (step + 1)) for step in (0, 1)], compute=computed)
    feeding = loader(**{"batches": batches, **changes})
    return padding_of_rank(Rank(0, steps, record(loaders=(feeding,))), [0, 1], ())


def test_padding_is_what_no_rank_uses() -> None:
    """The longest sequences of the four batches have 60, 50, 90 and 70 positions; the median of unused ones is 35."""
    ranks = [padded(60, 50, 40, 70), padded(10, 40, 90, 70, compute_ms=32)]
    found = padding_of_ranks([one for one in ranks if one is not None])
    assert found == Padding(4, 100, 65, pytest.approx(0.35), 32 * MS)


def test_padding_that_takes_time() -> None:
    padding = Padding(8, 128, 48, 0.625, 40 * MS)
    (finding,) = beside("padding", padding)
    assert (finding.rule, finding.gain_ns) == ("padded-batches", 25 * MS)
    assert finding.title == "Batches are padded to 128 positions, but their longest sequence has 48"
    assert "62% of the positions are padding in every sequence" in finding.evidence
    assert "in the collate_fn" in finding.advice
    (by_trainer,) = beside("padding", padding, framework="transformers")
    assert 'DataCollatorWithPadding(tokenizer, padding="longest")' in by_trainer.advice
    assert not beside("padding", padding, is_compiled=True)
    assert not beside("padding", Padding(8, 128, 112, 0.12, 40 * MS))


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(padded(), id="no-batches"),
        pytest.param(padded(60, 60, 60, width=None), id="no-masks"),
        pytest.param(padded(60, 60, 60, num_fed=0), id="evaluation"),
        pytest.param(padded(160, 160, 160), id="longer-than-padded"),
        pytest.param(padded(0, 0, 0, width=0), id="empty"),
    ],
)
def test_unknown_padding(made: RankPadding | None) -> None:
    assert made is None


def test_few_batches_tell_nothing_about_padding() -> None:
    two, three = padded(10, 10), padded(10, 10, 10)
    assert two is not None
    assert three is not None
    assert padding_of_ranks([two, three]) is None
    assert padding_of_ranks([three, three]) is not None
