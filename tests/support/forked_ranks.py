"""Start a script on several ranks as torchrun does, but by forking, since importing torch takes longer than training.

python forked_ranks.py NUM_RANKS SCRIPT [ARGUMENTS]

The garbage collector leaves alone what importing makes: otherwise it takes a second more at the end of each rank.
"""

import gc
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ports import unused_port


def import_torch() -> None:
    gc.disable()
    import torch._dynamo  # every optimizer imports it
    import torch.nn.parallel  # noqa: F401 (so that it is there before the fork)

    gc.freeze()
    gc.enable()


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


def end(processes: set[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)


def main(number: str, script: str, *arguments: str) -> int:
    """Return the exit code of the first rank that failed; the others are ended a second later."""
    import_torch()
    port, num_ranks = unused_port(), int(number)
    alive: set[int] = set()
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
            signal.signal(signal.SIGALRM, lambda *_: end(alive))
            signal.alarm(1)
    signal.alarm(0)
    return first_failure if first_failure >= 0 else 128 - first_failure


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
