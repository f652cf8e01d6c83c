"""Start a script on several ranks as torchrun does, but by forking, since importing torch takes longer than training.

python forked_ranks.py NUM_RANKS SCRIPT [ARGUMENTS]
"""

import os
import runpy
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import torch._dynamo  # every optimizer imports it
import torch.nn.parallel  # noqa: F401 (so that it is there before the fork)


def run_rank(rank: int, num_ranks: int, port: int, script: str, arguments: Sequence[str]) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


def main(number: str, script: str, *arguments: str) -> int:
    """Return the exit code of the first rank that failed; the others are ended then."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    num_ranks = int(number)
    alive = set()
    for rank in range(num_ranks):
        process = os.fork()
        if process == 0:
            run_rank(rank, num_ranks, port, script, arguments)
            sys.exit()
        alive.add(process)
    first_failure = 0
    while alive:
        process, status = os.wait()
        alive.discard(process)
        code = os.waitstatus_to_exitcode(status)
        if code and not first_failure:
            first_failure = code
            for other in alive:
                os.kill(other, signal.SIGTERM)
    return first_failure if first_failure >= 0 else 128 - first_failure


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
