"""Topics of other packages are named by entry points; one that cannot be used is told in one line."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ddpprof.engine import topic
from ddpprof.engine.topic import Topic
from ddpprof.errors import DdpprofError

WHOLE: Topic[Any, Any] = Topic(
    "mine", {}, (), of_rank=lambda *_: 1, of_ranks=tuple, rank_type=int, run_type=tuple[int, ...]
)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def install(load: Any) -> None:
        entry = SimpleNamespace(name="mine", value="mine:TOPIC", dist=SimpleNamespace(name="p", version="2"), load=load)
        monkeypatch.setattr(topic, "entry_points", lambda group: [entry] if group == "ddpprof.topics" else [])

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
        pytest.param(lambda: Topic("mine", {}, ()), "mine of p lacks of_rank, of_ranks", id="no-measure"),
        pytest.param(lambda: "a topic", "mine of p lacks", id="something-else"),
    ],
)
def test_one_that_cannot_be_used_is_named_with_its_package(load: Any, says: str, installed: Any) -> None:
    installed(load)
    with pytest.raises(DdpprofError, match=says):
        topic.further_topics()
