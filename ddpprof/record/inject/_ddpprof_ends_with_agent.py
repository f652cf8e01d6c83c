"""A rank's end when its torchrun is killed and so cannot end it: the rank would keep its device and train on."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def place() -> str:
    """Return the scope of process numbers: a boot of the machine, and a namespace of numbers.

    Raises ``OSError`` if the system does not tell, as on systems other than Linux.
    """
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{os.readlink('/proc/self/ns/pid')} {file.read().strip()}"


def install(agent: str) -> None:
    """End with `agent`: the number of torchrun's process, and its place. Elsewhere, as in a container, do nothing."""
    number, _, where = agent.partition(" ")
    try:
        if where != place():
            return
    except OSError:
        return
    if os.getppid() == int(number):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if _is_dead(int(number)):  # it was killed before this process came here
        os.kill(os.getpid(), signal.SIGTERM)


def _is_dead(process: int) -> bool:
    try:
        os.kill(process, 0)
        with open(f"/proc/{process}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]
    except ProcessLookupError:
        return True
    except OSError:  # it runs as another user, or the system hides it
        return False
    return state in (b"Z", b"X")  # its parent has not waited for it yet
