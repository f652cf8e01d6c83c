"""Read PyTorch's flight-recorder dumps, and find the rank that skipped a collective or called a different collective.

NCCL's watchdog writes one pickle file per rank when a collective times out (``TORCH_NCCL_DUMP_ON_TIMEOUT``). PyTorch
can also write dumps of gloo's collectives, and dumps in JSON format. Dumps are not trusted, so the unpickler creates
only values of built-in types.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import pickletools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import msgspec

from ddpprof.errors import DdpprofError
from ddpprof.files import read_small
from ddpprof.model.hang import Fault, Verdict

_RANK = re.compile(r"(\d{1,7})(?:\.(?:json|pickle|pkl))?$")
_MOST_BYTES = 100 * 10**6
_MOST_FILES = 10_000
_OF_UNEQUAL_SIZES = re.compile(r"all_?to_?all|scatter", re.IGNORECASE)
"""pattern for collectives in which ranks may contribute different amounts of data; in a scatter, for example, only one
rank contributes data
"""
_PUTS = ("PUT", "BINPUT", "LONG_BINPUT")
_MOST_ENTRIES = 1_000_000
_MOST_TENSORS = 1_000_000
"""maximum number of tensors in all collectives of a dump; PyTorch keeps 2,000 collectives"""
_MOST_CHARACTERS_OF_ERROR = 200
_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
_Sizes = Annotated[list[Annotated[int, msgspec.Meta(ge=0, lt=2**48)]], msgspec.Meta(max_length=64)]
_DEFAULT_GROUP = "0"
"""name of the process group of all ranks"""


class DumpedCollective(NamedTuple):
    group: str
    sequence: int
    """sequence number in the process group"""
    name: str
    numel: int
    dtype: str
    created_ns: int

    @property
    def call(self) -> tuple[str, int, str]:
        """Name, number of elements and data type. They must be the same on all ranks of the group."""
        if _OF_UNEQUAL_SIZES.match(self.name):
            return self.name, 0, ""
        return self.name, self.numel, self.dtype

    def __str__(self) -> str:
        return f"{self.name} of {self.numel:,} {self.dtype or 'values'}"


class _PlainValues(pickle.Unpickler):
    """Unpickler that creates only values of built-in types. It never looks up a class."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, but a dump may contain only plain values")


def dumps_in(folder: Path) -> dict[int, Path]:
    """Return, by rank, the files in a folder with names that end in a rank number, such as ``nccl_trace_rank_3``."""
    found = {}
    for path in sorted(folder.iterdir())[:_MOST_FILES]:
        match = _RANK.search(path.name)
        if match is not None and path.is_file():
            found[int(match[1])] = path
    return found


class _Entry(msgspec.Struct, frozen=True):
    """A collective as stored in a dump. Lengths are limited, because a list in a pickle file may contain itself."""

    process_group: tuple[str | int, ...] | None = None
    collective_seq_id: _Number | None = None
    seq_id: _Number = 0
    profiling_name: str = ""
    input_sizes: Annotated[list[_Sizes], msgspec.Meta(max_length=_MOST_TENSORS)] | None = None
    input_dtypes: Annotated[list[str], msgspec.Meta(max_length=_MOST_TENSORS)] | None = None
    is_p2p: bool = False
    time_created_ns: _Number = 0


def read_dump(path: Path) -> tuple[DumpedCollective, ...]:
    """Return the collectives in a dump, oldest first. Raises `DdpprofError` if the file is not a dump."""
    try:
        content = read_small(path, _MOST_BYTES)
        decoded = json.loads(content) if content[:1] == b"{" else _unpickled(content)
        return tuple(_collectives(decoded["entries"]))
    except OSError as error:
        raise DdpprofError(f"{path} cannot be read: {error.strerror}.") from error
    except Exception as error:
        why = " ".join(str(error).split())[:_MOST_CHARACTERS_OF_ERROR]
        raise DdpprofError(f"{path} is not a PyTorch flight-recorder dump: {why}.") from error


def _unpickled(content: bytes) -> Any:
    """Unpickle a dump.

    Memo indices are checked first, because the unpickler allocates memory up to the highest index.
    """
    for number_of_opcodes, (opcode, argument, _) in enumerate(pickletools.genops(content), 1):
        if opcode.name in _PUTS and int(argument or 0) > number_of_opcodes:
            raise pickle.UnpicklingError(f"value {argument:,} follows only {number_of_opcodes:,} others")
    return _PlainValues(io.BytesIO(content)).load()


def _collectives(entries: Sequence[Any]) -> Iterator[DumpedCollective]:
    num_tensors = 0
    for one in entries[:_MOST_ENTRIES]:
        entry = msgspec.convert(one, _Entry, strict=False)
        sizes, dtypes = entry.input_sizes or [[]], entry.input_dtypes or [""]
        num_tensors += len(sizes)
        if num_tensors > _MOST_TENSORS:
            raise ValueError(f"its collectives have more than {_MOST_TENSORS:,} tensors")
        if not entry.is_p2p:
            yield DumpedCollective(
                group=str((entry.process_group or ("",))[0]),
                sequence=entry.seq_id if entry.collective_seq_id is None else entry.collective_seq_id,
                name=entry.profiling_name.rpartition(":")[2],
                numel=sum(map(math.prod, sizes)),
                dtype=dtypes[0],
                created_ns=entry.time_created_ns,
            )


def judge_dumps(ranks: Mapping[int, Sequence[DumpedCollective]]) -> Verdict | None:
    """Return the verdict on the rank at fault; ``None`` if all ranks have called the same collectives.

    A rank that called a different collective than most ranks takes precedence over a rank that called fewer
    collectives.
    """
    by_group = _by_group(ranks)
    differing = map(_first_difference, by_group.values())
    missing = (_first_missing(of, ranks if group == _DEFAULT_GROUP else of) for group, of in by_group.items())
    return next((found for found in (*differing, *missing) if found is not None), None)


def lonely_calls(ranks: Mapping[int, Sequence[DumpedCollective]]) -> dict[str, int]:
    """Return the process groups in which only a single rank called collectives, with the rank's number.

    Dumps do not show which other ranks belong to these groups.
    """
    return {group: next(iter(called)) for group, called in _by_group(ranks).items() if len(called) == 1}


_Numbered = dict[int, dict[int, DumpedCollective]]
"""for one process group: rank → sequence number → collective"""


def _by_group(ranks: Mapping[int, Sequence[DumpedCollective]]) -> dict[str, _Numbered]:
    groups = sorted({one.group for called in ranks.values() for one in called})
    return {group: _of_group(ranks, group) for group in groups}


def _of_group(ranks: Mapping[int, Sequence[DumpedCollective]], group: str) -> _Numbered:
    numbered = {rank: {one.sequence: one for one in called if one.group == group} for rank, called in ranks.items()}
    return {rank: called for rank, called in numbered.items() if called}


def _first_difference(ranks: _Numbered) -> Verdict | None:
    common = sorted(set.intersection(*(set(called) for called in ranks.values()))) if ranks else []
    for number in common:
        calls = Counter(called[number].call for called in ranks.values())
        if len(calls) > 1:
            usual, rarest = calls.most_common()[0][0], calls.most_common()[-1][0]
            blamed = next(rank for rank, called in ranks.items() if called[number].call == rarest)
            others = [rank for rank, called in ranks.items() if called[number].call == usual and rank != blamed]
            detail = (
                f"its collective number {number} is {ranks[blamed][number]}, but on other ranks it is "
                f"{ranks[others[0]][number]}"
            )
            return Verdict(Fault.OTHER_COLLECTIVE, rank=blamed, waiting=tuple(others), detail=detail)
    return None


def _first_missing(ranks: _Numbered, members: Iterable[int]) -> Verdict | None:
    """Return the verdict on the rank of the group that has called the fewest collectives (or none)."""
    last = {rank: max(ranks.get(rank, ()), default=0) for rank in members}
    if not last or min(last.values()) == max(last.values()):
        return None
    blamed = min(last, key=lambda rank: (last[rank], rank))
    ahead = [rank for rank in last if last[rank] > last[blamed]]
    waits_for = next((ranks[rank][last[blamed] + 1] for rank in ahead if last[blamed] + 1 in ranks[rank]), None)
    return Verdict(
        Fault.MISSING_COLLECTIVE,
        rank=blamed,
        waiting=tuple(ahead),
        since_unix_ns=None if waits_for is None or not waits_for.created_ns else waits_for.created_ns,
        detail=None if waits_for is None else f"it is number {last[blamed] + 1}, {waits_for}",
    )
