"""Dumps of torch's flight recorder."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from ddpprof.errors import DdpprofError
from ddpprof.model.hang import Fault
from ddpprof.monitor.flight_dumps import DumpedCollective, dumps_in, judge_dumps, lonely_calls, read_dump


def called(*names: str, group: str = "0", numel: int = 8) -> tuple[DumpedCollective, ...]:
    return tuple(
        DumpedCollective(group, number, name, numel, "Float", 100 + number) for number, name in enumerate(names, 1)
    )


THREE = called("all_reduce", "all_reduce", "barrier")


def test_equal_calls_give_no_verdict() -> None:
    assert judge_dumps({0: THREE, 1: THREE}) is None
    assert judge_dumps({}) is None


def test_the_rank_that_called_fewer() -> None:
    verdict = judge_dumps({0: THREE, 1: THREE[:1], 2: THREE})
    assert verdict is not None
    assert (verdict.fault, verdict.rank, verdict.waiting) == (Fault.MISSING_COLLECTIVE, 1, (0, 2))
    assert (verdict.detail, verdict.since_unix_ns) == ("it is number 2, all_reduce of 8 Float", 102)


def test_the_rank_that_called_another() -> None:
    verdict = judge_dumps({0: THREE, 1: called("all_reduce", "broadcast", "barrier"), 2: THREE})
    assert verdict is not None
    assert (verdict.fault, verdict.rank, verdict.waiting) == (Fault.OTHER_COLLECTIVE, 1, (0, 2))
    assert (
        verdict.detail
        == "its collective number 2 is broadcast of 8 Float, but on other ranks it is all_reduce of 8 Float"
    )


def test_another_size_is_another_call() -> None:
    verdict = judge_dumps({0: THREE, 1: THREE, 2: called("all_reduce", "all_reduce", "barrier", numel=9)})
    assert verdict is not None
    assert (verdict.fault, verdict.rank) == (Fault.OTHER_COLLECTIVE, 2)


@pytest.mark.parametrize("name", ["all_to_all", "alltoall_base", "scatter"])
def test_amounts_may_differ_where_each_rank_gives_its_own(name: str) -> None:
    calls = {0: called("all_reduce", name, numel=300), 1: (*called("all_reduce", numel=300), *called("", name)[1:])}
    assert judge_dumps(calls) is None
    verdict = judge_dumps({**calls, 0: (*called("all_reduce", name, "all_reduce", numel=300),)})
    assert verdict is not None
    assert (verdict.fault, verdict.rank) == (Fault.MISSING_COLLECTIVE, 1)


def test_a_rank_that_called_nothing_is_missing() -> None:
    verdict = judge_dumps({0: THREE, 1: ()})
    assert verdict is not None
    assert (verdict.fault, verdict.rank, verdict.waiting) == (Fault.MISSING_COLLECTIVE, 1, (0,))


def test_another_collective_comes_before_a_rank_that_called_nothing() -> None:
    verdict = judge_dumps({0: THREE, 1: called("all_reduce", "broadcast", "barrier"), 2: THREE, 3: ()})
    assert verdict is not None
    assert (verdict.fault, verdict.rank) == (Fault.OTHER_COLLECTIVE, 1)


def test_a_group_in_which_one_rank_called_is_named() -> None:
    pair = called("all_gather", group="1")
    assert lonely_calls({0: (*THREE, *pair), 1: THREE}) == {"1": 0}
    assert lonely_calls({0: (*THREE, *pair), 1: (*THREE, *pair)}) == {}


def test_groups_are_compared_among_their_own_ranks() -> None:
    pair = called("all_gather", group="1")
    assert judge_dumps({0: (*THREE, *pair), 1: (*THREE, *pair), 2: THREE}) is None


ENTRY: dict[str, Any] = {
    "process_group": ["0", "default_pg"],
    "collective_seq_id": 4,
    "profiling_name": "nccl:all_reduce",
    "input_sizes": [[2, 3], [4]],
    "input_dtypes": ["Float"],
    "time_created_ns": 7,
    "is_p2p": False,
}


@pytest.mark.parametrize("encode", [lambda dump: json.dumps(dump).encode(), pickle.dumps], ids=["json", "pickle"])
def test_both_forms_are_read(encode: Any, tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_3"
    path.write_bytes(encode({"version": "2.9", "entries": [ENTRY, {**ENTRY, "is_p2p": True}]}))
    assert read_dump(path) == (DumpedCollective("0", 4, "all_reduce", 10, "Float", 7),)


class Harmful:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch harmed",)


def shared(depth: int) -> list[Any]:
    """Return lists within lists, each of which has the next one ten times: a pickle of some bytes, 10**depth items."""
    made: list[Any] = [0]
    for _ in range(depth):
        made = [made] * 10
    return made


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(pickle.dumps({"entries": [{**ENTRY, "profiling_name": shared(30)}]}), id="shared-lists-as-name"),
        pytest.param(pickle.dumps({"entries": [{**ENTRY, "input_sizes": shared(30)}]}), id="shared-lists-as-sizes"),
        pytest.param(pickle.dumps({"entries": [{**ENTRY, "process_group": shared(30)}]}), id="shared-lists-as-group"),
        pytest.param(pickle.dumps({"entries": shared(30)}), id="shared-lists-as-entries"),
        pytest.param(pickle.dumps({"entries": [{**ENTRY, "input_sizes": [[1]] * 10_000}] * 10_000}), id="shared-sizes"),
        pytest.param(
            json.dumps({"entries": [{**ENTRY, "input_sizes": [[10**18] * 150_000]}]}).encode(), id="huge-sizes"
        ),
        pytest.param(json.dumps({"entries": [{**ENTRY, "seq_id": 10**400}]}).encode(), id="huge-number"),
        pytest.param(b'{"entries": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="nested"),
        pytest.param(b"\x80\x02}r\xff\xff\xff\x7f.", id="a-value-of-a-huge-number"),
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="cut-off-json"),
        pytest.param(b"{}", id="no-entries"),
        pytest.param(b'{"entries": [1]}', id="no-dictionaries"),
        pytest.param(pickle.dumps({"entries": [Harmful()]}), id="runs-a-program"),
        pytest.param(pickle.dumps({"entries": [Path("x")]}), id="makes-an-object"),
        pytest.param(os.urandom(1000), id="random"),
    ],
)
def test_files_of_strangers_do_no_harm(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "dump_0"
    path.write_bytes(content)
    with pytest.raises(DdpprofError, match="dump_0 is not a PyTorch flight-recorder dump") as caught:
        read_dump(path)
    assert len(str(caught.value)) < 1_000
    assert not (tmp_path / "harmed").exists()


def test_ranks_are_the_last_numbers_of_the_names(tmp_path: Path) -> None:
    for name in ("nccl_trace_rank_0", "nccl_trace_rank_12", "dump3.json", "readme.txt"):
        (tmp_path / name).touch()
    assert {rank: path.name for rank, path in dumps_in(tmp_path).items()} == {
        0: "nccl_trace_rank_0",
        3: "dump3.json",
        12: "nccl_trace_rank_12",
    }
