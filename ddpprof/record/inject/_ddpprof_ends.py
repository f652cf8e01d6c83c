"""Handle the ends of processes: failed children, scripts without RANK, and ranks after torchrun was killed.

ddpprof itself is imported only after a child process has failed.
"""

import contextlib
import functools
import os
import sys


def install_multiprocessing(popen_fork):
    """Record failed child processes of ``multiprocessing``, and therefore of ``mp.spawn``."""
    _note_after(popen_fork.Popen, "poll")


def install_subprocess(subprocess):
    _note_after(subprocess.Popen, "_handle_exitstatus")


def _note_after(popen, name):
    """Wrap the method that obtains a child's exit code, to record nonzero codes."""
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
"""maximum number of failures that are recorded; a script may start a failing program again and again"""
_noted = []


def _note(pid, exit_code):
    if len(_noted) >= _MOST:
        return
    _noted.append(pid)
    with contextlib.suppress(Exception):  # the script must continue even if ddpprof fails
        from ddpprof.record.torchrun import note_child

        note_child(pid, exit_code)


_LAUNCHER_VARIABLES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE"}


def explain_missing_rank(note):
    """Write the variable's name to the file `note` if the process ends because RANK or a similar variable is not set.

    Other exceptions are printed as usual.
    """
    show = sys.excepthook

    def hook(kind, value, traceback):
        missing = _missing_variable(kind, value)
        if missing is None:
            show(kind, value, traceback)
        else:
            with open(note, "w", encoding="utf-8") as file:
                file.write(missing)

    sys.excepthook = hook


def _missing_variable(kind, value):
    """Return the name of the launcher variable whose absence ended the script; ``None`` for other errors."""
    if issubclass(kind, KeyError) and value.args and value.args[0] in _LAUNCHER_VARIABLES - os.environ.keys():
        return value.args[0]
    message = str(value)
    if issubclass(kind, ValueError) and "environment variable" in message and "expected, but not set" in message:
        return next((name for name in sorted(_LAUNCHER_VARIABLES) if f"variable {name} " in message), "RANK")
    return None


_PR_SET_PDEATHSIG = 1


def place() -> str:
    """Return an identifier of the PID namespace and the machine's boot. PIDs are unique among processes that share it.

    Raises ``OSError`` if the system does not provide these, for example if it is not Linux.
    """
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{os.readlink('/proc/self/ns/pid')} {file.read().strip()}"


def end_with_agent(agent: str) -> None:
    """End this process when torchrun's process ends.

    If torchrun is killed, it cannot end its ranks. They would continue to train and keep their devices. Does nothing if
    torchrun runs elsewhere, for example outside this container. `agent`: torchrun's PID, a space, and its `place`.
    """
    import ctypes  # few processes need this module
    import signal

    number, _, where = agent.partition(" ")
    try:
        if where != place():
            return
    except OSError:
        return
    if os.getppid() == int(number):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if _is_dead(int(number)):  # torchrun was killed before `prctl` took effect
        os.kill(os.getpid(), signal.SIGTERM)


def _is_dead(process: int) -> bool:
    try:
        os.kill(process, 0)
        with open(f"/proc/{process}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]
    except ProcessLookupError:
        return True
    except OSError:  # the process belongs to another user, or the system hides it
        return False
    return state in (b"Z", b"X")  # dead, but its parent has not waited for it
