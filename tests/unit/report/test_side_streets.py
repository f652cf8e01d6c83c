"""What side streets name on the main road is there."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import ddpprof
from ddpprof.report import Report
from ddpprof.report.side_streets import SIDE_STREETS, BesideDdp
from ddpprof.side_street import SideStreet


@pytest.mark.parametrize("street", SIDE_STREETS, ids=lambda street: street.report_field)
def test_the_main_road_has_what_it_names(street: SideStreet[Any, Any]) -> None:
    assert (Path(ddpprof.__file__).parent / street.folder).is_dir()
    assert street.report_field in {field.name for field in fields(Report)}
    assert (street.report_field in {field.name for field in fields(BesideDdp)}) is (street.of_rank is not None)
    assert (street.of_rank is None) is (street.of_ranks is None)
    assert (street.of_file is None) is (street.file is None)
