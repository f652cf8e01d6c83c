"""`netbench` and `overhead` agree with other ways to measure the same, and under nsys a report tells of kernels."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from ddpprof.doctor.checks import Context, Setup
from ddpprof.doctor.installation import Trained, ddpprof_command, run_command, trace_command
from ddpprof.load.run import load_run
from ddpprof.report.build import build_report

Train = Callable[..., Trained]

NUM_BYTES = 16 << 20
NCCL_TESTS = "all_reduce_perf"
TIMED = str(Path(__file__).parent / "scripts/timed.py")


def test_the_network_s_speed(train: Train, context: Context, ranks_at_once: int) -> None:
    """They run in turns, and the fastest result of each counts, since other work only slows them down."""
    turns = [(by_netbench(context), by_others(context, train)) for _ in range(2)]
    found, own = (max(results) for results in zip(*turns, strict=True))
    assert found == pytest.approx(own, rel=0.10)


def by_netbench(context: Context) -> float:
    """Return the bus bandwidth in GB/s, as do those below."""
    setup, bench = context.setup, context.folder / "bench.json"
    options = [f"--nproc-per-node={setup.num_ranks}", f"--backend={setup.backend}", f"--sizes={NUM_BYTES}"]
    run_command(context, ddpprof_command("netbench", *options, f"--out={bench}"), 90)
    (entry,) = json.loads(bench.read_text(encoding="utf-8"))["sizes"]
    return busbw(entry["num_bytes"], median(entry["longest_ns"]), setup.num_ranks)


def by_others(context: Context, train: Train) -> float:
    """Ask nccl-tests, where they are installed, or else a loop of all-reduces of tensors where the backend has them."""
    setup = context.setup
    if setup.backend == "nccl" and shutil.which(NCCL_TESTS):
        words = [NCCL_TESTS, f"-b{NUM_BYTES}", f"-e{NUM_BYTES}", f"-g{setup.num_ranks}"]
        return of_nccl_tests(run_command(context, words, 90))
    device, in_a_row = ("cuda", 20) if setup.backend == "nccl" else ("cpu", 1)
    told = train("all_reduces.py", f"--device={device}", f"--num-bytes={NUM_BYTES}", f"--in-a-row={in_a_row}").told
    return busbw(told["num_bytes"], told["median_ns"], setup.num_ranks)


def busbw(num_bytes: int, ns: float, num_ranks: int) -> float:
    return num_bytes / ns * 2 * (num_ranks - 1) / num_ranks


def of_nccl_tests(printed: str) -> float:
    """Return the out-of-place busbw; the columns are size, count, type, redop, root, time, algbw, busbw."""
    row = re.search(rf"^\s*{NUM_BYTES}\s+\d+\s+\w+\s+\w+\s+-?\d+\s+[\d.]+\s+[\d.]+\s+([\d.]+)", printed, re.MULTILINE)
    assert row is not None, printed
    return float(row.group(1))


def test_the_bandwidth_that_nccl_tests_print() -> None:
    row = "    16777216       4194304     float     sum      -1    123.4   135.96   135.96      0    120.1   139.7"
    assert of_nccl_tests(f"# nThread 1\n{row}\n# Avg bus bandwidth : 1.0\n") == 135.96


def test_the_overhead_in_one_process_and_in_separate_ones(context: Context, own_gpus: None) -> None:
    (low, high), (low_apart, high_apart) = overhead(context, "turns"), overhead(context, "apart", "--apart")
    assert low <= high_apart
    assert low_apart <= high


def overhead(context: Context, name: str, *options: str) -> tuple[float, float]:
    out = context.folder / name
    own = ["--out", str(out), "--rounds", "3", f"--nproc={context.setup.num_ranks}", *options]
    run_command(context, ddpprof_command("overhead", *own, TIMED, *context.setup.options, "--steps=60"), 200)
    printed = run_command(context, ddpprof_command("report", str(out), "--format", "json"), 60)
    ratio = json.loads(printed)["ratio"]
    return float(ratio["low"]), float(ratio["high"])


def test_beside_nsys_which_occupies_cupti(context: Context, setup: Setup) -> None:
    nsys = shutil.which("nsys")
    if nsys is None or not setup.num_gpus:
        pytest.skip("it needs a GPU, and nsys")
    out = context.folder / "run"
    trace = trace_command(out, TIMED, *setup.options, "--steps=60")
    run_command(context, [nsys, "profile", "--output", str(context.folder / "nsys"), *trace], 90)
    report = build_report(load_run(out))
    has_kernels = any(step.compute_ns > 0 for rank in report.ranks for step in rank.steps)
    assert has_kernels or any("kernel" in text for text in report.missing)
