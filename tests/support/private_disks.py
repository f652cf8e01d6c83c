"""Hosts that share no folder: each mounts a file system of its own where the run goes."""

from __future__ import annotations

ON_A_DISK_OF_ITS_OWN = 'mount -t tmpfs own "$0" && { "${@:2}"; code=$?; cp -a "$0/run" "$1"; exit $code; }'
"""script for ``bash -c``: folder to mount on, where to copy the folder ``run`` in it at the end, and a command"""


def own_words(said: str) -> list[str]:
    """Not torch's warnings of hosts that no name server knows."""
    return [line for line in said.splitlines() if not line.startswith("[W")]
