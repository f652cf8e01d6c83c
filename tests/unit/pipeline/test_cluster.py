"""A cluster that is lost while it works, which here runs in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpprof.errors import DdpprofError
from ddpprof.pipeline import workers

pytestmark = pytest.mark.filterwarnings("ignore:Creating scratch directories:UserWarning")  # the machine is busy


@pytest.mark.parametrize("content", [b'{"address": "\xff"}', b'{"x": ' + b"[" * 100_000], ids=["not-utf-8", "too-deep"])
def test_a_scheduler_file_of_something_else_is_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "scheduler.json").write_bytes(content)
    with pytest.raises(DdpprofError, match="is not a Dask scheduler file"):
        workers._checked(str(tmp_path / "scheduler.json"))
