"""Record many runs of one job, some with a step that is 5 % longer, on a machine that does other work as well.

python analyses/gate/collect.py                  all loads anew
python analyses/gate/collect.py --only LOAD      that load anew, and the others as they are

It takes half an hour. Every block is two runs of the job as it is and one of the slower job, in random order. Beside
them runs nothing, or a busy loop that comes and goes, for half a second or so at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import RECORDINGS, begin_recording, end_recording

import ddpprof

HERE = Path(__file__).resolve().parent
RUNS = "runs.json"
SAME, SLOWER = "same", "slower"
BLOCK = (SAME, SAME, SLOWER)
SKIP, STEPS = 10, 300
LOADS = {"no bursts": (0.0, 0.0, 25), "short bursts": (0.5, 1.0, 25)}
"""How many seconds the loop runs and pauses, means of exponential distributions; and blocks."""


def keep_busy_at_times(busy_s: float, idle_s: float) -> None:
    """Go on forever, on any core; the same spans in every collection."""
    draw = random.Random(0)
    while True:
        end = time.monotonic() + draw.expovariate(1 / busy_s)
        while time.monotonic() < end:
            pass
        time.sleep(draw.expovariate(1 / idle_s))


@contextmanager
def busy_at_times(load: str) -> Iterator[None]:
    if not LOADS[load][0]:
        yield
        return
    loop = subprocess.Popen([sys.executable, __file__, "--be", load])
    try:
        yield
    finally:
        loop.kill()
        loop.wait()


def torchrun(*arguments: str) -> Any:
    """Return what the training prints."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    job = [*launcher, str(HERE / "train.py"), *arguments]
    return json.loads(subprocess.run(job, check=True, capture_output=True, text=True, env=_environment()).stdout)


def record(folder: Path, extra: int) -> list[int]:
    """Record one run; return its steps, in µs, each the mean over the ranks that ``ddpprof compare`` takes."""
    options = ["--no-profiler", "--skip-first", str(SKIP), "--cost-steps", "0", "--steps", str(STEPS), "--quiet"]
    script = ["--nproc-per-node", "2", str(HERE / "train.py"), "--extra", str(extra), "--steps", str(STEPS)]
    trace = [sys.executable, "-m", "ddpprof", "trace", "--force", "--out", str(folder), *options, *script]
    subprocess.run(trace, check=True, env=_environment())
    report = ddpprof.build_report(ddpprof.load_run(folder))
    ranks = [[step.duration_ns for step in rank.light_steps] for rank in report.ranks]
    return [round(fmean(step) / 1e3) for step in zip(*ranks, strict=True)]


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=LOADS, help="record this load")
    parser.add_argument("--be", choices=LOADS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be is not None:
        keep_busy_at_times(*LOADS[options.be][:2])
    made: dict[str, Any] = {"extra_units": 0, "true_ratios": [], "runs": []}
    if options.only is not None:
        made = json.loads((HERE / RECORDINGS / RUNS).read_text(encoding="utf-8"))
        made["runs"] = [run for run in made["runs"] if run["load"] != options.only]
    else:
        begin_recording(HERE)
        made["extra_units"] = torchrun("--calibrate")
    for load in [options.only] if options.only is not None else LOADS:
        record_under(load, made)
    end_recording(HERE, cores=os.cpu_count(), ranks=2)


def record_under(load: str, made: dict[str, Any]) -> None:
    """Add the runs to what was made, and keep them block by block."""
    order, began, extra = random.Random(1), time.monotonic(), made["extra_units"]
    with tempfile.TemporaryDirectory() as folder, busy_at_times(load):
        for block in range(LOADS[load][2]):
            for kind in order.sample(BLOCK, len(BLOCK)):
                step_us = record(Path(folder) / "run", extra if kind == SLOWER else 0)
                made["runs"].append({"load": load, "kind": kind, "step_us": step_us})
            write(made)
            print(f"{load}: {block + 1} of {LOADS[load][2]} blocks, {time.monotonic() - began:.0f} s", flush=True)
    made["true_ratios"].append(torchrun("--verify", str(extra)))
    write(made)


def write(made: dict[str, Any]) -> None:
    """Return JSON with a line for every run."""
    *others, (_, runs) = made.items()
    lines = ",\n".join(json.dumps(run) for run in runs)
    head = "".join(f"{json.dumps(name)}: {json.dumps(value)},\n" for name, value in others)
    (HERE / RECORDINGS / RUNS).write_text(f'{{{head}"runs": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
