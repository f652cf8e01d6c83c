"""Start of the ranks of `ddpprof netbench` with torchrun, and a one-line reason if they fail.

This needs no torch. Ranks that are all on this machine meet in a file, and gloo listens on the loopback interface, so
that nobody else can reach them.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from ddpprof.child_processes import helper_environment
from ddpprof.errors import CannotRecord
from ddpprof.record import launch
from ddpprof.scratch import scratch_folder

STORE_VARIABLE = "DDPPROF_NETBENCH_STORE"
"""variable that names the file in which the ranks meet"""

_HERE = ("--nproc-per-node", "--nproc_per_node", "--standalone")
_SAID = re.compile(r"^ddpprof: (.*)$", re.MULTILINE)
_ENDED = re.compile(r"^\s*rank\s*: (\d+) .*\n\s*exitcode\s*: (-?\d+)", re.MULTILINE)


def run_ranks(torchrun: Sequence[str], words: Sequence[str]) -> bool:
    """Run `ddpprof netbench` with the options `words` in every rank that torchrun starts.

    Returns whether it was interrupted. Raises `CannotRecord`.
    """
    with scratch_folder() as scratch:
        options, variables = _on_this_machine(scratch) if _is_on_this_machine(torchrun) else ([], {})
        given = [word for word in torchrun if not (options and word == "--standalone")]
        command = launch.torchrun_command([*options, *given, "-m", "ddpprof", "netbench", *words])
        with (scratch / "errors").open("w+b") as errors:
            code, interrupted = launch.run_to_its_end(command, {**helper_environment(), **variables}, stderr=errors)
            errors.seek(0)
            said = errors.read().decode(errors="replace")
    if code and not interrupted:
        raise CannotRecord(_why(said, code))
    return interrupted


def _is_on_this_machine(torchrun: Sequence[str]) -> bool:
    return all(word.startswith(_HERE) for word in torchrun if word.startswith("-"))


def _on_this_machine(scratch: Path) -> tuple[list[str], dict[str, str]]:
    rendezvous = ["--rdzv-backend=c10d", f"--rdzv-endpoint={scratch}/rendezvous", "--rdzv-conf=store_type=file"]
    variables = {
        STORE_VARIABLE: f"{scratch}/store",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
    }
    return ["--nnodes=1", "--local-addr=127.0.0.1", *rendezvous], variables


def _why(said: str, code: int) -> str:
    """Return the first problem in the output of the ranks and torchrun."""
    for rank, exit_code in _ENDED.findall(said):
        if int(exit_code) < 0 and -int(exit_code) != signal.SIGTERM:  # torchrun ends the others with SIGTERM
            return f"rank {rank} was ended by {signal.Signals(-int(exit_code)).name}."
    own = _SAID.search(said)
    if own is not None:
        return own.group(1)
    last = [line.strip() for line in said.splitlines() if "rror" in line]
    return f"torchrun ended with exit code {code}: {last[-1] if last else 'it gives no reason'}"
