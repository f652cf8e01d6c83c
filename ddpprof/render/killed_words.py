"""Who killed a process that could say nothing: the kernel, because memory was full, or somebody else?"""

from __future__ import annotations

_NOT_KNOWN = "The out-of-memory killer ends processes like this; the host's log (dmesg) would have a line about it."
_NOT_BY_THE_KERNEL = (
    "It was not the kernel's out-of-memory killer, which ended no process on that host during the job: a scheduler, a "
    "person or a program sent the signal."
)


def killer_sentence(num_oom_kills: int | None) -> str:
    """Return who may have sent SIGKILL. `num_oom_kills`: processes that the kernel ended on the host during the job."""
    if num_oom_kills is None:
        return _NOT_KNOWN
    if num_oom_kills == 0:
        return _NOT_BY_THE_KERNEL
    processes = "a process" if num_oom_kills == 1 else f"{num_oom_kills} processes"
    return (
        f"The kernel's out-of-memory killer ended {processes} on that host during the job: memory was full. Use a "
        "smaller batch or fewer DataLoader workers, or give the job more memory."
    )
