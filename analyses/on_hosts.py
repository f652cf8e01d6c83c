"""A launcher that starts one rank in each of some network namespaces, with addresses from 10.77.0.1 on (see hosts.py).

python on_hosts.py NAMESPACE,NAMESPACE train.py [its arguments]
"""

from __future__ import annotations

import os
import subprocess
import sys

from hosts import on_host


def main(names: list[str], command: list[str]) -> int:
    port = str(29400 + os.getpid() % 1000)
    job = {"WORLD_SIZE": str(len(names)), "LOCAL_RANK": "0", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen(
            on_host(name, f"node{rank}", command),
            env={**os.environ, **job, "RANK": str(rank), "GLOO_SOCKET_IFNAME": "eth0"},
        )
        for rank, name in enumerate(names)
    ]
    return max([rank.wait() for rank in ranks])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1].split(","), [sys.executable, *sys.argv[2:]]))
