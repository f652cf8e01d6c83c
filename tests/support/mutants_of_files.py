"""Every other file that ddpprof reads, damaged at random and opened by the command line, like a stranger's file.

A mutant is determined by its number. To look at some: python tests/support/mutants_of_files.py FIRST LAST
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
import resource
import shutil
import sys
import tempfile
import traceback
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
from experiments import choice, planned
from mutants import MEMORY_BYTES, in_time, mutant
from netbenches import netbench
from timelines import cycle, fused, negotiation, tensor, text, together

from ddpprof.experiments.plan import (
    CHOICE_FILE,
    EXPERIMENT_FILE,
    TRIAL_FILE,
    ExperimentKind,
    TrialEnd,
    Variant,
    write_plan,
)
from ddpprof.predict.candidates import Candidate, Forecast

CHECKOUT = Path(__file__).parents[2]
SAMPLE = CHECKOUT / "sample_traces" / "convnet-gloo-2ranks"
OVERHEAD = CHECKOUT / "analyses" / "wrapper_overhead" / "recordings" / "layers"
ONE_LINE = 1_000
"""number of characters that a message may have"""


@dataclass(frozen=True)
class Kept:
    """A file to damage, with the command that reads it."""

    path: Path
    command: tuple[str, ...]
    original: bytes

    @classmethod
    def at(cls, path: Path, *command: str | Path) -> Kept:
        return cls(path, tuple(map(str, command)), path.read_bytes())


def horovod_timeline() -> str:
    shared = together((1, 2), 40, fused(40, (50, 70), 90), 100)
    return text(*tensor(1, "a"), *tensor(2, "b"), cycle(5), *negotiation(1, 10, 30, ticks={0: 12, 1: 25}),
                *negotiation(2, 11, 31, ticks={0: 13, 1: 26}), *shared, cycle(120))  # fmt: skip


def _network() -> dict[str, Any]:
    """Of two ranks, with what computation loses beside communication."""
    sizes = (1_000, 100_000, 1_000_000, 4_000_000)
    cpu: dict[str, Any] = {"cpu_ns": [100_000, 200_000]}
    return netbench(
        world_size=2,
        hosts=["a", "a"],
        sizes=[
            {"num_bytes": size, "longest_ns": [size + 90_000] * 2, "shortest_ns": [size + 80_000] * 2, **cpu}
            for size in sizes
        ],
        concurrent=[
            {"num_bytes": size, "both_ns": [2 * size], "alone_ns": [size + 90_000], **cpu} for size in sizes[2:]
        ],
        beside=[{"num_bytes": size, "taken_ns": [size, size + 9], "lasted_ns": [9 * size] * 2} for size in sizes[2:]],
    )


def _run(folder: Path) -> Path:
    shutil.copytree(SAMPLE, folder)
    return folder


def _tuning(folder: Path) -> Path:
    """The job as it is and two other settings, each tried twice."""
    folder.mkdir()
    _run(folder / "profile")
    variants = (Variant(2), Variant(2, "bucket_cap_mb=5"), Variant(2, "bucket_cap_mb_list=[0.25, 5]"))
    plan = planned(ExperimentKind.TUNE, *variants, rounds=2)
    write_plan(folder, plan)
    chosen = choice(
        Candidate({"bucket_cap_mb": 5}, None, Forecast(78, 70, 86), 6),
        Candidate({"bucket_cap_mb_list": [0.25, 5]}, None, Forecast(78, 70, 86), 7),
    )
    (folder / CHOICE_FILE).write_bytes(msgspec.json.encode(chosen))
    for trial in plan.trials():
        _run(folder / trial.name)
        (folder / trial.name / TRIAL_FILE).write_bytes(
            msgspec.json.encode(TrialEnd(exit_code=0, seconds=9.5, problem=None))
        )
        for rank in range(2):
            losses = json.dumps([[float(step).hex()] for step in range(8)])
            (folder / trial.name / f"rank-{rank}.losses.json").write_text(losses)
    return folder


def _flight_dumps(folder: Path) -> dict[str, Path]:
    """Return a dump as a pickle and as JSON, each in a folder of its own, beside that of a rank that is behind."""
    written = {}
    for form, encode in {"pickle": pickle.dumps, "json": lambda dump: json.dumps(dump).encode()}.items():
        (folder / form).mkdir(parents=True)
        for rank in range(2):
            path = folder / form / f"nccl_trace_rank_{rank}"
            path.write_bytes(encode({"version": "2.4", "entries": [_dumped(number) for number in range(1, 6 - rank)]}))
        written[form] = path
    return written


def _dumped(number: int) -> dict[str, Any]:
    return {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": number,
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[1024, 8], [3]],
        "input_dtypes": ["Float", "Float"],
        "time_created_ns": 1_000 + number,
        "is_p2p": False,
    }


def make_files(folder: Path) -> list[Kept]:
    run, tuning, overhead = _run(folder / "run"), _tuning(folder / "tuning"), folder / "overhead"
    shutil.copytree(OVERHEAD, overhead, ignore=shutil.ignore_patterns("*.trace.json.gz"))
    timeline, network, table = folder / "timeline.json", folder / "network.json", folder / "times.csv"
    timeline.write_text(horovod_timeline())
    network.write_text(json.dumps(_network()))
    table.write_text("batch,one,two\n" + "".join(f"{size},{size / 9},{size / 7}\n" for size in (8, 16, 32, 64, 128)))
    exits, last_step = run / "exits.jsonl", run / "rank-0.last_step"
    exits.write_text('{"exit_code": 1, "host": "a", "pid": 7, "rank": 0, "unix_ns": 5}\n' * 2)
    last_step.write_bytes(bytes(range(16)))
    trial = overhead / "trial-0-0"
    dumps = _flight_dumps(folder / "dumps")
    return [
        *(Kept.at(path, "diagnose", path.parent) for path in dumps.values()),
        Kept.at(timeline, "report", timeline),
        Kept.at(network, "whatif", SAMPLE, "--network", network, "--bucket-cap-mb", "5"),
        Kept.at(table, "report", table),
        Kept.at(overhead / EXPERIMENT_FILE, "report", overhead),
        Kept.at(trial / TRIAL_FILE, "report", overhead),
        Kept.at(trial / "rank-0.facts.json", "report", overhead),
        Kept.at(tuning / EXPERIMENT_FILE, "report", tuning),
        Kept.at(tuning / CHOICE_FILE, "report", tuning),
        Kept.at(tuning / "trial-0-1" / "rank-1.losses.json", "report", tuning),
        Kept.at(tuning / "trial-1-0" / TRIAL_FILE, "report", tuning),
        Kept.at(exits, "report", run, "--no-cache", "--jobs", "1"),
        Kept.at(last_step, "report", run, "--no-cache", "--jobs", "1"),
        Kept.at(run / "rank-0.facts.json", "report", run, "--no-cache", "--jobs", "1", "--full"),
        Kept.at(run / "rank-0.steps.jsonl", "report", run, "--no-cache", "--jobs", "1"),
        Kept.at(run / "rank-1.facts.json", "whatif", run, "--bucket-cap-mb", "1,5"),
        Kept.at(run / "rank-1.facts.json", "timeline", run, "--out", folder / "timeline.perfetto.json"),
        Kept.at(run / "rank-1.steps.jsonl", "compare", SAMPLE, run),
    ]


def complaint(kept: Kept, number: int) -> str | None:
    """Return what is wrong with the command's handling of a mutant, or of a whole file's beginning."""
    damaged = mutant(kept.original, number)
    if random.Random(number).random() < 0.02:
        damaged = gzip.compress(damaged)
    kept.path.write_bytes(damaged)
    try:
        return complaint_about(kept.command, number)
    finally:
        kept.path.write_bytes(kept.original)


def complaint_about(command: tuple[str, ...], number: int) -> str | None:
    try:
        with in_time():
            code, said, message = ended(command)
    except BaseException as error:  # noqa: BLE001 -- whatever it is, it is the find
        return f"{number}: {command}: {''.join(traceback.format_exception(error)[-6:])}"
    allowed = (0, 1, 2) if command[0] == "diagnose" else (0, 2)
    if code not in allowed or (code == 2 and not 0 < len(message) <= ONE_LINE):
        return f"{number}: {command}: exit code {code}, {len(message)} characters: {message:.300}"
    if any(ord(character) < 32 and character not in "\n\t" for character in said + message):
        return f"{number}: {command}: characters that steer a terminal"
    return None


def ended(command: tuple[str, ...]) -> tuple[int, str, str]:
    """Return the exit code of a command in this process, what it printed, and its errors."""
    from ddpprof.cli import main

    said, errors = StringIO(), StringIO()
    with redirect_stdout(said), redirect_stderr(errors):
        code = main([*command])
    return code, said.getvalue(), errors.getvalue().strip()


def complaints(numbers: range) -> list[str]:
    """Return the complaints about these mutants; to be run in a process of its own.

    It limits memory and sets an empty home.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOME"] = os.environ["XDG_CACHE_HOME"] = os.environ["XDG_CONFIG_HOME"] = folder
        inputs = Path(folder) / "files"
        inputs.mkdir()
        files = make_files(inputs)
        found = (complaint(files[number % len(files)], number) for number in numbers)
        return [text for text in found if text is not None]


if __name__ == "__main__":
    first, last = int(sys.argv[1]), int(sys.argv[-1])
    for line in complaints(range(first, last + 1)):
        print(line)
    os._exit(0)
