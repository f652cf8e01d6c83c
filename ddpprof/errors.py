"""The errors that ddpprof raises on purpose.

DdpprofError            the user can mend it; the command line prints it in one line and exits with 2
├── NotARun             a path that holds neither a ddpprof run nor traces
├── BadTrace            a trace file that cannot be read
├── RunExists           recording would overwrite an earlier run
└── CannotRecord        recording is impossible here (no torch, no such script, unwritable folder)
"""

__all__ = ["BadTrace", "CannotRecord", "DdpprofError", "NotARun", "RunExists"]


class DdpprofError(Exception):
    """Says what is wrong, where, and what to do next, in one line."""


class NotARun(DdpprofError):
    """The path holds neither a ddpprof run nor torch.profiler traces."""


class BadTrace(DdpprofError):
    """A trace file that is not one, is cut off, or holds what no trace holds."""


class RunExists(DdpprofError):
    """The output folder holds an earlier run, and ``--force`` was not given."""


class CannotRecord(DdpprofError):
    """Recording cannot start."""
