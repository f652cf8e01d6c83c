"""Which line of a job's output says why it failed?

The last error of the script itself: not torchrun's traceback about its ranks, which ends the output, and not the error
of a rank that only lost another one.
"""

from __future__ import annotations

import re

from ddpprof.measures.ranks.failure import is_of_a_lost_peer

_OF_A_RANK = re.compile(r"^\[(?:rank|default)\d+\]:\s?")
"""prefix that torch or torchrun puts before a rank's lines"""
_OF_TORCHRUN = re.compile(r"[WEIF]\d{4} [\d:.]+ .*torch/distributed/|=+$|\*+$|-+$")
"""torchrun's log, and rules"""
_ITS_TRACEBACK = re.compile(
    r"^Traceback \(most recent call last\):\n(?:[ \t][^\n]*\n)+"
    r"torch\.distributed\.elastic\.multiprocessing\.errors\.ChildFailedError:.*",
    re.MULTILINE | re.DOTALL,
)
"""torchrun's traceback, and its table of failed ranks, which says no reason"""
_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Iteration|Warning)\b(?::|$)|[\w.-]+: error: ")
"""the last line of a traceback, or the error of `argparse`"""


def last_error(output: str) -> str:
    """Return the line, or that the job printed nothing."""
    lines = [_OF_A_RANK.sub("", line).strip() for line in _ITS_TRACEBACK.sub("", output).splitlines()]
    said = [line for line in lines if line and not _OF_TORCHRUN.match(line)]
    raised = [line for line in said if _RAISED.match(line)]
    causes = [line for line in raised if not is_of_a_lost_peer(line)]
    error = [line for line in said if "Error" in line and not line.startswith(("raise ", "File "))]
    return (causes or raised or error or said or ["it printed nothing"])[-1]
