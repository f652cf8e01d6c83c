"""Damaged traces, run directories and reports give a report or one clear error, in bounded time and memory."""

import multiprocessing
from pathlib import Path

import mutants_of_files
import pytest
from mutants import complaints

SAMPLE = Path(__file__).parents[3] / "sample_traces" / "convnet-gloo-2ranks"
NUM_MUTANTS = 5_000
PART = 2_500


def complaints_in_processes(parts: list[range]) -> list[str]:
    with multiprocessing.get_context("spawn").Pool(2, maxtasksperchild=1) as pool:
        return [text for found in pool.starmap(complaints, [(part, SAMPLE) for part in parts]) for text in found]


def test_a_few_hundred_mutants_are_read_or_refused() -> None:
    assert complaints_in_processes([range(150), range(150, 300)]) == []


@pytest.mark.long
def test_thousands_of_mutants_are_read_or_refused() -> None:
    parts = [range(begin, begin + PART) for begin in range(0, NUM_MUTANTS, PART)]
    assert complaints_in_processes(parts) == []


@pytest.mark.long
def test_the_originals_of_other_files_are_read(tmp_path: Path) -> None:
    for kept in mutants_of_files.make_files(tmp_path):
        expected = 1 if kept.command[0] == "diagnose" else 0  # a rank is behind in the dumps
        assert mutants_of_files.ended(kept.command)[0] == expected, kept.path


def test_a_hundred_mutants_of_other_files_are_read_or_refused() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(mutants_of_files.complaints, [range(105)]) == [[]]


@pytest.mark.long
def test_a_thousand_mutants_of_other_files_are_read_or_refused() -> None:
    with multiprocessing.get_context("spawn").Pool(2, maxtasksperchild=1) as pool:
        assert pool.map(mutants_of_files.complaints, [range(500), range(500, 1000)], chunksize=1) == [[], []]
