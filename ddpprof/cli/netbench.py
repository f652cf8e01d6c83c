"""`ddpprof netbench`: start ranks that measure collectives, or run as one of these ranks, and print the results."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ddpprof.cli.arguments import add_link_speed, seconds, sizes_bytes
from ddpprof.cli.job import add_torchrun_options
from ddpprof.cli.saying import CHOICES, add_json_option, progress
from ddpprof.errors import DdpprofError, writing
from ddpprof.files import local

if TYPE_CHECKING:
    from ddpprof.model.json_files import NetBench

_SIZES = "1K-256M"
_SECONDS = "1"
_EXAMPLES = """\
In a job started by torchrun, Slurm or MPI, netbench measures communication between the ranks of that job:
  srun ddpprof netbench -o network.json
On several hosts, run it on each host with torchrun's own options:
  ddpprof netbench --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500
"""


def add_netbench_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-o", "--out", type=local, metavar="FILE.json", help="write the time of every iteration to a file")
    add(
        "--sizes",
        type=sizes_bytes,
        default=_SIZES,
        metavar="SIZES",
        help="message sizes: a range, whose sizes double at each step, or a list such as 64K,1M,25M (%(default)s)",
    )
    add(
        "--collective",
        choices=["all_reduce", "all_gather", "reduce_scatter", "broadcast"],
        default="all_reduce",
        help="collective to measure, with float32 data (%(default)s)",
    )
    add(
        "--backend",
        metavar="NAME",
        help="gloo, nccl, … (default: the accelerator's backend, or gloo without an accelerator)",
    )
    add(
        "--seconds",
        type=seconds,
        default=_SECONDS,
        metavar="S",
        help="time to spend on each size; no larger sizes are measured once a single collective takes longer than this "
        "(%(default)s)",
    )
    add_link_speed(parser)
    add_json_option(parser)
    add_torchrun_options(parser)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    parser.set_defaults(run=run_netbench)


def run_netbench(options: argparse.Namespace) -> int:
    from ddpprof.record import launch

    if options.out is not None and not options.out.parent.is_dir():
        raise DdpprofError(f"cannot write {options.out}: there is no folder {options.out.parent}.")
    launch.refuse_without_torch()
    if options.torchrun is None and launch.inside_job():
        return _run_as_a_rank(options)
    if options.torchrun is None:
        raise DdpprofError("give the number of ranks: ddpprof netbench --nproc-per-node 2 (not needed inside a job).")
    from ddpprof.record.launch import run_netbench

    sys.stdout.flush()
    if run_netbench(options.torchrun, _own_words(options)):
        raise KeyboardInterrupt
    return 0


def _own_words(options: argparse.Namespace) -> list[str]:
    """Return all options except torchrun's as command-line arguments."""
    sizes = ",".join(map(str, options.sizes))
    words = [f"--sizes={sizes}", f"--collective={options.collective}", f"--seconds={options.seconds}"]
    words += [f"--backend={options.backend}"] if options.backend is not None else []
    words += [f"--link-speed={options.link_speed / 1000:.3f}Kbit"] if options.link_speed is not None else []
    words += ["--json"] if CHOICES.prints_json else []
    return words + ([f"--out={options.out}"] if options.out is not None else [])


def _run_as_a_rank(options: argparse.Namespace) -> int:
    from ddpprof.record.netbench import Plan, measure

    measured = measure(Plan(options.collective, options.sizes, options.backend, options.seconds, options.link_speed))
    if measured is not None:
        _show(measured, options.out)
    return 0


def _show(bench: NetBench, out: Path | None) -> None:
    import json
    from dataclasses import asdict

    from ddpprof.render.sections.whatif import netbench_sections
    from ddpprof.render.terminal import render_terminal
    from ddpprof.rundir import write_json

    if CHOICES.prints_json:
        sys.stdout.write(f"{json.dumps(asdict(bench))}\n")
    else:
        render_terminal(netbench_sections(bench), sys.stdout)
    if out is None:
        progress("\nTo save the time of every iteration, add -o FILE.json.")
        return
    with writing(out):
        write_json(out, asdict(bench))
    progress(f"\nWrote {out}.")
