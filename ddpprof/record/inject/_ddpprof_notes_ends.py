"""Notes how children of this process end, which may be ranks that the script itself started.

Nothing of ddpprof is imported before a child has failed.
"""

import contextlib
import functools


def install_multiprocessing(popen_fork):
    """Listen to ``multiprocessing``, and so to ``mp.spawn``."""
    _note_after(popen_fork.Popen, "poll")


def install_subprocess(subprocess):
    _note_after(subprocess.Popen, "_handle_exitstatus")


def _note_after(popen, name):
    """Wrap the method in which the exit code of a child becomes known."""
    original = getattr(popen, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def learns(self, *args, **kwargs):
        before = self.returncode
        result = original(self, *args, **kwargs)
        if before is None and self.returncode:
            _note(self.pid, self.returncode)
        return result

    setattr(popen, name, learns)


_MOST = 256
"""limit on noted ends: a script may start a program that fails again and again"""
_noted = []


def _note(pid, exit_code):
    if len(_noted) >= _MOST:
        return
    _noted.append(pid)
    with contextlib.suppress(Exception):  # the script must go on, whatever happens to ddpprof
        from ddpprof.record.exits import note_child

        note_child(pid, exit_code)
