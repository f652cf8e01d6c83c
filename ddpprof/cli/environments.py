"""`ddpprof compare --env OLD NEW train.py`: record one job in two Python environments."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ddpprof import own_files
from ddpprof.child_processes import start
from ddpprof.cli.experiments import in_minutes, usual_step_in_words
from ddpprof.cli.job import JobCommand
from ddpprof.cli.saying import note
from ddpprof.errors import CannotRecord, DdpprofError, writing
from ddpprof.experiments.last_error import last_error
from ddpprof.rundir import repeated_directory, repeated_runs_in
from ddpprof.version import __version__

_VERSIONS = "import json, torch, ddpprof.version as v; print(json.dumps([torch.__version__, v.__version__]))"


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python interpreter with PyTorch and ddpprof, and the folder for its runs."""

    python: Path
    folder: Path
    torch: str

    @property
    def title(self) -> str:
        return f"{self.folder.name} (torch {self.torch})"


def record_in_turn(job: JobCommand, interpreters: tuple[str, str], rounds: int) -> tuple[Environment, Environment]:
    """Record the job `rounds` times in each environment, in alternating order, and return the environments.

    `job`: the arguments of ``ddpprof trace``. `interpreters`: Python interpreters, or folders of virtual environments.
    The folders ``old`` and ``new`` in the job's output folder contain the runs.
    Raises `DdpprofError` if an environment lacks PyTorch or this version of ddpprof, or if the job fails.
    """
    old, new = (_environment(given, job.out / name) for given, name in zip(interpreters, ("old", "new"), strict=True))
    total, seconds = 2 * rounds, list[float]()
    note(f"{total} runs of {job.name}, half of them with torch {old.torch}, half with {new.torch}, in {job.out}")
    for number in range(rounds):
        for environment in (old, new) if number % 2 == 0 else (new, old):
            begun = time.monotonic()
            step = _record(environment, job)
            seconds.append(time.monotonic() - begun)
            left = f", about {in_minutes(median(seconds) * (total - len(seconds)))} left" if len(seconds) == 2 else ""
            note(f"[{len(seconds)}/{total}] {environment.title}: {step}{left}")
    return old, new


def _environment(given: str, folder: Path) -> Environment:
    is_folder = Path(given).is_dir()
    found = shutil.which(Path(given) / "bin" / "python" if is_folder else given)
    if found is None:
        raise DdpprofError(f"{given} is neither a Python interpreter nor an environment with bin/python")
    python = Path(found).absolute()  # not resolved, because Python finds its environment by the link
    command, pipe = [str(python), "-c", _VERSIONS], subprocess.PIPE
    try:  # in a folder without modules, because Python before 3.11 has no option -P
        with start(command, _variables(python), cwd=os.sep, stdout=pipe, stderr=pipe, text=True) as asked:
            answer, error = asked.communicate()
    except OSError as problem:
        raise DdpprofError(f"{given} cannot be started: {problem}") from problem
    if asked.returncode:
        why = error.strip().rpartition("\n")[2]
        raise DdpprofError(f"{given} cannot record the job: {why}. {_how_to_install(python)}")
    torch, ddpprof = json.loads(answer)
    if ddpprof != __version__:
        raise DdpprofError(f"{given} has ddpprof {ddpprof}, but this is {__version__}. {_how_to_install(python)}")
    return Environment(python, folder, torch)


def _how_to_install(python: Path) -> str:
    return f"Install ddpprof there with: {python} -m pip install ddpprof=={__version__}"


def _variables(python: Path) -> dict[str, str]:
    """Return the environment variables that activating the environment would set."""
    path = os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path, "VIRTUAL_ENV": str(python.parent.parent)}


def _record(environment: Environment, job: JobCommand) -> str:
    """Record one run, and return its median step time as text. Raises `DdpprofError`."""
    folder = environment.folder
    number = max(repeated_runs_in(folder), default=0) + 1
    output = folder / f"output-{number}.txt"
    words = ["--stop-after", "--repeat", "1", "--out", str(folder), *job.recorded_with]
    with writing(folder, CannotRecord):
        own_files.make_named_folder(folder)
        descriptor = own_files.overwrite(output)
    with os.fdopen(descriptor, "wb") as stream:
        command = [str(environment.python), "-P", "-m", "ddpprof", "trace", *words]
        variables = _variables(environment.python)
        trace = start(command, variables, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT)
        exit_code = trace.wait()
    if exit_code:
        why = last_error(output.read_text(encoding="utf-8", errors="replace"))
        raise DdpprofError(f"{job.name} failed in {environment.title}: {why}. Its output is in {output}")
    if number not in repeated_runs_in(folder):
        raise DdpprofError(f"nothing was recorded for {job.name} in {environment.title}. Its output is in {output}")
    return usual_step_in_words(folder / repeated_directory(number))
