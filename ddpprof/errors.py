"""The errors that ddpprof raises on purpose.

DdpprofError            the user can mend it; the command line prints it in one line and exits with 2
├── NotARun             a path that holds neither a ddpprof run nor traces
├── BadTrace            a trace file that cannot be read
├── RemoteError          a file that is not on this machine cannot be reached; also an ``OSError``
│   └── RemoteFileNotFound   it is not there; also a ``FileNotFoundError``
├── RunExists           recording would overwrite an earlier run
└── CannotRecord        recording is impossible here (no torch, no such script, unwritable folder)
"""

__all__ = [
    "BadTrace",
    "CannotRecord",
    "DdpprofError",
    "NotARun",
    "RemoteError",
    "RemoteFileNotFound",
    "RunExists",
]


class DdpprofError(Exception):
    """Says what is wrong, where, and what to do next, in one line."""


class NotARun(DdpprofError):
    """The path holds neither a ddpprof run nor torch.profiler traces."""


class BadTrace(DdpprofError):
    """A trace file that is not one, is cut off, or holds what no trace holds."""


class RemoteError(DdpprofError, OSError):
    """``strerror`` is one line on what is wrong, ``filename`` the address without passwords."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class RemoteFileNotFound(RemoteError, FileNotFoundError):
    """There is no such remote file, folder or bucket."""


class RunExists(DdpprofError):
    """The output folder holds an earlier run, and ``--force`` was not given."""


class CannotRecord(DdpprofError):
    """Recording cannot start."""
