"""The exceptions that ddpprof raises.

DdpprofError            base class; the command line prints it in one line and exits with code 2
├── NotARun             a path contains neither a ddpprof run nor traces
├── BadTrace            a trace file cannot be read
├── RemoteError         a remote file cannot be reached; also an ``OSError``
│   └── RemoteFileNotFound   the file does not exist; also a ``FileNotFoundError``
├── RunExists           recording would overwrite an earlier run
└── CannotRecord        recording cannot start (no torch, no such script, unwritable folder)
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

__all__ = [
    "BadTrace",
    "CannotRecord",
    "DdpprofError",
    "NotARun",
    "RemoteError",
    "RemoteFileNotFound",
    "RunExists",
    "did_you_mean",
    "how_to_install",
    "writing",
]


class DdpprofError(Exception):
    """Base class of ddpprof's errors. The message says in one line what is wrong, where, and what to do next."""


class NotARun(DdpprofError):
    """The path contains neither a ddpprof run nor torch.profiler traces."""


class BadTrace(DdpprofError):
    """The file is not a trace, is truncated, or contains invalid data."""


def refuse_newer(where: object, found: object, known: int, error: type[DdpprofError] = NotARun) -> None:
    """Raise `error` if the file `where` was written by a newer ddpprof.

    `found`: format number that the file declares, if any. `known`: newest format number that this version reads.
    """
    if isinstance(found, int) and found > known:
        raise error(
            f"{where} was written by a newer version of ddpprof: its format is {found}, but this version reads "
            f"formats up to {known}. Update with: pip install --upgrade ddpprof"
        )


class RemoteError(DdpprofError, OSError):
    """A remote file cannot be reached.

    ``strerror`` is the reason in one line, and ``filename`` is the address without passwords.
    """

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class RemoteFileNotFound(RemoteError, FileNotFoundError):
    """The remote file, folder or bucket does not exist."""


class RunExists(DdpprofError):
    """The output folder contains an earlier run, and ``--force`` was not given."""


class CannotRecord(DdpprofError):
    """Recording cannot start."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a space and a sentence that suggests the known word most similar to `word`; empty if none is similar."""
    nearest = nearest_words(word, known, 1)
    return f" Did you mean {nearest[0]}?" if nearest else ""


def how_to_install(*packages: str) -> str:
    """Return a sentence that says how to install missing packages."""
    return f"Install it with: pip install {' '.join(packages)}"


_NEAR = 0.7
"""a word counts as a misspelling of a known word if their similarity (`difflib`) is at least this"""
_LEAST_LETTERS = 3
"""a prefix identifies a known word if it has at least this many letters"""


def nearest_words(word: str, known: Iterable[str], most: int) -> list[str]:
    """Return known words that start with `word` or are a prefix of it; if there are none, words with similar spelling.

    Leading dashes of options are ignored, because they make all options similar.
    """
    from difflib import get_close_matches

    bare = {one.lstrip("-"): one for one in sorted(known)}
    asked = word.lstrip("-")
    begins = [one for one in bare if min(len(one), len(asked)) >= _LEAST_LETTERS and _is_beginning(one, asked)]
    close = sorted(begins, key=len) or get_close_matches(asked, bare, most, _NEAR)
    return [bare[one] for one in close[:most]]


def _is_beginning(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


@contextmanager
def writing(place: object, kind: type[DdpprofError] = DdpprofError) -> Iterator[None]:
    """Convert an ``OSError`` raised while the block writes to `place` into a one-line error of type `kind`."""
    try:
        yield
    except OSError as error:
        raise kind(f"cannot write {place}: {error.strerror}.") from error
