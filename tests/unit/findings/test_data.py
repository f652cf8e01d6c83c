"""Rules about data and checkpoints."""

import pytest
from observations import MS, loader, observed, only

from ddpprof.events import Loader
from ddpprof.findings import find


def test_gain_and_kind_of_what_costs_correctness() -> None:
    finding = only(observed(loaders={0: (loader(),), 1: (loader(),)}))
    assert (finding.rule, finding.gain_ns, finding.is_correctness) == ("no-distributed-sampler", None, True)
    assert "DistributedSampler(dataset, shuffle=True)" in finding.advice


@pytest.mark.parametrize(
    ("loaders", "world_size"),
    [
        pytest.param({0: (loader(),)}, 1, id="one-rank"),
        pytest.param({0: (loader(),)}, 2, id="only-rank-0-trains-on-it"),
        pytest.param({0: (loader(),), 1: (loader(dataset_size=99),)}, 2, id="each-rank-its-own-part"),
        pytest.param({0: (loader(num_training_steps=0),), 1: (loader(num_training_steps=0),)}, 2, id="validation"),
        pytest.param({r: (loader(sampler="DistributedSampler"),) for r in range(2)}, 2, id="divided"),
        pytest.param({r: (loader(sampler="BucketBatchSampler"),) for r in range(2)}, 2, id="of-the-user"),
    ],
)
def test_no_missing_sampler(loaders: dict[int, tuple[Loader, ...]], world_size: int) -> None:
    assert find(observed(loaders=loaders, world_size=world_size)) == ()


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
    findings = find(observed(loaders={0: (given,), 1: (given,)}))
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
    ],
)
def test_same_checkpoint(checkpoints: dict[int, tuple[str, tuple[str, ...]]], evidence: str | None) -> None:
    findings = find(observed(checkpoints=checkpoints))
    assert [f.evidence for f in findings if f.rule == "same-checkpoint"] == ([evidence] if evidence else [])


@pytest.mark.parametrize(
    ("data_ns", "workers", "advice"),
    [
        pytest.param(5 * MS, 0, "num_workers=4", id="exactly-five-percent"),
        pytest.param(5 * MS, 6, "num_workers=12", id="twice-the-workers"),
        pytest.param(5 * MS - 1, 0, None, id="below-five-percent"),
        pytest.param(None, 0, None, id="not-measured"),
    ],
)
def test_idle_for_data(data_ns: int | None, workers: int, advice: str | None) -> None:
    findings = find(observed(data_ns=data_ns, loaders={0: (loader(num_workers=workers),)}))
    assert [(f.rule, f.gain_ns) for f in findings] == ([("idle-for-data", 5 * MS)] if advice else [])
    assert all(advice in f.advice for f in findings if advice)
