"""What topics say of themselves holds."""

from typing import Any

import pytest

from ddpprof.engine.topic import Topic, View
from ddpprof.report.topics import TOPICS, with_topics


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_topics_are_whole(topic: Topic[Any, Any]) -> None:
    assert (topic.of_rank is None) is (topic.rank_type is None)
    assert topic.of_ranks is None or topic.of_rank is not None
    assert topic.of_rank is None or topic.of_run is None
    assert (topic.of_file is None) is (topic.file is None)


def test_names_stand_once() -> None:
    assert len({topic.name for topic in TOPICS}) == len(TOPICS)


def test_of_a_run_of_which_nothing_is_known_topics_show_nothing_but_emptiness() -> None:
    view = with_topics(View(world_size=None, step_ns=None), [])
    assert not any(view.shown[name] for name in ("unused_parameters", "gradient_copies", "checkpoints"))
