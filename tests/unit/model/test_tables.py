"""Where NumPy compares members with columns, no Python code runs in which a Ctrl-C would be lost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import IntEnum, IntFlag

import numpy as np
import pytest

from ddpprof.load.classify import Role
from ddpprof.model.pulse import Activity, Ended, StepFlag
from ddpprof.model.tables import CollectiveKind, Mark, Phase
from ddpprof.topics.idle import Cause

_MEMBERS = [next(iter(kind)) for kind in (Role, Cause, Activity, Ended, StepFlag, CollectiveKind, Mark, Phase)]
_COLUMN = np.zeros(2, np.int8)


@pytest.mark.parametrize("member", _MEMBERS, ids=lambda member: type(member).__name__)
def test_no_python_code_runs(member: IntEnum | IntFlag) -> None:
    assert _functions_called(lambda: member == _COLUMN) == ["<lambda>"]
    assert _functions_called(lambda: _COLUMN & member) == ["<lambda>"]


def test_a_missing_member_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="NEW"):
        Phase.NEW  # type: ignore[attr-defined]  # noqa: B018


def _functions_called(act: Callable[[], object]) -> list[str]:
    called: list[str] = []
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        act()
    finally:
        sys.setprofile(before)
    return called
