"""`ddpprof compare`: compare two jobs, each given by one or more runs, and check the second one against limits.

With `--env`, first record the runs of one job in two Python environments.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from ddpprof import own_files
from ddpprof.child_processes import start
from ddpprof.cli.arguments import positive
from ddpprof.cli.output import add_output_options, check_output, chosen_form, deliver, write
from ddpprof.cli.reading import add_reading_options, read_run_set, refuse_missing
from ddpprof.cli.saying import note, say
from ddpprof.errors import CannotRecord, DdpprofError, writing
from ddpprof.files import Location, location
from ddpprof.rundir import repeated_directory, repeated_runs_in
from ddpprof.version import __version__

if TYPE_CHECKING:
    from ddpprof.cli.job import JobCommand
    from ddpprof.comparison import Comparison, RunSet
    from ddpprof.comparison.gate import ConditionVerdict, GateResult

_ENV = "--env"
_ROUNDS = 8
"""number of runs per job; enough for 13 simultaneous confidence intervals, one for each part of the step"""

EXIT_FAILED, EXIT_UNKNOWN = 1, 3
"""exit codes of ``--fail-on``: a condition failed, or could not be decided. Exit code 2 stands for an error in the
command line
"""


def add_compare_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    parser.usage = "ddpprof compare [options] A B\n       ddpprof compare [options] A1 A2 … -- B1 B2 …\n"
    parser.usage += "       ddpprof compare [options] --env OLD NEW [options of ddpprof trace] train.py [its arguments]"
    add(
        "a",
        type=location,
        nargs="*",
        metavar="RUN",
        help="a run, traces, a JSON report, or a folder with the runs of one job, as written by ddpprof trace --repeat",
    )
    add(
        "--against",
        type=location,
        nargs="+",
        dest="b",
        metavar="RUN",
        help="one or more runs of the other job; -- is short for --against",
    )
    add(
        "--fail-on",
        metavar="LIMITS",
        help="exit with 0 (pass) if it is certain that no measure of B increased beyond its limit; with 1 (fail) if a "
        "measure increased by more than noise and may exceed its limit; with 3 if there are too few runs to decide, "
        "and print how many more are needed. Example: 'step>5%%,exposed>2ms'. Measures: step, fastest step, mean step, "
        "compute, comm, overlap, exposed, trailing, forward, backward, backward and comm, optimizer, data, other, "
        "copies, idle, wrapper; units: %%, s, ms, us",
    )
    add(
        "--on-unknown",
        choices=["pass", "fail"],
        help="exit with 0 or 1 instead of 3 if there are too few runs to decide",
    )
    add(
        _ENV,
        nargs=2,
        metavar=("OLD", "NEW"),
        help="record the job alternately in two Python environments, for example before and after an upgrade of "
        "PyTorch, and compare the runs. OLD and NEW are Python interpreters or folders of virtual environments with "
        "PyTorch and this version of ddpprof. This must be the last option; the arguments of ddpprof trace follow it",
    )
    add(
        "--rounds",
        type=positive,
        default=_ROUNDS,
        metavar="N",
        help="with --env: number of runs in each environment (%(default)s)",
    )
    add(
        "--brief",
        action="store_true",
        help="print one JSON object of at most 4 kB: the changes, and the results of --fail-on",
    )
    add_output_options(parser)
    add_reading_options(parser)
    parser.set_defaults(run_words=run_compare)


def run_compare(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    own, to_record = _split(list(arguments))
    options = parser.parse_args(["--against" if word == "--" else word for word in own])
    check_output(options)
    from ddpprof.comparison.gate import parse_conditions

    conditions = parse_conditions(options.fail_on) if options.fail_on is not None else ()
    paths = _recorded(parser, options, to_record) if options.env is not None else _sides(options)
    for path in (*paths[0], *paths[1]):
        refuse_missing(path)
    from ddpprof.comparison import compare
    from ddpprof.comparison.gate import judge, overall
    from ddpprof.render.json_documents import ComparisonFile
    from ddpprof.render.sections.comparison import comparison_sections

    a, b = (_read_side(side, options) for side in paths)
    comparison = compare(a, b, [condition.metric for condition in conditions] or ["step"])
    verdicts = judge(comparison, conditions)
    commands = _how_to_record(comparison, verdicts, a, b)
    if options.brief:
        from ddpprof.render.brief import brief_comparison
        from ddpprof.render.json import render_json

        write(options, render_json(brief_comparison(comparison, verdicts)))
        return _exit_code(overall(verdicts), options.on_unknown)
    shown = comparison_sections(comparison, verdicts, commands)
    deliver(options, f"{comparison.a} and {comparison.b}", ComparisonFile(comparison, verdicts), shown)
    if options.out is not None or chosen_form(options) == "json":  # otherwise they were shown just before
        _print_verdicts(verdicts, commands)
    return _exit_code(overall(verdicts), options.on_unknown)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split the arguments into those of `ddpprof compare`, up to ``--env OLD NEW``, and those of `ddpprof trace`."""
    if _ENV not in arguments:
        return arguments, []
    end = arguments.index(_ENV) + 3
    return arguments[:end], arguments[end:]


def _recorded(
    parser: argparse.ArgumentParser, options: argparse.Namespace, to_record: Sequence[str]
) -> tuple[list[Location], list[Location]]:
    """Record the runs of both environments, and return their folders. Raises `DdpprofError`."""
    if options.a or options.b is not None:
        parser.error("give either runs or --env, not both")
    from ddpprof.cli.job import parse_trace_words

    job = parse_trace_words(to_record, "record")
    old, new = record_in_turn(job, options.env, options.rounds)
    note(f"compare these runs again with: {shlex.join(['ddpprof', 'compare', str(old.folder), str(new.folder)])}")
    return [location(str(old.folder))], [location(str(new.folder))]


def _sides(options: argparse.Namespace) -> tuple[list[Location], list[Location]]:
    """Return the runs of A and of B. Raises `DdpprofError`."""
    if options.b is not None and options.a:
        return options.a, options.b
    if options.b is None and len(options.a) == 2:
        return options.a[:1], options.a[1:]
    if options.b is None and len(options.a) > 2:
        raise DdpprofError("separate the runs of the two jobs with --: ddpprof compare A1 A2 -- B1 B2")
    raise DdpprofError(
        "give two runs: ddpprof compare A B, or several runs of each job: ddpprof compare A1 A2 -- B1 B2. To "
        "record the runs in two environments: ddpprof compare --env OLD NEW train.py"
    )


def _read_side(paths: Sequence[Location], options: argparse.Namespace) -> RunSet:
    """Read the runs of one job. Raises `DdpprofError`."""
    from ddpprof.rundir import repeated_runs_in

    runs, folder = [], None
    for path in paths:
        repeated = repeated_runs_in(path)
        folder = path if repeated else folder
        runs += list(repeated.values()) or [path]
    return read_run_set(runs, options, folder if len(paths) == 1 else None)


def _how_to_record(comparison: Comparison, verdicts: Sequence[ConditionVerdict], a: RunSet, b: RunSet) -> list[str]:
    """Return the commands that record the missing runs of each job."""
    from ddpprof.render.sections.comparison import runs_wanted
    from ddpprof.statistics.between_runs import MOST_RUNS

    wanted = runs_wanted(comparison, verdicts)
    if wanted is None or wanted > MOST_RUNS:
        return []
    return [
        _command(wanted - len(side.reports), side, name)
        for name, side in (("A", a), ("B", b))
        if wanted > len(side.reports)
    ]


def _command(number: int, side: RunSet, name: str) -> str:
    folder = side.folder or f"MORE_OF_{name}"
    return side.reports[0].job.trace_command("--repeat", str(number), "--out", shlex.quote(folder))


def _print_verdicts(verdicts: Sequence[ConditionVerdict], commands: Sequence[str]) -> None:
    from ddpprof.comparison.gate import GateResult

    for verdict in verdicts:
        if verdict.outcome is not GateResult.PASSED:
            said = "cannot tell: " if verdict.outcome is GateResult.UNKNOWN else ""
            say(f"ddpprof: {said}{verdict.condition.text}: {verdict.because}", file=sys.stderr)
    for command in commands:
        say(f"ddpprof: record more runs with: {command}", file=sys.stderr)


def _exit_code(outcome: GateResult, on_unknown: str | None) -> int:
    from ddpprof.comparison.gate import GateResult

    unknown = {"pass": 0, "fail": EXIT_FAILED, None: EXIT_UNKNOWN}[on_unknown]
    return {GateResult.PASSED: 0, GateResult.FAILED: EXIT_FAILED, GateResult.UNKNOWN: unknown}[outcome]


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
    """Record the job `rounds` times in each environment, alternating between them, and return the environments.

    `job`: the arguments of ``ddpprof trace``. `interpreters`: Python interpreters, or folders of virtual environments.
    The folders ``old`` and ``new`` in the job's output folder contain the runs.
    Raises `DdpprofError` if an environment lacks PyTorch or this version of ddpprof, or if the job fails.
    """
    from ddpprof.cli.experiments import in_minutes

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
        raise DdpprofError(
            f"{given} has ddpprof {ddpprof}, but this command is ddpprof {__version__}. {_how_to_install(python)}"
        )
    return Environment(python, folder, torch)


def _how_to_install(python: Path) -> str:
    return f"Install ddpprof there with: {python} -m pip install ddpprof=={__version__}"


def _variables(python: Path) -> dict[str, str]:
    """Return this process's environment variables with the changes that activating `python`'s environment makes."""
    path = os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path, "VIRTUAL_ENV": str(python.parent.parent)}


def _record(environment: Environment, job: JobCommand) -> str:
    """Record one run, and return its median step time as text. Raises `DdpprofError`."""
    from ddpprof.cli.experiments import usual_step_in_words
    from ddpprof.experiments.conduct import last_error

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
        raise DdpprofError(f"{job.name} failed in {environment.title}: {why}. See the output of the job in {output}")
    if number not in repeated_runs_in(folder):
        raise DdpprofError(
            f"nothing was recorded for {job.name} in {environment.title}. See the output of the job in {output}"
        )
    return usual_step_in_words(folder / repeated_directory(number))
