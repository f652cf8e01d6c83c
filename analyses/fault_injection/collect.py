"""Plant faults and pauses in real jobs, one in each, and keep what ddpprof says of them.

python analyses/fault_injection/collect.py --share tuned      classes that ddpprof was made for
python analyses/fault_injection/collect.py --share held-out   classes that were set aside, or "second held-out"
python analyses/fault_injection/collect.py --tenth            every tenth class
python analyses/fault_injection/collect.py --only sleep       one class
python analyses/fault_injection/collect.py --repeats 12       twelve trials of each fault, with other ranks and models

Finished trials are kept as long as ddpprof is the same: the same command goes on where it was interrupted, and
`--anew` tries all again. Namespaces for the network and for a small /dev/shm, and control groups, need root.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ddpprof

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from hosts import Hosts, NoHosts, linked_hosts
from study import end_recording

sys.path.insert(0, str(Path(__file__).resolve().parent))
import trial_jobs
from collect_pauses import run_pauses
from planted_faults import CLASSES, PAUSES, SHARES, STEP, TRAIN, Planted, share_of

HERE = Path(__file__).resolve().parent
TRIALS = HERE / "recordings" / "trials.json"
START_S, KILL_AFTER_S, END_S, DIAGNOSE_S = 90, 10, 20, 60
"""seconds until a fault happens at the latest, from a verdict to the end of its job, for this end, and to diagnose"""
DDPPROF = [sys.executable, "-m", "ddpprof"]
MODELS = ("mlp", "convolutions", "attention")
_OF_LAUNCHER = re.compile(r"^ddpprof: (.*)", re.MULTILINE)
_IN_RUN = re.compile(r"^the run is in .*")

Json = dict[str, Any]


def digest_of_ddpprof() -> str:
    """Return a word that changes with every change of ddpprof."""
    folder = Path(ddpprof.__file__).parent
    modules = sorted(folder.rglob("*.py"), key=lambda module: module.relative_to(folder).as_posix())
    return hashlib.sha256(b"".join(module.read_bytes() for module in modules)).hexdigest()[:8]


@dataclass(frozen=True)
class Trial:
    fault: str
    number: int
    ranks: int
    rank: int
    """rank with the fault"""
    launcher: str
    model: str

    @property
    def planted(self) -> Planted:
        return CLASSES[self.fault]

    @property
    def is_alone(self) -> bool:
        return self.planted.alone or self.launcher == "namespaces"  # whose hosts all have the same names


def trials_of(fault: str, repeats: int) -> Iterator[Trial]:
    """Yield trials with ranks, launchers and models that are the same in each collection."""
    planted, draw = CLASSES[fault], random.Random(fault)
    launchers: Sequence[str] = (planted.launcher,)
    models: Sequence[str] = ("mlp",)
    if planted.script == TRAIN and planted.launcher == "torchrun":
        launchers = ("torchrun", "spawn", "namespaces")
        models = MODELS
    if fault == "unused":
        launchers, models = launchers[:2], models[:1]
    combinations = list(itertools.product(launchers, models))
    for number in range(repeats):
        launcher, model = combinations[number % len(combinations)]
        ranks = draw.choice((2, 2, 4)) if planted.script == TRAIN and launcher != "namespaces" else planted.ranks
        yield Trial(fault, number, ranks, draw.choice(planted.culprits or range(ranks)), launcher, model)


def lines_of(fault: str) -> list[int]:
    """Return the numbers of the lines marked in the function of a fault, or by its name in `TRAIN`."""
    planted = CLASSES[fault]
    if not planted.has_line:
        return []
    lines = (HERE / planted.script).read_text(encoding="utf-8").splitlines()
    if planted.script == TRAIN:
        return [number for number, line in enumerate(lines, 1) if line.endswith(f"# FAULT {fault}")]
    begin = lines.index(f"def {fault}(job):")
    after = itertools.takewhile(lambda numbered: numbered[1][:1] in ("", " "), enumerate(lines[begin + 1 :], begin + 2))
    return [number for number, line in after if line.endswith("# FAULT")]


def script_of(trial: Trial, *more: str) -> list[object]:
    script: list[object] = [HERE / trial.planted.script]
    if trial.planted.script == TRAIN:
        script += ["--fault", trial.fault, "--step", STEP, "--model", trial.model, "--pipe", "pipe"]
        script += ["--spawn", trial.ranks] if trial.launcher == "spawn" else []
    else:
        script += [trial.fault]
    script += ["--rank", trial.rank, *more]
    return [*script, "--ranks", trial.ranks, "--launch", "processes"] if trial.launcher == "processes" else script


def torchrun_of(trial: Trial) -> list[object]:
    return ["--nproc-per-node", trial.ranks, *trial.planted.options] if trial.launcher == "torchrun" else []


def run(trial: Trial, folder: Path) -> Json:
    """Run a job with its fault, and return what was said of it."""
    tag = trial_jobs.new_tag()
    watch = [*DDPPROF, "watch", "--kill-after", KILL_AFTER_S, "--out", folder / "run"]
    subprocess.run(["mkfifo", folder / "pipe"], check=True)
    if trial.launcher == "namespaces":
        return _on_hosts(trial, [*watch, *script_of(trial)], folder, tag)
    said = folder / "said"
    with said.open("w") as stream:
        command = [*watch, *torchrun_of(trial), *script_of(trial)]
        job = trial_jobs.start(command, folder, tag, trial.planted.shm_mib, stdout=stream, stderr=stream)
    try:
        return _observed(trial, job, folder, lambda: said.read_text(encoding="utf-8", errors="replace"))
    finally:
        trial_jobs.end(tag)
        job.wait()


def _on_hosts(trial: Trial, command: Sequence[object], folder: Path, tag: str) -> Json:
    with linked_hosts(2, "1gbit") as hosts:
        ranks = [hosts.start(host, command, folder, **{trial_jobs.TAG: tag}) for host in range(2)]
        said: list[str] = []
        readers = [threading.Thread(target=said.extend, args=(rank.stderr,)) for rank in ranks]
        for reader in readers:
            reader.start()
        try:
            if trial.planted.blames == "nobody":
                _wait_for_step(folder)
                (folder / "fault-time").write_text(str(time.time()), encoding="utf-8")
                CUTS[trial.fault](hosts, trial.rank)
            return _observed(trial, ranks[0], folder, lambda: "".join(said))
        finally:
            trial_jobs.end(tag)
            for rank, reader in zip(ranks, readers, strict=True):
                rank.wait()
                reader.join()


def _cut_link(hosts: Hosts, host: int) -> None:
    subprocess.run(["ip", "-n", hosts.namespaces[host], "link", "set", "eth0", "down"], check=True)


def _drop_packets(hosts: Hosts, host: int) -> None:
    """Let the switch forget the host, whose own link stays up."""
    switch = f"{hosts.namespaces[host].rpartition('-')[0]}-switch"
    subprocess.run(["ip", "-n", switch, "link", "set", f"port{host}", "nomaster"], check=True)


CUTS: dict[str, Callable[[Hosts, int], None]] = {"link": _cut_link, "packets_vanish": _drop_packets}


def _wait_for_step(folder: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with suppress(OSError, ValueError):
            content = (folder / "run" / "rank-0.last_step").read_bytes()
            if int.from_bytes(content[:8], "little") > STEP:
                return
        time.sleep(0.1)


def _observed(trial: Trial, job: subprocess.Popen[str], folder: Path, said: Callable[[], str]) -> Json:
    """Wait for what the launcher says, ask `ddpprof diagnose` while the job hangs and afterwards, and return it all."""
    found, found_at = _await_verdict(trial, job, folder, said)
    was = "ended" if job.poll() is not None else "hanging" if found else "running"
    happened_at = _time_of_fault(folder)
    during = _diagnosis(folder) if was != "ended" else None
    if was == "hanging":
        with suppress(subprocess.TimeoutExpired):
            job.wait(KILL_AFTER_S + END_S)
    ended_by_itself = job.poll() is not None
    after = _diagnosis(folder) if ended_by_itself else None
    asked = during or after or {}
    return {
        "verdict": _shortened(found or asked.get("verdict")),
        "while": was,
        "seconds": None if happened_at is None else round(found_at - happened_at, 1),
        "said": trial_jobs.without_names_of_this_machine("\n".join(_sentences(said())))[:1500],
        "diagnosed": {"during": _in_short(during), "after": _in_short(after)},
        "advice": trial_jobs.without_names_of_this_machine(asked.get("text") or "")[:1500],
    }


def _await_verdict(
    trial: Trial, job: subprocess.Popen[str], folder: Path, said: Callable[[], str]
) -> tuple[Json | None, float]:
    """Return the launcher's verdict, if it gave one, and when the waiting for it ended."""
    says = trial.planted.says.format(rank=trial.rank)
    begin = time.time()
    while job.poll() is None:
        for hang in (folder / "run").rglob("hang.json"):
            with suppress(OSError, ValueError):
                return json.loads(hang.read_bytes()), time.time()
        if says and re.search(says, "\n".join(_sentences(said()))):
            break
        happened_at = _time_of_fault(folder)
        if time.time() > (begin + START_S if happened_at is None else happened_at + trial.planted.patience_s):
            break
        time.sleep(0.2)
    return None, time.time()


def _time_of_fault(folder: Path) -> float | None:
    with suppress(OSError, ValueError):
        return float((folder / "fault-time").read_text(encoding="utf-8"))
    return None


def _sentences(said: str) -> list[str]:
    """Return what the launcher says, without where the run is."""
    return [sentence for sentence in _OF_LAUNCHER.findall(said) if not _IN_RUN.match(sentence)]


def _diagnosis(folder: Path) -> Json:
    """Return what `ddpprof diagnose` says, for programs and for people."""
    command = [*DDPPROF, "diagnose", str(folder / "run")]
    asked = [
        subprocess.Popen([*command, "--format", form], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for form in ("json", "text")
    ]
    limit = threading.Timer(DIAGNOSE_S, lambda: [one.kill() for one in asked])
    limit.start()
    (structured, error), (text, _) = (one.communicate() for one in asked)
    limit.cancel()
    diagnosis: Json = {"exit_code": asked[0].returncode, "text": text or error, "verdict": None}
    with suppress(ValueError):
        diagnosis["verdict"] = json.loads(structured)
    return diagnosis


def _in_short(diagnosis: Json | None) -> Json | None:
    if diagnosis is None:
        return None
    verdict = diagnosis["verdict"] or {}
    return {"fault": verdict.get("fault"), "rank": verdict.get("rank"), "exit_code": diagnosis["exit_code"]}


def _shortened(verdict: Json | None) -> Json | None:
    """Return what `analyse.py` needs, without names of this machine."""
    if verdict is None:
        return None
    kept = {key: verdict.get(key) for key in ("fault", "rank", "step", "activity", "bucket", "exit_code", "has_failed")}
    places = [re.search(r"([^/]+:\d+) in", verdict.get(key) or "") for key in ("place", "waiting_at")]
    detail = trial_jobs.without_names_of_this_machine(verdict.get("detail") or "")[:300]
    return {
        **kept,
        "places": [place[1] for place in places if place],
        "parameters": list(verdict.get("parameters") or ())[:6],
        "waiting": list(verdict.get("waiting") or ()),
        "detail": detail or None,
    }


def ends_well_if_fixed(trial: Trial, folder: Path) -> bool:
    """Return whether the job ends without an error or an alarm once the advice was followed."""
    tag = trial_jobs.new_tag()
    command = [*DDPPROF, "watch", "--kill-after", 1, *torchrun_of(trial), *script_of(trial, "--fixed")]
    with (folder / "said").open("w") as stream:
        job = trial_jobs.start(command, folder, tag, trial.planted.shm_mib, stdout=stream, stderr=stream)
    try:
        job.wait(START_S + 60)
    except subprocess.TimeoutExpired:
        return False
    finally:
        trial_jobs.end(tag)
        job.wait()
    said = _sentences((folder / "said").read_text(encoding="utf-8", errors="replace"))
    return job.returncode == 0 and not any("hangs" in sentence or "failed" in sentence for sentence in said)


def tried(trial: Trial) -> Json:
    with tempfile.TemporaryDirectory(prefix="fault-") as first, tempfile.TemporaryDirectory(prefix="fixed-") as second:
        found = run(trial, Path(first))
        is_first = trial.number == 0 and trial.planted.has_fix
        fixed = ends_well_if_fixed(trial, Path(second)) if is_first else None
    lines = [f"{trial.planted.script}:{line}" for line in lines_of(trial.fault)]
    return {**vars(trial), "lines": lines, **found, "fixed_ends_well": fixed}


def paused(pause: str) -> Json:
    planted = PAUSES[pause]
    done = run_pauses(planted.times, ["--only", pause], planted.options)
    return {"pause": pause, "number": 0, "times": done["pauses"].get(pause, 0), **done}


class Recording:
    """The finished trials, in a file that is written after each."""

    def __init__(self, file: Path, anew: bool) -> None:
        self._file, self._anew, self._lock = file, anew, threading.Lock()
        self._digest = digest_of_ddpprof()
        kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
        self._trials = {self._key(trial): trial for trial in kept}

    @staticmethod
    def _key(trial: Json) -> tuple[str, str, int]:
        what = "fault" if "fault" in trial else "pause"
        return what, trial[what], trial["number"]

    def has(self, what: str, name: str, number: int = 0) -> bool:
        """Return whether the trial need not be made, since it was made with this ddpprof."""
        found = self._trials.get((what, name, number))
        return not self._anew and found is not None and found["ddpprof"] == self._digest

    def add(self, trial: Json) -> None:
        with self._lock:
            self._trials[self._key(trial)] = {**trial, "ddpprof": self._digest}
            ordered = [self._trials[key] for key in sorted(self._trials)]
            part = self._file.with_suffix(".part")
            part.write_text(json.dumps(ordered, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
            part.replace(self._file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", choices=SHARES, help="only these classes")
    parser.add_argument("--only", choices=sorted({*CLASSES, *PAUSES}), nargs="+", metavar="CLASS", default=())
    parser.add_argument("--tenth", action="store_true", help="every tenth class")
    parser.add_argument("--repeats", type=int, default=1, help="trials of each fault (%(default)s)")
    parser.add_argument("--at-once", type=int, default=2, help="jobs at a time (%(default)s)")
    parser.add_argument("--anew", action="store_true", help="try finished trials again, too")
    parser.add_argument("--out", type=Path, default=TRIALS, help="file of the finished trials (%(default)s)")
    options = parser.parse_args()

    def chosen(classes: Iterable[str]) -> list[str]:
        names = [name for name in classes if options.share in (None, share_of(name))]
        return [name for name in names if not options.only or name in options.only][:: 10 if options.tenth else 1]

    faults, pauses = chosen(CLASSES), chosen(PAUSES)
    options.out.parent.mkdir(exist_ok=True)
    recording = Recording(options.out, options.anew)
    trials = [trial for name in faults for trial in trials_of(name, options.repeats)]
    trials = [trial for trial in trials if not recording.has("fault", trial.fault, trial.number)]
    pauses = [name for name in pauses if not recording.has("pause", name)]

    def one(todo: Trial | str) -> None:
        begin = time.monotonic()
        try:
            found = paused(todo) if isinstance(todo, str) else tried(todo)
        except NoHosts as reason:
            print(f"{todo}: no hosts here: {reason}")
            return
        recording.add(found)
        print(f"{time.monotonic() - begin:4.0f} s", _in_a_line(found), flush=True)

    by_length = sorted(trials, key=lambda trial: -trial.planted.patience_s)
    with ThreadPoolExecutor(options.at_once) as pool:
        list(pool.map(one, [*(trial for trial in by_length if not trial.is_alone), *pauses]))
    for trial in by_length:
        if trial.is_alone:
            one(trial)
    if options.out == TRIALS:
        end_recording(HERE, at_once=options.at_once, step=STEP)


def _in_a_line(found: Json) -> str:
    if "pause" in found:
        return f"{found['pause']}: {found['times']} pauses, ended well: {found['is_over']}, {found['alarms']}"
    verdict = found["verdict"] or {}
    words = (verdict.get("fault"), verdict.get("rank"), *verdict.get("places", ()), f"{found['seconds']} s")
    return f"{found['fault']} on rank {found['rank']}: {' '.join(map(str, words))}"


if __name__ == "__main__":
    main()
