"""The session of a process in `ddpprof trace`, from its first DDP module to the end of the process."""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType

from ddpprof.record import ddp_variants, patches
from ddpprof.record.settings import Settings, settings_from_environment


def install(distributed: ModuleType) -> None:
    """Prepare the recording. ``sitecustomize`` calls this while torch is being imported, so torch is not usable yet."""
    settings = settings_from_environment()
    if settings is not None:
        ddp_variants.install(distributed, settings)
        patches.install(distributed)
        early_end = _EarlyEnd()

        def begin() -> None:
            early_end.may_come = False
            _begin(settings)

        patches.wait_for_ddp(begin)


_OF_RANK = "DDPPROF_RANK_PROCESS"
"""variable by which processes that a rank starts know that they are none"""


class _EarlyEnd:
    """Notes the error that ends this process, if it is a rank and ends before it has a DDP module."""

    def __init__(self) -> None:
        process = str(os.getpid())
        self.may_come = "RANK" not in os.environ or os.environ.setdefault(_OF_RANK, process) == process
        multiprocessing.util.Finalize(None, self._note, exitpriority=100)
        atexit.register(self._note)

    def _note(self) -> None:
        if self.may_come:
            self.may_come = False
            with suppress(Exception):  # the process ends already
                from ddpprof.record.exits import note_early_end

                note_early_end(_error_at_exit())


def _error_at_exit() -> BaseException | None:
    return sys.exc_info()[1] or getattr(sys, "last_value", None)


def _begin(settings: Settings) -> None:
    try:
        from ddpprof.record.session import Session

        session = Session(settings)
        session.begin()
    except Exception as error:  # must never endanger the training
        with suppress(Exception):
            sys.stderr.write(f"ddpprof: cannot record: {error}. Training goes on.\n")
        return

    def close() -> None:
        session.process_exits = True
        with suppress(KeyboardInterrupt):  # the process ends already, and Python would print a traceback
            session.close(_error_at_exit())

    # A child of `multiprocessing` runs its finalizers but not `atexit`; the main process runs both.
    multiprocessing.util.Finalize(None, close, exitpriority=100)
    atexit.register(close)
    _before_threads_end(lambda: close() if session.trains_in_main_thread else None)


def _before_threads_end(function: Callable[[], None]) -> None:
    """Call `function` at the exit, before Python waits for threads and executors; `atexit` comes after that.

    They may take long, or for ever, though the training is over.
    """
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        with suppress(RuntimeError):  # the interpreter exits already
            register(function)
