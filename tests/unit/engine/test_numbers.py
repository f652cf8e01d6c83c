"""What is made of declared numbers: columns, metrics, and whose time each field is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

from ddpprof.engine.numbers import DEVICE, HOST, Clock, Number, Part, clocks_of, declared_in, metrics_of


@dataclass(frozen=True, slots=True)
class Parts:
    forward_ns: Annotated[int, Number("forward", metric="forward")]
    counted: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    number: Annotated[int, Number("number of the step", column="step")]
    length_ns: Annotated[float | None, Number("length", DEVICE, metric="step")]
    parts: Annotated[Parts | None, Part("part_", "of the model", HOST)]
    is_whole: Annotated[bool, Number("whether all of it is there")] = True


@dataclass(frozen=True, slots=True)
class Job:
    steps: tuple[Step, ...]
    others: tuple[Step, ...] | None
    waited: Annotated[tuple[int, ...], HOST] = ()
    name: str = ""


WHOLE = Step(3, 7.5, Parts(2))


def test_columns_are_those_of_the_row_and_its_parts_in_order() -> None:
    columns = declared_in(Step)
    assert [(one.column, one.kind) for one in columns] == [
        ("step", int), ("length_ns", float), ("part_forward_ns", int), ("is_whole", bool),
    ]  # fmt: skip
    assert [one.meaning for one in columns][2] == "forward of the model"
    assert [one.value(WHOLE) for one in columns] == [3, 7.5, 2, True]


def test_what_is_absent_has_no_value() -> None:
    assert [one.value(Step(3, None, None)) for one in declared_in(Step)] == [3, None, None, True]


def test_metrics_reach_into_parts() -> None:
    assert {name: one.value(WHOLE) for name, one in metrics_of(Step).items()} == {"step": 7.5, "forward": 2}


def test_clocks_are_by_the_path_in_json() -> None:
    assert clocks_of(Job) == {
        "steps[].length_ns": Clock.DEVICE,
        "steps[].parts": Clock.HOST,
        "others[].length_ns": Clock.DEVICE,
        "others[].parts": Clock.HOST,
        "waited": Clock.HOST,
    }


def test_declarations_change_nothing_of_what_is_written_and_read() -> None:
    job = Job((WHOLE,), None)
    assert msgspec.json.decode(msgspec.json.encode(job), type=Job) == job
