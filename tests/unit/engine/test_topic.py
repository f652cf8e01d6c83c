"""All rules together."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import replace as replaced
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from observations import BUFFERS, HELD, LATE, MIB, MS, loader, observed, of_mib, slowdown
from tables import ddp_module

from ddpprof import topics
from ddpprof.engine import topic
from ddpprof.engine.finding import Change, ChangeKind, Finding, NewBuckets, Predicted, Predictions, Tried, ddp_change
from ddpprof.engine.topic import Topic, View, in_order
from ddpprof.engine.topic import is_noise as is_noise_of
from ddpprof.errors import DdpprofError
from ddpprof.model.json_files import Measured, Outcome, TriedChange
from ddpprof.model.whole_run import NonfiniteSteps
from ddpprof.report.topics import TOPICS, find_all
from ddpprof.topics.accumulation import Accumulation
from ddpprof.topics.devices import DeviceLoad


@pytest.mark.parametrize("step_ns", [0, None])
def test_a_step_without_length_gives_nothing_back(step_ns: int | None) -> None:
    names = (
        "exposed_ns",
        "trailing_ns",
        "data_ns",
        "buffer_sync_ns",
        "unused_search_ns",
        "copy_out_ns",
        "launch_bound_ns",
    )
    everything = dict.fromkeys(names, 0)
    module = replace(HELD, num_buffers=1, settings={"broadcast_buffers": True})
    assert find_all(observed(module, LATE, step_ns=step_ns, slowdown=slowdown(0, 1.5, 1), **everything)) == ()


@pytest.mark.parametrize("step_ns", [0, None])
def test_without_the_length_of_a_step_no_part_of_it_is_worth_saying(step_ns: int | None) -> None:
    times = dict.fromkeys(("data_ns", "launch_bound_ns", "copy_out_ns"), 9 * MS)
    loads = tuple(DeviceLoad(device, ns, 0, 0, ns) for device, ns in enumerate((9 * MS, 0)))
    assert (
        find_all(
            observed(
                HELD,
                LATE,
                step_ns=step_ns,
                device_loads=loads,
                exposed_ns=9 * MS,
                slowdown=slowdown(9 * MS, 1.5, 1),
                **times,
            )
        )
        == ()
    )


def test_most_first_and_unknown_gains_last() -> None:
    module = ddp_module(**BUFFERS, broadcast_buffers=True, unused=("p0",))
    o = observed(module, data_ns=9 * MS, buffer_sync_ns=3 * MS, copy_out_ns=20 * MS, loaders={0: (loader(),)})
    assert [(f.rule, f.gain_ns) for f in find_all(o)] == [
        ("gradient-copies", 20 * MS), ("idle-for-data", 9 * MS), ("buffers-broadcast", 3 * MS),
        ("unused-parameters", None),
    ]  # fmt: skip


def test_a_broken_training_before_all_gains() -> None:
    o = observed(ddp_module(), copy_out_ns=20 * MS, nonfinite={0: NonfiniteSteps(3, 9, follows_finite=True), 1: None})
    assert [f.rule for f in find_all(o)] == ["nonfinite-loss", "gradient-copies"]


def test_nothing_known_nothing_found() -> None:
    assert find_all(View(world_size=None, step_ns=None)) == ()
    rules = [rule for topic in TOPICS for rule in topic.rules]
    assert len(rules) == len(set(rules))


@pytest.mark.parametrize(
    ("gain_ns", "prediction", "noise_ns", "is_noise"),
    [
        pytest.param(3 * MS, None, None, False, id="measured"),
        pytest.param(1_400_000, None, None, True, id="near-the-least-worth-saying"),
        pytest.param(3 * MS, None, 10 * MS, False, id="a-part-is-not-as-noisy-as-the-step"),
        pytest.param(9 * MS, Predicted(5 * MS, 1 * MS, 9 * MS), None, False, id="surely-a-gain"),
        pytest.param(9 * MS, Predicted(5 * MS, 0, 9 * MS), None, True, id="perhaps-no-gain"),
        pytest.param(9 * MS, Predicted(5 * MS, 1 * MS, 9 * MS), 6 * MS, True, id="less-than-the-noise-of-the-step"),
        pytest.param(4_000, Predicted(3_000, 1_000, 4_000), None, True, id="rounds-to-nothing"),
        pytest.param(6_000, Predicted(5_000, 1_000, 6_000), None, False, id="rounds-to-something"),
        pytest.param(None, None, 10 * MS, False, id="without-a-gain"),
    ],
)
def test_what_may_be_noise(
    gain_ns: int | None, prediction: Predicted | None, noise_ns: int | None, is_noise: bool
) -> None:
    finding = Finding("rule", "title", "evidence", "advice", gain_ns, predicted=prediction)
    assert is_noise_of(finding, observed(step_noise_ns=noise_ns)) is is_noise


def test_gains_that_may_be_equal_stand_in_the_order_of_the_rules() -> None:
    def order(*gains: tuple[str, int, int, int]) -> list[str]:
        made = [
            Finding(name, name, "", "", high, predicted=Predicted(gain, low, high)) for name, gain, low, high in gains
        ]
        return [finding.rule for finding in in_order(made, observed(), {})]

    assert order(("first", 5 * MS, 3 * MS, 7 * MS), ("second", 6 * MS, 4 * MS, 8 * MS)) == ["first", "second"]
    assert order(("first", 6 * MS, 4 * MS, 8 * MS), ("second", 5 * MS, 3 * MS, 7 * MS)) == ["first", "second"]
    assert order(("first", 3 * MS, 2 * MS, 4 * MS), ("second", 9 * MS, 8 * MS, 10 * MS)) == ["second", "first"]
    may_be_a_loss, vague = ("first", 3 * MS, -2 * MS, 8 * MS), ("vague", 3 * MS, 1 * MS, 12 * MS)
    assert order(may_be_a_loss, ("second", 2 * MS, 1 * MS, 3 * MS)) == ["second", "first"]
    small, large = ("small", 4_000_000, 3_900_000, 4_200_000), ("large", 5_000_000, 4_500_000, 5_500_000)
    assert order(small, large, vague) == ["large", "small", "vague"], "its most does not make it the largest"


TOPICS_FOLDER = Path(topics.__file__).parent
LARGE = [{"first_ready_ns": 10 * MS, "ready_ns": 60 * MS, "transfer_ns": 20 * MS}, {}]
FIRST = [{"first_ready_ns": 10 * MS, "ready_ns": 30 * MS}, {"ready_ns": 50 * MS}]
TRAILING = [{"ready_ns": 10 * MS, "transfer_ns": 2 * MS}, {"ready_ns": 50 * MS, "transfer_ns": 16 * MS}]
ENDLESS = Predicted(900 * MS, 800 * MS, 1000 * MS)
"""more than any step here takes"""


@pytest.mark.parametrize(
    ("o", "rule", "cause_ns"),
    [
        pytest.param(
            observed(of_mib([1], [9]), TRAILING, trailing_ns=12 * MS),
            "trailing-communication",
            12 * MS,
            id="trailing",
        ),
        pytest.param(
            observed(of_mib([1] * 9, [1]), LARGE, exposed_ns=9 * MS), "buckets-too-large", 9 * MS, id="too-large"
        ),
        pytest.param(
            observed(of_mib(*[[0.25]] * 6, bucket_cap_mb=0.1), [{"transfer_ns": 2 * MS}] * 6, exposed_ns=8 * MS),
            "buckets-too-small",
            8 * MS,
            id="too-small",
        ),
        pytest.param(
            observed(of_mib([1] * 8, [1] * 8), FIRST, exposed_ns=15 * MS), "first-bucket-late", 15 * MS, id="first-late"
        ),
        pytest.param(observed(of_mib([1], [9]), [{}, {}], exposed_ns=7 * MS), "better-buckets", 7 * MS, id="better"),
        pytest.param(
            observed(of_mib([1]), [{}], exposed_ns=6 * MS, accumulation=(Accumulation(0, 4, 4, 3),)),
            "reduces-every-pass",
            6 * MS,
            id="every-pass",
        ),
        pytest.param(observed(of_mib([1]), copy_out_ns=5 * MS), "gradient-copies", 5 * MS, id="copies"),
        pytest.param(
            observed(
                ddp_module(find_unused_parameters=True, graph_is_static=True, unused=("p0",), num_searched_passes=4),
                unused_search_ns=3 * MS,
                exposed_ns=2 * MS,
            ),
            "static-graph",
            5 * MS,
            id="search",
        ),
    ],
)
def test_no_gain_exceeds_the_cause_that_a_finding_names(o: View, rule: str, cause_ns: int) -> None:
    """The replay may promise more than there is, as when it describes other steps."""
    buckets = NewBuckets("bucket_cap_mb=1", (MIB, MIB // 8), ENDLESS)
    endless = Predictions(buckets, *(replaced(ENDLESS) for _ in range(8)))
    [found] = [one for one in find_all(replaced(o, predictions=endless)) if one.rule == rule]
    assert (found.cause_ns, found.gain_ns) == (cause_ns, cause_ns)
    assert found.predicted == Predicted(cause_ns, cause_ns, cause_ns)


def test_every_rule_with_a_prediction_names_its_cause() -> None:
    """So that the test above has all of them."""
    nodes = [node for path in TOPICS_FOLDER.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    made = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "Finding"]
    named = [{word.arg for word in call.keywords} for call in made]
    assert len([words for words in named if "predicted" in words]) >= 8
    assert all("cause_ns" in words for words in named if "predicted" in words)


def test_every_rule_tells_its_numbers_with_their_units() -> None:
    """But for one, which has none."""
    nodes = [node for path in TOPICS_FOLDER.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    made = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "Finding"]
    without = [ast.unparse(call.args[0]) for call in made if "numbers" not in {word.arg for word in call.keywords}]
    assert without == ["'collective-of-some-ranks'"]
    told = [word.value for call in made for word in call.keywords if word.arg == "numbers"]
    names = {word.arg or "" for call in told if isinstance(call, ast.Call) for word in call.keywords}
    units = ("_ns", "_bytes", "_s", "_ratio", "_share", "_step", "_batches")
    assert [name for name in names if not name.startswith("num_") and not name.endswith(units)] == []


def test_a_rule_that_is_often_wrong_is_worth_trying_but_not_first(monkeypatch: pytest.MonkeyPatch) -> None:
    often_wrong, right = Finding("often-wrong", "", "", "", 9 * MS), Finding("right", "", "", "", 5 * MS)
    assert [one.rule for one in in_order([often_wrong, right], observed(), {})] == ["often-wrong", "right"]
    record = {"often-wrong": Tried(num_cases=4, num_confirmed=3), "right": Tried(num_cases=5, num_confirmed=4)}
    monkeypatch.setattr("ddpprof.engine.finding.TRACK_RECORD", record)
    assert [one.rule for one in in_order([often_wrong, right], observed(), {})] == ["right", "often-wrong"]
    tried = replaced(often_wrong, measured=Measured(8 * MS, 7 * MS, 9 * MS, Outcome.CONFIRMED, 5))
    assert [one.rule for one in in_order([tried, right], observed(), {})] == ["often-wrong", "right"]


def test_the_interval_of_a_rule_whose_gains_were_often_outside_is_wider(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding("rule", "", "", "", 12 * MS, predicted=Predicted(10 * MS, 8 * MS, 12 * MS), cause_ns=13 * MS)
    (before,) = in_order([finding], observed(), {})
    assert before.predicted == finding.predicted
    monkeypatch.setattr("ddpprof.engine.finding.TRACK_RECORD", {"rule": Tried(20, 18, widening=2.5)})
    (after,) = in_order([finding], observed(), {})
    assert after.predicted == Predicted(10 * MS, 5 * MS, 13 * MS), "no change saves more than its cause"


def test_bounds_that_only_a_replay_could_confirm_come_after_what_can_be_done() -> None:
    guess = Finding("trailing-communication", "", "", "", 9 * MS)
    gain, unknown = Finding("gain", "", "", "", 5 * MS), Finding("unknown", "", "", "", None, change=ddp_change(None))
    wrong = Finding("wrong", "", "", "", None, is_correctness=True)
    found = [one.rule for one in in_order([guess, gain, unknown, wrong], observed(), {})]
    assert found == ["gain", "unknown", "wrong", "trailing-communication"]


def test_what_was_tried_in_vain_is_noise() -> None:
    change = ddp_change(None, static_graph=True)
    finding = Finding("rule", "", "", "", 9 * MS, change=change)
    measured = Measured(0, -MS, MS, Outcome.NO_DIFFERENCE, 5)
    view = replaced(observed(), tried=(TriedChange("rule", change.code, measured), TriedChange("other", "x", measured)))
    (found,) = in_order([finding], view, {})
    assert (found.measured, found.is_noise) == (measured, True)


def test_a_change_that_keeps_the_results_comes_before_one_that_rounds() -> None:
    hook = Change(ChangeKind.COMM_HOOK, {"fp16_compress_hook": True}, "hook", is_lossy=True)
    lossy = Finding("a", "t", "e", "a", 90 * MS, predicted=Predicted(80 * MS, 70 * MS, 90 * MS), change=hook)
    lossless = Finding("b", "t", "e", "a", 20 * MS, predicted=Predicted(15 * MS, 10 * MS, 20 * MS),
                       change=ddp_change(None, bucket_cap_mb=1))  # fmt: skip
    assert [one.rule for one in in_order([lossy, lossless], observed(), {})] == ["b", "a"]


def test_among_uncertain_gains_a_change_that_rounds_comes_last() -> None:
    hook = Change(ChangeKind.COMM_HOOK, {"h": True}, "h", is_lossy=True)
    uncertain = Predicted(50 * MS, -1 * MS, 60 * MS)
    lossy = Finding("a", "t", "e", "a", 60 * MS, predicted=uncertain, change=hook)
    lossless = Finding("b", "t", "e", "a", 20 * MS, predicted=Predicted(15 * MS, -1 * MS, 20 * MS),
                       change=ddp_change(None, bucket_cap_mb=1))  # fmt: skip
    found = in_order([lossy, lossless], observed(step_ns=100 * MS), {})
    assert [(one.rule, one.is_worth_trying) for one in found] == [("b", True), ("a", True)]


@pytest.mark.parametrize(
    ("gain_ms", "low_ms", "change", "is_worth_trying"),
    [
        pytest.param(20, -30, ddp_change(None, bucket_cap_mb=1), True, id="large-but-uncertain"),
        pytest.param(20, 15, ddp_change(None, bucket_cap_mb=1), False, id="certain"),
        pytest.param(4, -30, ddp_change(None, bucket_cap_mb=1), False, id="less-than-5-percent"),
        pytest.param(20, -30, None, False, id="nothing-to-try"),
        pytest.param(20, -30, Change(ChangeKind.COMM_HOOK, {"h": True}, "h", is_lossy=True), True, id="lossy"),
    ],
)
def test_a_large_gain_that_the_run_cannot_predict_is_worth_trying(
    gain_ms: int, low_ms: int, change: Change | None, is_worth_trying: bool
) -> None:
    """The step takes 100 ms."""
    predicted = Predicted(gain_ms * MS, low_ms * MS, 40 * MS)
    uncertain = Finding("uncertain", "t", "e", "a", 40 * MS, predicted=predicted, change=change)
    noise = Finding("noise", "t", "e", "a", MS)
    found = {one.rule: one for one in in_order([noise, uncertain], observed(step_ns=100 * MS), {})}
    assert found["uncertain"].is_worth_trying is is_worth_trying
    assert found["uncertain"].is_noise is (low_ms < 0)
    assert (next(iter(found)) == "uncertain") is (is_worth_trying or low_ms > 0)


WHOLE: Topic[Any, Any] = Topic(
    "mine", {}, (), of_rank=lambda *_: 1, of_ranks=tuple, rank_type=int, run_type=tuple[int, ...]
)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def install(load: Any) -> None:
        entry = SimpleNamespace(name="mine", value="mine:TOPIC", dist=SimpleNamespace(name="p", version="2"), load=load)
        monkeypatch.setattr(topic, "_entries", lambda: [entry])

    topic.further_topics.cache_clear()
    topic.versions.cache_clear()
    yield install
    topic.further_topics.cache_clear()
    topic.versions.cache_clear()


def test_a_topic_is_known_by_its_name_and_version(installed: Any) -> None:
    installed(lambda: WHOLE)
    assert topic.further_topics() == {"mine": WHOLE}
    assert topic.versions() == ("p 2",)


def broken() -> None:
    raise ImportError("no module named x")


@pytest.mark.parametrize(
    ("load", "says"),
    [
        pytest.param(broken, r"mine of p cannot be imported \(no module named x\)\. Uninstall", id="no-import"),
        pytest.param(lambda: Topic("mine", {}, ()), "mine of p does not define of_rank, of_ranks", id="no-measure"),
        pytest.param(lambda: "a topic", "mine of p does not define", id="something-else"),
    ],
)
def test_one_that_cannot_be_used_is_named_with_its_package(load: Any, says: str, installed: Any) -> None:
    installed(load)
    with pytest.raises(DdpprofError, match=says):
        topic.further_topics()


@pytest.mark.parametrize(
    ("declares", "found"), [("[ddpprof.topics]\nmine = mine:TOPIC\n", ["mine"]), ("[console_scripts]\nx = y:z\n", [])]
)
def test_topics_are_those_that_installed_packages_declare(
    declares: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "mine-2.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 2\n")
    (package / "entry_points.txt").write_text(declares)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "absent")])
    assert [one.name for one in topic._entries()] == found
