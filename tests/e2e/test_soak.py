"""Commands are killed at random moments; the next one finds what they left, and is right all the same.

make soak                                         200 kills of each command
make soak PYTEST="-k tune" DDPPROF_SOAK_SEED=7    the kills of an earlier soak again, by the seed that it printed
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from jobs import DDPPROF, QUICK, environment, outside_checkout, script, seconds_to_start
from remotes import CONVNET

from ddpprof.experiments.plan import is_experiment, read_end, read_plan
from ddpprof.experiments.tuning import read_tuning
from ddpprof.load.record import load_record

pytestmark = [pytest.mark.long, pytest.mark.e2e]

NUM_KILLS = int(os.environ.get("DDPPROF_SOAK_KILLS", "4"))
SEED = int(os.environ.get("DDPPROF_SOAK_SEED", random.randrange(10**6)))
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
ORPHANS_S = 30.0
"""after which no process may be left of a command that was killed"""
PATIENCE_S = 120.0
OF_TORCH = re.compile(r"torchelastic_|pymp-|torchinductor_")
"""what a job that is killed leaves in the temporary folder without ddpprof, too"""


@dataclass(frozen=True)
class Kill:
    number: signal.Signals
    to_group: bool
    after_s: float

    def __str__(self) -> str:
        return f"{self.number.name} to its {'group' if self.to_group else 'process'} after {self.after_s:.2f} s"


@dataclass(frozen=True)
class Ended:
    exit_code: int | None
    """``None``: it hung"""
    said: str
    was_killed: bool
    lasted_s: float


class Place:
    """Folders for one command alone. Processes that name them in their environment were started by it."""

    def __init__(self, root: Path) -> None:
        self.root, self.work, self.tmp, self.home = root, root / "work", root / "tmp", root / "home"
        for folder in (self.work, self.tmp, self.home):
            folder.mkdir()

    def run(self, words: list[str], kill: Kill | None = None, until: str | None = None) -> Ended:
        """To its end, to the kill, or until it says `until`: then Ctrl-C ends it."""
        with (self.root / "said").open("w") as said:
            job = subprocess.Popen(
                [*DDPPROF, *words],
                cwd=self.work,
                env=environment(TMPDIR=str(self.tmp), HOME=str(self.home), XDG_CACHE_HOME=str(self.home / "cache")),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
            began, was_killed = time.monotonic(), False
            while job.poll() is None:
                time.sleep(0.005)
                if not was_killed and kill is not None and time.monotonic() - began > kill.after_s:
                    was_killed = True
                    with suppress(ProcessLookupError):
                        os.killpg(job.pid, kill.number) if kill.to_group else job.send_signal(kill.number)
                elif not was_killed and until is not None and until in (self.root / "said").read_text():
                    was_killed = True
                    job.send_signal(signal.SIGINT)
                if time.monotonic() - began > PATIENCE_S:
                    os.killpg(job.pid, signal.SIGKILL)
                    job.wait()
                    return Ended(None, "", was_killed, PATIENCE_S)
        said = (self.root / "said").read_text(errors="replace")
        return Ended(job.returncode, said, was_killed, time.monotonic() - began)

    def orphans(self) -> list[str]:
        """Processes that are still there after some seconds. They are killed."""
        deadline = time.monotonic() + ORPHANS_S
        while (left := self._living()) and time.monotonic() < deadline:
            time.sleep(0.02)
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return list(left.values())

    def _living(self) -> dict[int, str]:
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if str(self.root).encode() in (process / "environ").read_bytes():
                    command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if command:  # a zombie has none
                        found[int(process.name)] = command
        return found

    def left(self) -> set[str]:
        """Everything in the temporary folder and in the cache, and all that is named as a part of something."""
        temporary = {path.name for path in self.tmp.iterdir() if not OF_TORCH.match(path.name)}
        return temporary | {str(path.relative_to(self.root)) for path in self.root.rglob("*.part*")}


class Victim(ABC):
    """A command that is killed, and what it must have done once it came to its end."""

    until: str | None = None
    """What it says before it waits for Ctrl-C."""
    speaks_for_job = False

    def __init__(self, place: Place) -> None:
        self.place = place

        self.chance = random.Random(f"{SEED} {type(self).__name__}")

    @abstractmethod
    def words(self) -> list[str]:
        """Return the command that begins, or goes on."""

    @abstractmethod
    def state(self, said: str) -> object:
        """Return what a finished command, which said that, has made; the same each time."""

    @abstractmethod
    def begin_anew(self) -> None:
        """Remove what a finished command has made, or a part of it."""


class Report(Victim):
    def __init__(self, place: Place) -> None:
        super().__init__(place)
        shutil.copytree(CONVNET, place.work / "run")

    def words(self) -> list[str]:
        return ["report", "run", "--jobs", self.chance.choice("12"), "--out", self.chance.choice(["a.json", "a.html"])]

    def state(self, said: str) -> object:  # noqa: ARG002
        shown = self.place.run(["report", "run", "--format", "json"])
        for page in self.place.work.glob("a.*"):
            content = page.read_text()
            assert json.loads(content) if page.suffix == ".json" else content.rstrip().endswith("</html>"), page
        return shown.said, files(self.place.work / "run")

    def begin_anew(self) -> None:
        if self.chance.random() < 0.7:
            shutil.rmtree(self.place.home / "cache", ignore_errors=True)
        for page in self.place.work.glob("a.*"):
            page.unlink()


class TensorBoard(Report):
    until = "Press Ctrl-C to stop it."

    def words(self) -> list[str]:
        return ["tensorboard", "run", "--port", "0", "--jobs", self.chance.choice("12")]

    def begin_anew(self) -> None:
        super().begin_anew()
        if self.chance.random() < 0.5:
            shutil.rmtree(self.place.work / "run" / "tensorboard", ignore_errors=True)


class Trace(Victim):
    speaks_for_job = True

    def words(self) -> list[str]:
        ranks = ["--standalone", "--nproc-per-node=2"]
        return ["trace", "--force", "--out", "run", *QUICK, *ranks, *script("torchrun_plain.py")]

    def state(self, said: str) -> object:
        trained = re.findall(r"params-sha256 (\w+)", said)
        run = self.place.work / "run"
        records = [load_record(run, rank) for rank in (0, 1)]
        steps = [[step.mode for step in record.steps] for record in records if record is not None]
        exits = Counter((run / "exits.jsonl").read_text().count(word) for word in ('"is_job": true', '"exit_code": 0'))
        return trained, steps, exits, files(run)

    def begin_anew(self) -> None:
        if self.chance.random() < 0.3:
            shutil.rmtree(self.place.work / "run")


class Sweep(Victim):
    name = "sweep"
    options = ("--rounds", "1", "--skip-first", "2", "--timed-steps", "4", "--vary", "bucket_cap_mb=1,25")

    def words(self) -> list[str]:
        folder = self.place.work / "e"
        if is_experiment(folder) and self.chance.random() < 0.7:
            return [self.name, "--resume", "e"]
        return [self.name, "--out", "e", *self.options, *script("wide_mlp.py", "--width", "256", "--steps", "100000")]

    def state(self, said: str) -> object:  # noqa: ARG002
        folder = self.place.work / "e"
        trials = {trial.name: read_end(folder / trial.name) for trial in read_plan(folder).trials()}
        records = [load_record(folder / name, 0) for name in trials]
        steps = [[step.mode for step in record.steps] for record in records if record is not None]
        shown = json.loads(self.place.run(["report", "e", "--format", "json"]).said)
        return {name: end and end.problem for name, end in trials.items()}, steps, self.counted(shown), files(folder)

    def counted(self, report: dict) -> object:
        return [len(point["rounds_ns"]) for point in report["points"]]

    def begin_anew(self) -> None:
        shutil.rmtree(self.place.work / "e", ignore_errors=True)


class Tune(Sweep):
    name = "tune"
    options = ("--nproc", "2", "--trials", "2", "--rounds", "1", "--skip-first", "3", "--timed-steps", "3")

    def counted(self, report: dict) -> object:
        return len(report["tried"]), len(read_tuning(self.place.work / "e").results)


def files(folder: Path) -> list[str]:
    """Their names, without times. The ranks of a short training may end before they have a board."""
    paths = (str(path.relative_to(folder)) for path in folder.rglob("*"))
    return sorted(re.sub(r"\d{10}", "TIME", path) for path in paths if "board" not in path.split("/"))


def tracebacks(said: str, of_job: bool) -> Iterator[str]:
    """Those in what was said; where the user's job spoke, too, those that ended in ddpprof."""
    for begin in re.finditer(r"Traceback \(most recent call last\)", said):
        frames = re.findall(r'^  File "([^"]+)"', said[begin.start() :].partition("\nTraceback")[0], re.MULTILINE)
        if not of_job or any("/ddpprof/" in outside_checkout(frame) for frame in frames[-1:]):  # ranks may talk at once
            yield said[begin.start() : begin.start() + 3000]


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, id=kind.__name__.lower()) for kind in (Report, TensorBoard, Trace, Sweep, Tune)],
)
def test_kills_at_random_moments(kind: type[Victim], tmp_path: Path) -> None:
    before = [signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGTERM)]
    found = []
    try:
        for complaint in soak(kind(Place(tmp_path))):
            print(complaint, flush=True)
            found.append(complaint)
    finally:
        for number, handler in zip((signal.SIGHUP, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
    assert found == [], f"DDPPROF_SOAK_SEED={SEED}"


def soak(victim: Victim) -> Iterator[str]:
    place, chance = victim.place, victim.chance
    first = place.run(victim.words(), until=victim.until)
    assert first.exit_code == 0, first.said
    lasted_s, expected = first.lasted_s, victim.state(first.said)
    victim.begin_anew()
    num_kills, num_whole, is_new, start_s = Counter[str](), 0, True, seconds_to_start()
    while num_kills.total() < NUM_KILLS or num_whole == 0:
        kill = None
        if chance.random() < 0.85 and num_kills.total() < NUM_KILLS:
            kill = Kill(chance.choice(SIGNALS), chance.random() < 0.5, chance.uniform(start_s, max(start_s, lasted_s)))
        words = victim.words()
        ended = place.run(words, kill, victim.until)
        what = f"kill {num_kills.total()}, {kill or 'none'}: ddpprof {' '.join(words)}: "
        yield from (f"{what}orphan: {orphan}" for orphan in place.orphans())
        yield from (f"{what}{text}" for text in tracebacks(ended.said, victim.speaks_for_job))
        if ended.exit_code is None:
            yield f"{what}it hangs"
        if kill is not None and ended.was_killed:
            num_kills[kill.number.name] += 1
            is_new = False
            continue
        num_whole += 1
        lasted_s = min(lasted_s, ended.lasted_s) if is_new else lasted_s
        if ended.exit_code != 0:
            yield f"{what}exit code {ended.exit_code}: {ended.said[-2000:]}"
        elif (state := victim.state(ended.said)) != expected:
            yield f"{what}made {state}\ninstead of {expected}"
        if left := place.left():
            yield f"{what}left {left}"
            shutil.rmtree(place.tmp)
            place.tmp.mkdir()
        victim.begin_anew()
        is_new = True
    print(f"{type(victim).__name__}, seed {SEED}: {dict(num_kills)}, {num_whole} whole, {lasted_s:.1f} s each")
