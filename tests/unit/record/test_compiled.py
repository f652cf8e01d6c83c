"""What torch.compile is told to leave alone."""

from __future__ import annotations

from importlib import import_module

from ddpprof.record import compiled


def test_every_module_that_is_left_alone_exists() -> None:
    for name in compiled._MODULES:
        import_module(f"ddpprof.record.{name}")
