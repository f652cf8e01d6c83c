"""Find the line of a job's output that says why the job failed.

This is the last error of the script itself. It is neither torchrun's traceback about its ranks at the end of the
output, nor the error of a rank that lost its connection to another rank.
"""

from __future__ import annotations

import re

from ddpprof.topics.failure import is_of_a_lost_peer

_OF_A_RANK = re.compile(r"^\[(?:rank|default)\d+\]:\s?")
"""prefix that torch or torchrun adds to the lines of a rank"""
_OF_TORCHRUN = re.compile(r"[WEIF]\d{4} [\d:.]+ .*torch/distributed/|=+$|\*+$|-+$|Setting OMP_NUM_THREADS environment")
"""torchrun's log, separator lines, and messages about threads"""
_ENDED = re.compile(r" failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
"""torchrun's log about the rank that failed first"""
_ITS_TRACEBACK = re.compile(
    r"^Traceback \(most recent call last\):\n(?:[ \t][^\n]*\n)+"
    r"torch\.distributed\.elastic\.multiprocessing\.errors\.ChildFailedError:.*",
    re.MULTILINE | re.DOTALL,
)
"""torchrun's traceback and its table of failed ranks, which do not contain the reason"""
_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Iteration|Warning)\b(?::|$)|[\w.-]+: error: ")
"""last line of a traceback, or an error of `argparse`"""


def last_error(output: str) -> str:
    """Return the line that says why the job failed.

    If the job printed nothing, return how the first failed rank ended, if torchrun reports it.
    """
    lines = [_OF_A_RANK.sub("", line).strip() for line in _ITS_TRACEBACK.sub("", output).splitlines()]
    said = [line for line in lines if line and not _OF_TORCHRUN.match(line)]
    raised = [line for line in said if _RAISED.match(line)]
    causes = [line for line in raised if not is_of_a_lost_peer(line)]
    error = [line for line in said if "Error" in line and not line.startswith(("raise ", "File "))]
    return (causes or raised or error or said or [_how_it_ended(output)])[-1]


def _how_it_ended(output: str) -> str:
    ended = _ENDED.search(output)
    if ended is None:
        return "it printed nothing"
    code, rank = int(ended[1]), ended[2]
    how = f"ended with exit code {code}" if code >= 0 else f"was terminated by signal {-code}"
    return f"rank {rank} {how}, and printed nothing"
