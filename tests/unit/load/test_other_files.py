"""Times that were measured elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpprof.errors import BadTrace
from ddpprof.load.rank import load_times


def test_columns_are_configurations_and_rows_sizes(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("batch, one ,two\n8,1.5,2\n\n16,3,\n8,1.25,2\n", encoding="utf-8")
    table = load_times(path)
    assert table.varied == "batch"
    assert table.times_ns == {"one": {8.0: (1.5e9, 1.25e9), 16.0: (3e9,)}, "two": {8.0: (2e9, 2e9)}}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("", "not a table of times", id="empty"),
        pytest.param("batch,one\n", "not a table of times", id="only-names"),
        pytest.param("batch\n1\n", "not a table of times", id="one-column"),
        pytest.param("batch,one\n1,2,3\n", "line 2 has 3 columns, not 2", id="ragged"),
        pytest.param("batch,one\n1,fast\n", "line 2: 'fast' is not a number", id="word"),
        pytest.param("batch,one\n\n1,2\n\n2,fast\n", "line 5: 'fast' is not a number", id="word-after-empty-lines"),
        pytest.param("batch,one\n1,nan\n", "'nan' is not a number", id="nan"),
        pytest.param("batch,one\n0,1\n", "'0' is not a number above 0", id="zero"),
        pytest.param("batch,one\n1,-2\n", "'-2' is not a number above 0", id="negative"),
        pytest.param("batch,one\n1,1e999\n", "'1e999' is not a number", id="infinite"),
        pytest.param("batch,one\n1e300,1\n", "'1e300' is not between 1e-12 and", id="overflows"),
        pytest.param("batch,one\n1,1e-300\n", "'1e-300' is not between", id="underflows"),
    ],
)
def test_what_is_no_table_is_said_in_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "times.csv"
    path.write_text(text)
    with pytest.raises(BadTrace, match=complaint) as caught:
        load_times(path)
    assert "\n" not in str(caught.value)


def test_the_mark_with_which_spreadsheets_begin_a_file_is_no_part_of_a_name(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("batch,one\n8,1.5\n", encoding="utf-8-sig")
    assert load_times(path).varied == "batch"


def test_bytes_are_no_table(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_bytes(b"\xff\xfe\x00a,b")
    with pytest.raises(BadTrace, match="cannot be read"):
        load_times(path)
