"""The files of one rank."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

import msgspec
from msgspec import structs

from ddpprof import __version__, own_files, profiled_ranks, rundir
from ddpprof.errors import RunExists
from ddpprof.model import Record, RecordedStep
from ddpprof.model.run_file import RunFile
from ddpprof.record import attempts
from ddpprof.record.settings import Settings
from ddpprof.record.trace_file import TraceFile
from ddpprof.redaction import words_without_secrets

_NOT_SHOWN = ("out", "command", "launched_unix_s", "agent")


def open_run(settings: Settings, run_id: str, world_size: int) -> Path:
    """Create the run directory, or an attempt's folder in it, with its ``run.json``. Rank 0 calls this.

    Raises ``OSError`` and ``RunExists``.
    """
    directory = Path(settings.out).absolute()
    own_files.make_named_folder(directory)
    attempt = attempts.next_attempt(directory, settings)
    if attempt:
        directory /= rundir.attempt_directory(attempt)
        own_files.make_folder(directory)
    else:
        _refuse_second_job(directory, settings.launched_unix_s)
        refuse_earlier_run(directory, settings.force)
        rundir.remove_run(directory)
    about = _about_first_part(settings, run_id, world_size)
    write_run_file(directory, structs.replace(about, attempt=attempt, elastic=attempts.describe(settings)))
    return directory


def open_capture(directory: Path, settings: Settings, run_id: str, world_size: int) -> None:
    """Create the folder of a capture with its ``run.json``. Rank 0 calls this. Raises ``OSError``."""
    own_files.make_folder(directory)
    rundir.remove_run(directory)
    write_run_file(directory, _about_first_part(settings, run_id, world_size))


def _about_first_part(settings: Settings, run_id: str, world_size: int) -> RunFile:
    shown = {key: value for key, value in dataclasses.asdict(settings).items() if key not in _NOT_SHOWN}
    shown["recorded_with"] = words_without_secrets(settings.recorded_with)
    return structs.replace(about_run(settings, run_id, world_size), settings=shown)


def about_run(settings: Settings, run_id: str, world_size: int) -> RunFile:
    """Return the common content of every ``run.json`` of a run, including those of parts."""
    return RunFile(
        format=rundir.FORMAT,
        run_id=run_id,
        ddpprof=__version__,
        created_unix_s=time.time(),
        command=words_without_secrets(settings.command),
        world_size=world_size,
        profiled_ranks=profiled_ranks.rule(world_size, settings.profile_ranks) if settings.profiler else None,
    )


def write_run_file(directory: Path, about: RunFile) -> None:
    """Write ``run.json``. Raises ``OSError``."""
    rundir.write_json(directory / rundir.RUN_FILE, msgspec.to_builtins(about))


def refuse_earlier_run(directory: Path, force: bool) -> None:
    """Raise ``RunExists`` if `directory` holds a run that must not be replaced."""
    if directory.is_dir() and (rundir.is_run(directory) or rundir.ranks_in(directory)) and not force:
        raise RunExists(f"{directory} holds an earlier run. Choose another --out, or replace it with --force.")


def _refuse_second_job(directory: Path, launched_unix_s: float | None) -> None:
    """Raise ``RunExists`` if the command that was launched then has recorded a job into `directory`."""
    first = rundir.read_json(directory / rundir.RUN_FILE, RunFile) if rundir.is_run(directory) else None
    if first is None or first.created_unix_s is None or launched_unix_s is None:
        return
    if first.created_unix_s >= launched_unix_s:
        raise RunExists(f"the command trains more than one job: only the first is recorded, in {directory}.")


class LastStep:
    """How many steps this rank has finished, in a file that is rewritten after every step, or by `PulseKeeper`.

    The operating system has the number at once, so it outlives a process that is killed. The file is not mapped into
    memory: truncating it would end the training with SIGBUS. Every method raises ``OSError``.
    """

    def __init__(self, path: Path) -> None:
        self._file = own_files.overwrite(path)

    def is_over(self, num_steps: int, ended_ns: int) -> None:
        """Note that there are now `num_steps`, of which the last ended at `ended_ns`."""
        rundir.write_last_step(self._file, num_steps, ended_ns)

    def close(self) -> None:
        os.close(self._file)


class RankOutput:
    """``facts.json``, ``steps.jsonl``, ``last_step`` and losses of one rank. Every method raises ``OSError``."""

    def __init__(self, directory: Path, rank: int) -> None:
        self.directory = directory
        self._rank = rank
        self.trace = TraceFile(directory, rank)
        self._steps = os.fdopen(own_files.overwrite(directory / rundir.steps_file(rank)), "wb")
        self._encode = msgspec.json.Encoder().encode
        self.last_step = LastStep(directory / rundir.last_step_file(rank))

    def write_facts(self, record: Record) -> None:
        """Write all that is known of the rank except its steps, which have a file of their own."""
        facts = {"format": rundir.FORMAT, **msgspec.structs.asdict(record)}
        rundir.write_json(self.directory / rundir.facts_file(self._rank), msgspec.to_builtins(facts))

    def write_losses(self, losses: list[list[str]]) -> None:
        rundir.write_json(self.directory / rundir.losses_file(self._rank), losses)

    def append_step(self, step: RecordedStep) -> None:
        """Append one flushed line, which survives the death of this process.

        The step ends when all but its end, the last field, is encoded, so that this cost is part of the step.
        """
        line = self._encode(step).removesuffix(b"0}")
        self._steps.write(b"%b%d}\n" % (line, time.time_ns()))
        self._steps.flush()

    def close(self) -> None:
        self._steps.close()
        self.last_step.close()
