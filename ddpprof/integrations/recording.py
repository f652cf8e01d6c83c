"""A recording that is controlled by callbacks of a framework instead of a ``with`` block."""

from __future__ import annotations

import atexit
import sys
from typing import Any

from ddpprof.record.api import profile


class CallbackRecording:
    """`ddpprof.profile` with `begin` and `end` methods. Recording ends with the process at the latest."""

    def __init__(self, out: str, **options: Any) -> None:
        """Take the same arguments as `ddpprof.profile`."""
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
        """End recording if it is still active. `error`: the exception that ended training early."""
        if self._profile is None:
            return
        ended, self._profile = self._profile, None
        atexit.unregister(self._end_with_process)
        ended.__exit__(None if error is None else type(error), error, None)

    def _end_with_process(self) -> None:
        """End recording when the process exits, with the exception that ends the process if there is one."""
        self.end(getattr(sys, "last_value", None))
