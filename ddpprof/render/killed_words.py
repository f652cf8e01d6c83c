"""Says which signal ended a process or its worker, and whether the kernel sent it because memory was full."""

from __future__ import annotations

import re
import signal
from contextlib import suppress

_BY_A_SHELL = 128
"""a shell adds this to the number of the signal that ended its command"""
_KILLED_WORKER = re.compile(r"DataLoader worker .* is killed by signal: Killed")
_LIMITS = {
    signal.SIGXCPU: "It used as much processor time as it may: ulimit -t shows the limit.",
    signal.SIGXFSZ: "It wrote a file as large as it may: ulimit -f shows the limit.",
    signal.SIGHUP: "Its terminal or its connection was closed: start the job with nohup, or in tmux.",
}
"""signals that say enough by themselves"""
NOT_KNOWN = "The out-of-memory killer ends processes like this; the host's log (dmesg) would have a line about it."
_NOT_BY_THE_KERNEL = (
    "It was not the kernel's out-of-memory killer, which ended no process on that host meanwhile: something else sent "
    "the signal, such as a scheduler, which may watch memory and time as well, systemd-oomd, or a person."
)


def killer_sentence(said: str | None, exit_code: int | None, num_oom_kills: int | None) -> str | None:
    """Return what may have killed a rank, or a worker of its `DataLoader`; ``None`` if nothing says that it was killed.

    `said`: the rank's own words; ``None`` if it said nothing.
    """
    if said is None and exit_code is not None and -exit_code in _LIMITS:
        return _LIMITS[signal.Signals(-exit_code)]
    was_killed = exit_code in (-signal.SIGKILL, _BY_A_SHELL + signal.SIGKILL) if said is None else is_of_worker(said)
    if num_oom_kills and (was_killed or (said is None and exit_code is None)):
        processes = "a process" if num_oom_kills == 1 else f"{num_oom_kills} processes"
        return (
            f"The kernel's out-of-memory killer ended {processes} on that host, so memory was probably full. If so, "
            "use a smaller batch or fewer DataLoader workers, or give the job more memory."
        )
    if not was_killed:
        return None
    return NOT_KNOWN if num_oom_kills is None else _NOT_BY_THE_KERNEL


def signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def is_of_worker(said: str) -> bool:
    """Return whether a rank ended because a worker of its `DataLoader` was killed."""
    return _KILLED_WORKER.search(said) is not None
