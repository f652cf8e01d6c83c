"""The only list of other tools' files that are not traces; a topic reads each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddpprof.files import Location
from ddpprof.model import OtherFile
from ddpprof.topics.horovod.timeline import HOROVOD_TIMELINE
from ddpprof.topics.horovod.timeline_file import is_horovod_timeline, load_horovod

_FILES: Sequence[tuple[str, Callable[[Location], bool], Callable[[Location], OtherFile]]] = (
    (HOROVOD_TIMELINE, is_horovod_timeline, load_horovod),
)
"""name, test of a file's beginning, and reader"""


def load_other_file(path: Location) -> OtherFile | None:
    """Load the file if it is one of these; else return ``None``. Raises `BadTrace`."""
    return next((load(path) for _, is_one, load in _FILES if is_one(path)), None)


def why_alone(path: Location) -> str | None:
    """Return why the file cannot be read as one of several traces; ``None`` where it is none of these."""
    return next((f"{path} is a {what}; give it alone" for what, is_one, _ in _FILES if is_one(path)), None)
