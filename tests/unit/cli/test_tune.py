"""What `ddpprof tune` keeps for going on."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpprof.cli.tune import _keep_network, _refuse_other_network
from ddpprof.errors import DdpprofError


def test_a_tuning_goes_on_with_the_network_that_it_was_begun_with(tmp_path: Path) -> None:
    own, other, begun = tmp_path / "own.json", tmp_path / "other.json", tmp_path / "begun"
    own.write_text("1")
    other.write_text("2")
    begun.mkdir()
    _keep_network(begun, own)
    _refuse_other_network(begun, own)
    for another in (other, None):
        with pytest.raises(DdpprofError, match="started with a different --network"):
            _refuse_other_network(begun, another)


def test_one_begun_without_a_network_goes_on_without(tmp_path: Path) -> None:
    _keep_network(tmp_path, None)
    _refuse_other_network(tmp_path, None)
    (tmp_path / "own").write_text("1")
    with pytest.raises(DdpprofError, match="started with a different --network"):
        _refuse_other_network(tmp_path, tmp_path / "own")
