"""Topics of other packages. Each has an entry point in the group ``ddpprof.topics`` that names its `Topic`."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from ddpprof.engine.topic import Topic
from ddpprof.errors import DdpprofError

GROUP = "ddpprof.topics"


@cache
def further_topics() -> dict[str, Topic[Any, Any]]:
    """Return the topics of installed packages, by entry point name.

    Raises `DdpprofError` if one of them cannot be imported, or does not declare the types of its measures.
    """
    return {one.name: _loaded(one) for one in sorted(entry_points(group=GROUP), key=lambda one: one.name)}


def _loaded(entry: Any) -> Topic[Any, Any]:
    package = entry.dist.name if entry.dist is not None else entry.value
    try:
        topic = entry.load()
    except Exception as error:  # other people's code
        why = f"cannot be imported ({error})"
        raise DdpprofError(f"the topic {entry.name} of {package} {why}. {_WHAT_TO_DO}") from error
    if not isinstance(topic, Topic) or None in (topic.of_rank, topic.of_ranks, topic.rank_type, topic.run_type):
        lacks = "lacks of_rank, of_ranks, rank_type or run_type"
        raise DdpprofError(f"the topic {entry.name} of {package} {lacks}. {_WHAT_TO_DO}")
    return replace(topic, name=entry.name)


_WHAT_TO_DO = "Uninstall the package, or report this to its authors."


@cache
def versions() -> tuple[str, ...]:
    """Return the packages that provide topics, with their versions; summaries of ranks depend on them."""
    found = [one.dist for one in entry_points(group=GROUP)]
    return tuple(sorted({f"{one.name} {one.version}" for one in found if one is not None}))
