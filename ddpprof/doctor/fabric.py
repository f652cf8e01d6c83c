"""How fast is the network between the ranks, and what does it cost a step? Do several sources agree?"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from statistics import median

import numpy as np

from ddpprof.doctor.check import CannotCheck, CheckResult, Context, judge, skip
from ddpprof.doctor.timed import bootstrap_interval
from ddpprof.doctor.training import SCRIPTS, ddpprof_command, run_command, run_script, trace_command
from ddpprof.load.run import load_run
from ddpprof.report import build_report

_WITHIN = 0.10
_NUM_BYTES = 16 << 20
_IN_A_ROW = 20
"""number of all-reduces in a row on a GPU; a single one takes as long as its launch"""
_NCCL_TESTS = "all_reduce_perf"
_TURNS = 2


def check_netbench(context: Context) -> Iterator[CheckResult]:
    """Compare `ddpprof netbench` with nccl-tests, or with a loop of all-reduces if those are not installed.

    They run in turns, and the fastest result of each counts, since other work on the machine only slows them down.
    """
    tests = shutil.which(_NCCL_TESTS) if context.setup.backend == "nccl" else None
    turns = [(_by_netbench(context), _by_others(context, tests)) for _ in range(_TURNS)]
    found, own = (max(results) for results in zip(*turns, strict=True))
    yield judge(
        "netbench",
        abs(found / own - 1) <= _WITHIN,
        f"{own:.2f} GB/s on the bus according to {_NCCL_TESTS if tests else 'a loop'}, within {_WITHIN:.0%}",
        f"{found:.2f} GB/s",
        "`ddpprof netbench`, on which predictions rest, does not measure the network's real speed.",
    )


def _by_netbench(context: Context) -> float:
    """Return the bus bandwidth in GB/s, as are those below."""
    setup, bench = context.setup, context.folder / "bench.json"
    options = [f"--nproc-per-node={setup.num_ranks}", f"--backend={setup.backend}", f"--sizes={_NUM_BYTES}"]
    run_command(context, ddpprof_command("netbench", *options, f"--out={bench}"), 90)
    (entry,) = json.loads(bench.read_text(encoding="utf-8"))["sizes"]
    return _busbw(entry["num_bytes"], median(entry["longest_ns"]), setup.num_ranks)


def _by_others(context: Context, tests: str | None) -> float:
    setup = context.setup
    if tests is not None:
        words = [tests, f"-b{_NUM_BYTES}", f"-e{_NUM_BYTES}", f"-g{setup.num_ranks}"]
        return _of_nccl_tests(run_command(context, words, 90))
    in_a_row = 1 if setup.device == "cpu" else _IN_A_ROW
    words = [*setup.options, f"--num-bytes={_NUM_BYTES}", f"--in-a-row={in_a_row}"]
    told = run_script(context, "all_reduces.py", *words).told
    return _busbw(told["num_bytes"], told["median_ns"], setup.num_ranks)


def _busbw(num_bytes: int, ns: float, num_ranks: int) -> float:
    """Return the bus bandwidth in GB/s, as defined by nccl-tests."""
    return num_bytes / ns * 2 * (num_ranks - 1) / num_ranks


def _of_nccl_tests(printed: str) -> float:
    """Return the out-of-place busbw; the columns are size, count, type, redop, root, time, algbw, busbw."""
    row = re.search(rf"^\s*{_NUM_BYTES}\s+\d+\s+\w+\s+\w+\s+-?\d+\s+[\d.]+\s+[\d.]+\s+([\d.]+)", printed, re.MULTILINE)
    if row is None:
        raise CannotCheck(f"{_NCCL_TESTS} printed no row for {_NUM_BYTES} bytes")
    return float(row.group(1))


def check_exposed(context: Context) -> Iterator[CheckResult]:
    """Compare exposed communication with the difference between steps with and without `no_sync`, run in turns."""
    window = ["--skip-first", "20", "--cost-steps", "0", "--steps", "10"]
    trained = run_script(context, "unsynced.py", *context.setup.options, "--steps=40", trace=window)
    first = build_report(load_run(trained.run)).ranks[0]
    exposed_ms = median(step.exposed_ns for step in first.measured_steps) / 1e6
    told = trained.told
    low, high = (ns / 1e6 for ns in bootstrap_interval(np.subtract, told["with_ns"], told["without_ns"]))
    yield judge(
        "exposed",
        low <= exposed_ms <= high,
        f"{low:.2f} to {high:.2f} ms, by which a step is longer than under no_sync",
        f"{exposed_ms:.2f} ms",
        "The exposed communication in the report is not what averaging gradients costs a step.",
    )


def check_overhead(context: Context) -> Iterator[CheckResult]:
    """Compare `ddpprof overhead` in one process, in turns, with its result from separate processes."""
    found = [_overhead(context, name, *options) for name, options in (("turns", []), ("apart", ["--apart"]))]
    (low, high), (low_apart, high_apart) = found
    yield judge(
        "overhead",
        low <= high_apart and low_apart <= high,
        f"{low_apart:.3f} to {high_apart:.3f} times the bare step, as from separate processes",
        f"{low:.3f} to {high:.3f}",
        "The result of `ddpprof overhead` depends on how it measures.",
    )


def _overhead(context: Context, name: str, *options: str) -> tuple[float, float]:
    out = context.folder / name
    own = ["--out", str(out), "--rounds", "3", f"--nproc={context.setup.num_ranks}", *options]
    run_command(context, ddpprof_command("overhead", *own, *_training(context)), 200)
    printed = run_command(context, ddpprof_command("report", str(out), "--format", "json"), 60)
    ratio = json.loads(printed)["ratio"]
    return float(ratio["low"]), float(ratio["high"])


def check_beside_nsys(context: Context) -> Iterator[CheckResult]:
    """Check that under nsys, which occupies CUPTI, the report has kernels or says that there are none."""
    nsys = shutil.which("nsys")
    if nsys is None:
        yield skip("beside-nsys", "nsys is not installed")
        return
    out = context.folder / "run"
    trace = trace_command(out, *_training(context))
    run_command(context, [nsys, "profile", "--output", str(context.folder / "nsys"), *trace], 90)
    report = build_report(load_run(out))
    kernels = sum(step.compute_ns > 0 for rank in report.ranks for step in rank.steps)
    said = [text for text in report.missing if "kernel" in text]
    yield judge(
        "beside-nsys",
        bool(kernels or said),
        "kernels, or a note that there are none",
        f"{kernels} steps with kernels" if kernels else ", ".join(said) or "neither",
        "Tables without kernels would look like a device that did nothing.",
    )


def _training(context: Context) -> list[str]:
    """Return the command of a training of a few seconds, to follow a command of ddpprof."""
    return [str(SCRIPTS / "timed.py"), *context.setup.options, "--steps=60"]
