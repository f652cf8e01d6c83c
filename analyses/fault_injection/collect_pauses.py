"""Watch jobs that pause on purpose, and count how often they are said to hang.

python analyses/fault_injection/collect_pauses.py           500 pauses, 10 jobs at a time: some 15 minutes
python analyses/fault_injection/collect_pauses.py --tenth   50 pauses
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import trial_jobs

HERE = Path(__file__).resolve().parent
PAUSES = HERE / "recordings" / "pauses.json"
DDPPROF = [sys.executable, "-m", "ddpprof"]
PER_JOB = 17
START_S, LONGEST_S = 120, 45
"""seconds for the start of a job and for each pause; a job that takes longer is ended"""
ALARM = re.compile(r"^ddpprof: .*(hangs|has not exited|--kill-after ends)")


def descendants(process: int) -> list[int]:
    found = []
    for listed in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, listed.read_text().split()):
                found += [child, *descendants(child)]
    return found


def sleep_all(job: int, seconds: float) -> None:
    """Stop the job and its launcher, as a machine does that sleeps."""
    processes = [job, *descendants(job)]
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGSTOP)
    time.sleep(seconds)
    for process in reversed(processes):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)


def run_pauses(times: int, arguments: Sequence[object], torchrun: Sequence[object] = ()) -> dict[str, Any]:
    """Run one job of so many pauses with ``--kill-after 1``; return its pauses, and what was said of them."""
    tag = trial_jobs.new_tag()
    watch = [*DDPPROF, "watch", "--kill-after", "1", "--out", "run", "--nproc-per-node", "2", *torchrun]
    with tempfile.TemporaryDirectory(prefix="pauses-") as folder:
        command = [*watch, HERE / "pauses.py", "--pauses", times, *arguments]
        job = trial_jobs.start(command, Path(folder), tag, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        limit = threading.Timer(START_S + times * LONGEST_S, trial_jobs.end, [tag])
        limit.start()
        assert job.stdout is not None
        assert job.stderr is not None
        said: list[str] = []
        stderr = job.stderr
        reader = threading.Thread(target=lambda: said.extend(stderr))
        reader.start()
        kinds, is_over = [], False
        for line in job.stdout:
            if pause := re.match(r"pause (\w+)", line):
                kinds.append(pause[1])
            elif sleeping := re.match(r"sleep now for ([\d.]+)", line):
                sleep_all(job.pid, float(sleeping[1]))
            is_over |= line.startswith("all pauses are over")
        job.wait()
        limit.cancel()
        trial_jobs.end(tag)
        reader.join()
    alarms = [trial_jobs.without_names_of_this_machine(line.strip()) for line in said if ALARM.search(line)]
    return {"pauses": Counter(kinds), "alarms": alarms, "is_over": is_over and job.returncode == 0}


def run(seed: int) -> dict[str, Any]:
    return run_pauses(PER_JOB, ["--seed", seed])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tenth", action="store_true")
    parser.add_argument("--at-once", type=int, default=10)
    options = parser.parse_args()
    num_jobs = 3 if options.tenth else 30
    with ThreadPoolExecutor(options.at_once) as pool:
        jobs = list(pool.map(run, range(num_jobs)))
    text = json.dumps(jobs, indent=0) + "\n"
    if options.tenth:
        print(text)
    else:
        PAUSES.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
