"""The errors that ddpprof raises on purpose.

DdpprofError            the user can fix it; the command line prints it in one line and exits with 2
├── NotARun             a path that holds neither a ddpprof run nor traces
├── BadTrace            a trace file that cannot be read
├── RemoteError         a remote file cannot be reached; also an ``OSError``
│   └── RemoteFileNotFound   the file does not exist; also a ``FileNotFoundError``
├── RunExists           recording would overwrite an earlier run
└── CannotRecord        recording is impossible here (no torch, no such script, unwritable folder)
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
    """An error that says in one line what is wrong, where, and what to do next."""


class NotARun(DdpprofError):
    """The path holds neither a ddpprof run nor torch.profiler traces."""


class BadTrace(DdpprofError):
    """The trace file is not a trace, is truncated, or holds something that no real trace holds."""


def refuse_newer(where: object, found: object, known: int, error: type[DdpprofError] = NotARun) -> None:
    """Raise `error` if a newer ddpprof has written what is at `where`. `found`: the format it declares, if any."""
    if isinstance(found, int) and found > known:
        raise error(
            f"{where} was written by a newer ddpprof: its format is {found}, but this version reads formats up to "
            f"{known}. Update with: pip install --upgrade ddpprof"
        )


class RemoteError(DdpprofError, OSError):
    """A remote file cannot be reached.

    ``strerror`` is the reason in one line, ``filename`` the address without passwords.
    """

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class RemoteFileNotFound(RemoteError, FileNotFoundError):
    """The remote file, folder or bucket does not exist."""


class RunExists(DdpprofError):
    """The output folder holds an earlier run, and ``--force`` was not given."""


class CannotRecord(DdpprofError):
    """Recording cannot start."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a space and the sentence that suggests the known word nearest to `word`; empty if none is near."""
    nearest = nearest_words(word, known, 1)
    return f" Did you mean {nearest[0]}?" if nearest else ""


def how_to_install(*packages: str) -> str:
    """Return the sentence about how to install a missing package; ddpprof's own extras would need its source."""
    return f"Install it with: pip install {' '.join(packages)}"


_NEAR = 0.7
"""minimum similarity of two words, by `difflib`, for one to be a likely misspelling of the other"""
_LEAST_LETTERS = 3
"""minimum length of a prefix that identifies a word"""


def nearest_words(word: str, known: Iterable[str], most: int) -> list[str]:
    """Return known words that complete or shorten `word`, shortest first; or else words with a similar spelling.

    Leading dashes of options are ignored, because they make all options look alike.
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
    """Turn an ``OSError`` raised in the block, which writes to `place`, into a one-line error of type `kind`."""
    try:
        yield
    except OSError as error:
        raise kind(f"cannot write {place}: {error.strerror}.") from error
