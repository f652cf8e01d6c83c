"""Horovod timelines: what is a collective, which tensors share it, and what of a damaged file can be read."""

import gzip
import json
from pathlib import Path

import pytest
from shared import TRACES
from timelines import START, begin, cycle, fused, negotiation, tensor, text, together

from ddpprof.errors import BadTrace
from ddpprof.load.horovod_timeline import HorovodTimeline, is_horovod_timeline, load_horovod

TIMELINE = TRACES / "horovod_timeline_2ranks.json"

TWO_FUSED = [
    *tensor(1, "allreduce.a"), *tensor(2, "allreduce.b"),
    *negotiation(1, 10, 30, ticks={0: 10, 1: 29}), *negotiation(2, 11, 31, ticks={1: 12, 0: 30}),
    *together([1, 2], 40, fused(40, (50, 70), 80), 80),
]  # fmt: skip


def loaded(tmp_path: Path, content: str | bytes) -> HorovodTimeline:
    path = tmp_path / "timeline.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert is_horovod_timeline(path)
    return load_horovod(path)


def test_a_collective_of_two_tensors(tmp_path: Path) -> None:
    made = loaded(tmp_path, text(cycle(5), *TWO_FUSED, cycle(90)))
    assert (made.backend, made.world_size, made.cycles_ns, made.notes) == ("gloo", 2, (5000, 90_000), ())
    a, b = made.ops
    assert (a.tensor, a.is_reduction, b.tensor) == ("allreduce.a", True, "allreduce.b")
    assert (a.negotiated, a.start_ns, a.end_ns) == ((10_000, 30_000), 40_000, 80_000)
    assert (a.ready_ns, b.ready_ns) == ({0: 10_000, 1: 29_000}, {1: 12_000, 0: 30_000})
    assert a.copies == [(41_000, 50_000), (70_000, 79_000)]
    assert a.collectives == [(50_000, 70_000)]


def test_unknown_phases_count_as_other_work(tmp_path: Path) -> None:
    phases = [("INIT_NCCL", 1, 2), ("QUEUE", 2, 3), ("WAIT_FOR_DATA", 3, 4), ("SOMETHING_NEW", 4, 5),
              ("NCCL_REDUCESCATTER", 5, 6), ("MEMCPY_IN_HOST_BUFFER", 6, 7), ("MPI_CROSS_ALLGATHER", 7, 8)]  # fmt: skip
    made = loaded(tmp_path, text(*tensor(1, "a"), *together([1], 0, phases, 9, shape=None, kind="NOVELTY")))
    (op,) = made.ops
    assert (op.copies, op.collectives, op.is_reduction) == ([(6000, 7000)], [(5000, 6000), (7000, 8000)], False)


WHOLE = text(*TWO_FUSED, *negotiation(1, 90, 95), begin(1, "ALLREDUCE", 96))


@pytest.mark.parametrize(
    ("content", "notes"),
    [
        pytest.param(WHOLE, ["left out"], id="an-op-goes-on"),
        pytest.param(WHOLE[:-1], ["left out"], id="array-not-closed"),
        pytest.param(WHOLE[:-1] + ",\n", ["left out"], id="comma-at-the-end"),
        pytest.param(WHOLE[:-9], ["cut off"], id="half-an-event"),
        pytest.param(WHOLE[:-1] + ',{"ph": "B", "name": "NEGOTIATE_ALL}", "ts"', ["cut off", "left out"],
                     id="a-brace-in-half-an-event"),
        pytest.param(WHOLE.replace("allreduce.a", "a\\x\x01"), ["left out"], id="names-that-no-json-has"),
        pytest.param(b"\n " + WHOLE.encode(), ["left out"], id="blanks-before-it"),
        pytest.param(gzip.compress(WHOLE.encode()), ["left out"], id="compressed"),
    ],
)  # fmt: skip
def test_what_is_whole_is_read(content: str | bytes, notes: list[str], tmp_path: Path) -> None:
    made = loaded(tmp_path, content)
    assert [op.end_ns for op in made.ops] == [80_000, 80_000]
    assert len(made.notes) == len(notes)
    assert all(part in note for part, note in zip(notes, made.notes, strict=True))


def test_an_op_that_never_ends_does_not_swallow_the_next(tmp_path: Path) -> None:
    torn = [begin(1, "ALLREDUCE", 1), begin(1, "GLOO_ALLREDUCE", 2)]
    made = loaded(tmp_path, text(*tensor(1, "a"), *torn, *negotiation(1, 10, 12), *together([1], 13, [], 20)))
    assert [(op.start_ns, op.end_ns, op.collectives) for op in made.ops] == [(13_000, 20_000, [])]
    assert made.notes == ("left out: 1 collectives that do not end within the timeline",)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(text(cycle(1)), "no collective finishes", id="nothing-in-it"),
        pytest.param(text(*tensor(1, "a"), {"ph": "B", "name": "ALLREDUCE", "ts": "soon", "pid": 1}), "ts", id="words"),
        pytest.param(text(*tensor(1, "a"), {"ph": "B", "name": "ALLREDUCE", "ts": 1 << 60, "pid": 1}), "no collective",
                     id="times-of-no-clock"),
        pytest.param(text()[:-1] + ',{"name": "process_name", "args": {"name": "a"b"}}, {"ph"', "no collective",
                     id="a-quote-in-a-name"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_line(content: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=says) as error:
        loaded(tmp_path, content)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(json.dumps([{"ph": "B", "name": "x", "ts": 1, "pid": 1}]), id="another-tool"),
        pytest.param(json.dumps({"traceEvents": START}), id="an-object"),
        pytest.param("", id="empty"),
        pytest.param("\x1f\x8b", id="half-a-gzip"),
    ],
)
def test_other_files_are_no_timelines(content: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content.encode("latin-1"))
    assert not is_horovod_timeline(path)


@pytest.mark.skipif(not TIMELINE.exists(), reason="the traces of others are not part of the project: no ../shared")
def test_a_real_timeline() -> None:
    made = load_horovod(TIMELINE)
    assert (made.backend, made.world_size, len(made.ops), len(made.cycles_ns)) == ("gloo", 2, 56, 1158)
    assert sum(bool(op.ready_ns) for op in made.ops) == 16
    assert made.notes == ()


@pytest.mark.skipif(not TIMELINE.exists(), reason="the traces of others are not part of the project: no ../shared")
@pytest.mark.parametrize("kept", [90_002, 97_001, 103_003])
def test_a_real_timeline_that_is_cut_off(kept: int, tmp_path: Path) -> None:
    whole, cut = load_horovod(TIMELINE), loaded(tmp_path, TIMELINE.read_bytes()[:kept])
    assert 8 <= len(cut.ops) < len(whole.ops)
    assert all(op in whole.ops for op in cut.ops)
