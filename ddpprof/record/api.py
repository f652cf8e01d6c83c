"""Entry points of the recording.

`profile` and `watch` are for Python code, `CallbackRecording` for callbacks of frameworks, and `install` for injection
into a script.
"""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from ddpprof.record import patches
from ddpprof.record.compilation import modify_compilation
from ddpprof.record.ddp_construction import modify_ddp
from ddpprof.record.events import EVENTS
from ddpprof.record.settings import WATCHING, Settings, settings_from_environment

if TYPE_CHECKING:
    from ddpprof.record.session import Early, Session


class profile:  # noqa: N801 (a context manager, named as torch.profiler.profile is)
    """Record the DDP training inside a ``with`` block into the run directory `out`.

    Every rank must enter the block with the same arguments. Steps are detected automatically: a step ends after
    ``optimizer.step()``. If this does not fit your training loop, call `step()` at the end of each training step.

    Args:
        out: the run directory. It is created; an earlier run in it is kept unless `force` is given.
        skip_first: initial steps that are not recorded.
        cost_steps: steps in which ddpprof's overhead is measured. Recording is off in half of them.
        timed_steps: steps with recording off. Only their durations are kept.
        warmup: steps with the profiler on. Their trace is discarded.
        steps: profiled steps.
        alone_steps: final steps without gradient communication and without the profiler, to measure how long
            computation alone takes. The ranks' parameters differ afterwards.
        profiler: whether to use torch.profiler. Recording without the profiler costs less and gives less detail.
        record_shapes: as in ``torch.profiler.profile``.
        with_stack: as in ``torch.profiler.profile``.
        profile_memory: as in ``torch.profiler.profile``.
        force: whether to replace an earlier run in `out`.
        pulse: whether to write the pulse file, a short record of every step of the whole run.
        keep_command: whether to store the process's command line in the run.

    At the end of the block, the first rank prints the path of the run, and the command that shows the run, to stderr.

    Recording never raises an exception: a problem is reported once on stderr, and training continues. In a script that
    runs under `ddpprof trace`, the block creates no run, but calls to its `step()` still end steps.
    """

    def __init__(
        self,
        out: str,
        *,
        skip_first: int = Settings.skip_first,
        cost_steps: int = Settings.cost_steps,
        timed_steps: int = Settings.timed_steps,
        warmup: int = Settings.warmup,
        steps: int = Settings.steps,
        alone_steps: int = Settings.alone_steps,
        profiler: bool = Settings.profiler,
        record_shapes: bool = Settings.record_shapes,
        with_stack: bool = Settings.with_stack,
        profile_memory: bool = Settings.profile_memory,
        force: bool = Settings.force,
        pulse: bool = Settings.pulse,
        keep_command: bool = True,
    ) -> None:
        self._settings = Settings(
            out=os.path.abspath(out),
            command=tuple(sys.argv) if keep_command else (),
            skip_first=skip_first,
            cost_steps=cost_steps,
            timed_steps=timed_steps,
            warmup=warmup,
            steps=steps,
            alone_steps=alone_steps,
            profiler=profiler,
            record_shapes=record_shapes,
            with_stack=with_stack,
            profile_memory=profile_memory,
            force=force,
            pulse=pulse,
        )
        self._session: Session | None = None

    def __enter__(self) -> profile:
        if not patches.installed():  # otherwise `ddpprof trace` or an outer block is already recording
            import torch.nn.parallel.distributed as distributed

            self._session = _begun(self._settings, distributed)
            if self._session is None:
                patches.remove()
        return self

    def step(self) -> None:
        """Mark the end of a training step. After the first call, steps end only where this method is called."""
        EVENTS.step_marked()

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if self._session is not None:
            run = self._session.run_to_tell_of
            self._session.close(error)
            patches.remove()
            self._session = None
            if run is not None:
                with suppress(Exception):  # stderr may be closed
                    sys.stderr.write(f"ddpprof: the run is in {run}. View it with: ddpprof report {run}\n")

    def __repr__(self) -> str:
        state = "recording into" if self._session is not None else "records into"
        return f"<ddpprof.profile: {state} {self._settings.out}; view it with: ddpprof report {self._settings.out}>"


def watch(
    out: str,
    *,
    force: bool = Settings.force,
    keep_command: bool = True,
) -> profile:
    """Watch the DDP training inside a ``with`` block, without recording any step in detail.

    Every rank writes a short record of each step into its pulse file in the run directory, at a cost of a few
    microseconds. ``ddpprof top OUT`` shows the ranks while training runs, and ``ddpprof report OUT`` summarizes the
    whole run afterwards.

    Args:
        out: the run directory. It is created; an earlier run in it is kept unless `force` is given.
        force: whether to replace an earlier run in `out`.
        keep_command: whether to store the process's command line in the run.

    Watching never raises an exception: a problem is reported once on stderr, and training continues.
    """
    return profile(out, force=force, keep_command=keep_command, **WATCHING)


class CallbackRecording:
    """`ddpprof.profile` with `begin` and `end` methods. Without a call to `end`, recording ends with the process."""

    def __init__(self, out: str, **options: Any) -> None:
        """Accept the same arguments as `ddpprof.profile`."""
        self._arguments = (out, options)
        profile(out, **options)  # raise errors in the arguments immediately
        self._profile: profile | None = None

    def begin(self) -> None:
        """Begin recording. If an earlier recording is still active because training raised an exception, end it."""
        self.end()
        out, options = self._arguments
        self._profile = profile(out, **options)
        self._profile.__enter__()
        atexit.register(self._end_with_process)

    def end(self, error: BaseException | None = None) -> None:
        """End recording if it is still active. `error`: the exception that ended training, if any."""
        if self._profile is None:
            return
        ended, self._profile = self._profile, None
        atexit.unregister(self._end_with_process)
        ended.__exit__(None if error is None else type(error), error, None)

    def _end_with_process(self) -> None:
        """End recording when the process exits. If an exception ended the process, record it."""
        self.end(getattr(sys, "last_value", None))


def install(distributed: ModuleType) -> None:
    """Prepare the recording. ``sitecustomize`` calls this while torch is being imported, so it must not use torch."""
    settings = settings_from_environment()
    if settings is not None:
        modify_ddp(distributed, settings)
        modify_compilation(distributed, settings)
        patches.install(distributed)
        early_end, before_ddp = _EarlyEnd(), _BeforeDdp(settings)

        def begin() -> None:
            early_end.may_come = False
            _record_until_exit(settings, distributed, before_ddp.hand_over())

        patches.wait_for_ddp(begin)
        if settings.pulse and not settings.trial:
            patches.wait_for_group(before_ddp.begin)


_WATCHED_AFTER_S = 5.0
"""seconds from the creation of the process group after which a rank without a DDP module is watched"""


class _BeforeDdp:
    """Watches a rank from the creation of its process group to the construction of its first DDP module."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._process = settings, 0
        self._changing, self._is_over = threading.Lock(), threading.Event()
        self._early: Early | None = None

    def begin(self) -> None:
        """Begin to watch this thread."""
        with suppress(Exception):  # the script must continue
            self._process, me = os.getpid(), threading.get_ident()
            arguments = (me, time.pthread_getcpuclockid(me))
            threading.Thread(target=self._run, args=arguments, name="ddpprof-before-ddp", daemon=True).start()
            multiprocessing.util.Finalize(None, self._end, exitpriority=100)
            atexit.register(self._end)

    def _run(self, thread: int, clock: int) -> None:
        if self._is_over.wait(_WATCHED_AFTER_S):
            return
        with suppress(Exception), self._changing:
            if not self._is_over.is_set():
                from ddpprof.record.session import Early

                self._early = Early.watching(self._settings, thread, clock)

    def hand_over(self) -> Early | None:
        """Stop watching, and return what a `Session` continues; ``None`` if nothing has been watched."""
        self._is_over.set()
        with self._changing:
            early, self._early = self._early, None
            return early

    def _end(self) -> None:
        if os.getpid() != self._process:  # in a forked child, in which the lock may never be released
            return
        early = self.hand_over()
        if early is not None:
            with suppress(Exception):  # the process is already ending
                early.end(_error_at_exit())


_OF_RANK = "DDPPROF_RANK_PROCESS"
"""environment variable with the PID of the rank. Processes that the rank starts inherit the variable, which shows them
that they are not ranks
"""


class _EarlyEnd:
    """Records the error of a rank that fails before it has constructed a DDP module."""

    def __init__(self) -> None:
        process = str(os.getpid())
        self.may_come = "RANK" not in os.environ or os.environ.setdefault(_OF_RANK, process) == process
        multiprocessing.util.Finalize(None, self._note, exitpriority=100)
        atexit.register(self._note)

    def _note(self) -> None:
        error = _error_at_exit()
        if not self.may_come or error is None or isinstance(error, KeyboardInterrupt):
            return  # after any `exec`, as in an import, Python exits with code 1 on Ctrl-C
        self.may_come = False
        with suppress(Exception):  # the process is already ending
            from ddpprof.record.torchrun import note_early_end

            note_early_end(error)


def _error_at_exit() -> BaseException | None:
    return sys.exc_info()[1] or getattr(sys, "last_value", None)


def _begun(settings: Settings, distributed: ModuleType, early: Early | None = None) -> Session | None:
    """Begin a session and return it. If this fails, print the reason and return ``None``; training continues."""
    try:
        from ddpprof.record.session import Session

        patches.install(distributed)
        session = Session(settings, early)
        session.begin()
    except Exception as error:
        with suppress(Exception):
            sys.stderr.write(f"ddpprof: cannot record: {error}. Training continues.\n")
        return None
    return session


def _record_until_exit(settings: Settings, distributed: ModuleType, early: Early | None = None) -> None:
    session = _begun(settings, distributed, early)
    if session is None:
        return

    def close() -> None:
        session.process_exits = True
        with suppress(KeyboardInterrupt):  # the process is already ending, and Python would print a traceback
            session.close(_error_at_exit())

    # A child of `multiprocessing` runs its finalizers but not `atexit`; the main process runs both.
    multiprocessing.util.Finalize(None, close, exitpriority=100)
    atexit.register(close)
    _before_threads_end(lambda: close() if session.trains_in_main_thread else None)


def _before_threads_end(function: Callable[[], None]) -> None:
    """Call `function` at exit, before Python waits for threads and executors.

    `atexit` functions run only after that wait, and threads may run for a long time after training or never end.
    """
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        with suppress(RuntimeError):  # the interpreter is already exiting
            register(function)
