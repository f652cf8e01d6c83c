"""Record each case, follow the first advice, and keep what it promised and what it gave.

python analyses/advice/collect.py [--resume] [--only NAME …] [--every N] [--out FILE]

It needs root, for `ip`, and five hours on a quiet machine; --resume keeps what is there already, --every 10
runs a tenth of the cases.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from hosts import linked_hosts
from planted import CASES, PLANTS, Case, is_advised, is_found
from study import RECORDINGS, end_recording

HERE = Path(__file__).resolve().parent
BURST = "128kb"
ROUNDS, TIMED = 4, 6
DDPPROF = [sys.executable, "-m", "ddpprof"]
KEPT = ("rule", "title", "gain_ns", "predicted", "is_noise", "is_worth_trying", "change")
"""keys of a finding"""


def recorded(case: Case) -> dict[str, Any]:
    """Return the findings of the case, and what trials of its first advice gave."""
    with tempfile.TemporaryDirectory() as folder, _launcher(case) as launcher:
        run = Path(folder) / "run"
        plant = [] if case.plant is None else ["--plant", case.plant]
        framework = [] if case.framework is None else ["--framework", case.framework]
        job = [*launcher, str(HERE / "train.py"), case.model, *plant, *framework]
        _ddpprof(["trace", "--stop-after", "--out", str(run), "--", *job])
        report = json.loads(_ddpprof(["report", str(run), "--format", "json"]))
        found = [{name: finding[name] for name in KEPT} for finding in report["findings"]]
        mended = Path(folder) / "mended.py"
        mended.write_text(_MENDED.format(train=str(HERE / "train.py")), encoding="utf-8")
        script = ["--script", f"{HERE / 'train.py'}={mended}"]
        how = _how_to_try(case, found, script)
        made = {"case": case.name, "findings": found, "tried": None if how is None else _tried(run, how)}
        if not is_found(case.plant, found):  # it may be because what is planted costs nothing here
            made["mended"] = _tried(run, script)
        return made


def _tried(run: Path, how: Sequence[str]) -> dict[str, Any]:
    out = run.with_name(f"trials-{len(list(run.parent.iterdir()))}")
    options = ["--rounds", str(ROUNDS), "--timed-steps", str(TIMED), "--out", str(out)]
    _ddpprof(["try", str(run), *how, *options])
    shown = _ddpprof(["report", str(out), "--format", "json"])
    (tried,) = json.loads(shown.replace(f"{run.parent}/", "").replace(f"{HERE}/", ""))["tried"]
    return dict(tried)


def _how_to_try(case: Case, found: Sequence[dict[str, Any]], script: list[str]) -> list[str] | None:
    """Return the options of `ddpprof try` for the first advice; ``None`` if nothing is advised.

    Advice that promises time comes before advice that promises none, as in `ddpprof try` itself, and what is only worth
    trying comes last. `script`: the options for the mended script, for what only its author can change.
    """
    advised = [(number, one) for number, one in enumerate(found, 1) if is_advised(one)]
    rules = PLANTS[case.plant].rules if case.plant is not None and not PLANTS[case.plant].is_mended_by_ddpprof else ()
    for number, one in sorted(advised, key=lambda one: (one[1]["is_noise"], one[1]["gain_ns"] is None)):
        if one["change"] is not None and not one["change"]["is_lossy"]:
            return ["--finding", str(number)]
        if one["rule"] in rules:
            return script
    return None


_MENDED = """import runpy, sys
sys.argv = [{train!r}, *sys.argv[1:], "--mended"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@contextmanager
def _launcher(case: Case) -> Iterator[list[str]]:
    """Yield the words that start the job's ranks: on one host, or each on a host of its own."""
    if case.gbit is None:
        yield ["torchrun", "--standalone", f"--nproc-per-node={case.ranks}"]
        return
    with linked_hosts(case.ranks, f"{case.gbit:g}gbit", BURST) as hosts:
        yield [sys.executable, str(HERE.parent / "on_hosts.py"), ",".join(hosts.namespaces)]


def _ddpprof(words: Sequence[str]) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run([*DDPPROF, *words], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"ddpprof {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resume", action="store_true", help="keep what is there")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="run only every N-th case")
    parser.add_argument("--out", type=Path, default=HERE / RECORDINGS / "cases.json")
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(given.out.read_text(encoding="utf-8")) if given.resume and given.out.exists() else []
    for case in CASES[:: given.every]:
        if (given.only and case.name not in given.only) or case.name in {one["case"] for one in known}:
            continue
        try:
            made = recorded(case)
        except (RuntimeError, KeyError, ValueError) as error:
            made = {"case": case.name, "findings": [], "tried": None, "error": str(error)[-800:]}
        known.append(made)
        given.out.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        first = made["findings"][0]["rule"] if made["findings"] else "nothing found"
        came = made["tried"]["outcome"] if made["tried"] else made.get("error", "not tried")
        print(f"{case.name}: {first}, {came}", flush=True)
    if given.out == HERE / RECORDINGS / "cases.json":
        end_recording(HERE, cores=os.cpu_count())


if __name__ == "__main__":
    main()
