"""The files of one rank."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any, TextIO

from ddpprof import __version__, own_files, profiled_ranks, rundir
from ddpprof.errors import RunExists
from ddpprof.record import attempts
from ddpprof.record.last_step import LastStep
from ddpprof.record.settings import Settings
from ddpprof.record.trace_file import TraceFile
from ddpprof.redaction import words_without_secrets

_NOT_SHOWN = ("out", "command", "launched_unix_s", "agent")


def open_run(settings: Settings, run_id: str, world_size: int) -> Path:
    """Create the run directory, or that of a further attempt in it, with its ``run.json``. Called by rank 0.

    Raises ``OSError`` and ``RunExists``.
    """
    directory = Path(settings.out).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    attempt = attempts.next_attempt(directory, settings)
    if attempt:
        directory /= rundir.attempt_directory(attempt)
        directory.mkdir(exist_ok=True)
    else:
        refuse_earlier_run(directory, settings.force)
        rundir.remove_run(directory)
    shown = {key: value for key, value in dataclasses.asdict(settings).items() if key not in _NOT_SHOWN}
    shown["recorded_with"] = words_without_secrets(settings.recorded_with)
    more = {"settings": shown, "attempt": attempt, "elastic": attempts.describe(settings)}
    rundir.write_json(directory / rundir.RUN_FILE, {**about_run(settings, run_id, world_size), **more})
    return directory


def about_run(settings: Settings, run_id: str, world_size: int) -> dict[str, Any]:
    """Return what every ``run.json`` of a run says, that of a part as well."""
    return {
        "format": rundir.FORMAT,
        "run_id": run_id,
        "ddpprof": __version__,
        "created_unix_s": time.time(),
        "command": words_without_secrets(settings.command),
        "world_size": world_size,
        "profiled_ranks": profiled_ranks.rule(world_size, settings.profile_ranks) if settings.profiler else None,
    }


def refuse_earlier_run(directory: Path, force: bool) -> None:
    """Raises ``RunExists`` where `directory` holds a run and may not be replaced."""
    if directory.is_dir() and (rundir.is_run(directory) or rundir.ranks_in(directory)) and not force:
        raise RunExists(f"{directory} holds an earlier run. Choose another --out, or replace it with --force.")


class RankFiles:
    """``facts.json``, ``steps.jsonl``, ``last_step`` and losses of one rank. Every method raises ``OSError``."""

    def __init__(self, directory: Path, rank: int) -> None:
        self.directory = directory
        self._rank = rank
        self.trace = TraceFile(directory, rank)
        self._steps: TextIO = os.fdopen(own_files.overwrite(directory / rundir.steps_file(rank)), "w", encoding="utf-8")
        self.last_step = LastStep(directory / rundir.last_step_file(rank))

    def write_facts(self, facts: dict[str, Any]) -> None:
        rundir.write_json(self.directory / rundir.facts_file(self._rank), facts)

    def write_losses(self, losses: list[list[str]]) -> None:
        rundir.write_json(self.directory / rundir.losses_file(self._rank), losses)

    def append_step(self, fields: dict[str, Any], start_ns: int) -> int:
        """When it ended. One line, handed to the operating system at once: it survives the death of this process.

        The step ends here, when all but its times is encoded, so that the cost of that falls in it.
        """
        self._steps.write(f"{json.dumps(fields)[:-1]}, ")
        end_ns = time.time_ns()
        self._steps.write(f'"start_ns": {start_ns}, "end_ns": {end_ns}}}\n')
        self._steps.flush()
        return end_ns

    def close(self) -> None:
        self._steps.close()
        self.last_step.close()
