"""TensorBoard as started by `ddpprof tensorboard`: it answers requests for this machine only."""

from __future__ import annotations

from typing import Any

from absl import app
from tensorboard import default, main_lib, program

from ddpprof.cli.this_machine import for_this_machine


class _Server(program.WerkzeugServer):  # type: ignore[misc] # tensorboard has no types
    def __init__(self, wsgi_app: Any, flags: Any) -> None:
        super().__init__(for_this_machine(wsgi_app), flags)


def main() -> None:
    main_lib.global_init()
    board = program.TensorBoard(default.get_plugins(), server_class=program.with_port_scanning(_Server))
    app.run(board.main, flags_parser=board.configure)


if __name__ == "__main__":
    main()
