"""What topics name in other code is there."""

from dataclasses import fields
from typing import Any

import pytest

from ddpprof.engine.topic import Topic
from ddpprof.report import Report
from ddpprof.report.topics import TOPICS, OfTopics


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.report_field)
def test_the_report_has_the_fields_that_topics_name(topic: Topic[Any, Any]) -> None:
    assert topic.report_field in {field.name for field in fields(Report)}
    assert (topic.report_field in {field.name for field in fields(OfTopics)}) is (topic.of_rank is not None)
    assert (topic.of_rank is None) is (topic.of_ranks is None)
    assert (topic.of_file is None) is (topic.file is None)
