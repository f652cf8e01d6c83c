"""A trial with one process has no launcher, so ddpprof sets the launcher's variables itself.

Lightning starts ranks of its own unless these variables say that somebody else has done so. They are taken back when it
asks, since the script may want several ranks.
"""

from __future__ import annotations

import functools
import os
import socket
from types import ModuleType
from typing import Any

_MARK = "DDPPROF_ONE_RANK"
_PORT = "MASTER_PORT"
_ONLY_RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}


def launcher_variables() -> dict[str, str]:
    """Return the variables with which torchrun would start the only rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {_MARK: "1", _PORT: str(port), **_ONLY_RANK}


def install(environments: ModuleType) -> None:
    """Take the variables back when Lightning looks who starts its ranks; its own ranks inherit none of them.

    `environments`: ``plugins.environments.lightning`` of Lightning's Fabric.
    """
    if _MARK not in os.environ:
        return
    original = environments.LightningEnvironment.__init__

    @functools.wraps(original)
    def begins(self: Any) -> None:
        if os.environ.pop(_MARK, None) is not None:
            for name in (_PORT, *_ONLY_RANK):
                os.environ.pop(name, None)
        original(self)

    environments.LightningEnvironment.__init__ = begins
