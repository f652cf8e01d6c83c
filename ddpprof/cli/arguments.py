"""Parsers for option values, and default values from environment variables or the project's ``pyproject.toml``.

    DDPPROF_STEPS=20                 environment variable
    [tool.ddpprof]                   pyproject.toml, in the current folder or the nearest parent that has it
    steps = 20

An option on the command line takes precedence over the environment, and the environment over the file.
"""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ddpprof.errors import DdpprofError, did_you_mean
from ddpprof.ranks_and_steps import Numbers

NPROC = ("--nproc", "--nproc-per-node", "--nproc_per_node")
"""names of the option for the number of processes; they are the same in all commands"""
_UNKNOWN = re.compile(r"unrecognized arguments: (.*)", re.DOTALL)
_INVALID = re.compile(r"invalid choice: '?([^' ]*)'? \(choose from (.*)\)", re.DOTALL)
_WORD = re.compile(r"[\w.-]+")
_DURATION = re.compile(r"(\d{1,15}(?:\.\d+)?)(ns|us|µs|ms|s)")
_SIZE = re.compile(r"(\d{1,15})([KMG]?)(?:i?B)?", re.IGNORECASE)
_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SPAN = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_RATE = re.compile(r"(\d{1,15}(?:\.\d+)?)([KMGTkmgt])(bit|b|B)(?:/s|ps)?")
_RATES = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_LARGEST = 1e9
_LARGEST_COUNT = 10**12
_LONGEST_S = 1e6


def add_profiler_options(parser: ArgumentParser) -> None:
    """Add the options that control how steps are recorded."""
    parser.add_argument("--no-profiler", action="store_true", help="use light recording only, without torch.profiler")
    for name in ("--record-shapes", "--with-stack", "--profile-memory"):
        parser.add_argument(name, action="store_true", help="set this option of torch.profiler")


def hint(message: str, options: Iterable[str], others: Mapping[str, Iterable[str]]) -> str:
    """Return a suggestion if argparse's error is about an unknown option or value, otherwise an empty string.

    `others`: the options of all commands. If this command has no similar option, the suggestion names the commands that
    have the option.
    """
    if unknown := _UNKNOWN.search(message):
        words, known = [word.partition("=")[0] for word in unknown[1].split()], list(options)
        return next(filter(None, (did_you_mean(word, known) or _elsewhere(word, others) for word in words)), "")
    if invalid := _INVALID.search(message):
        return did_you_mean(invalid[1], _WORD.findall(invalid[2]))
    return ""


def _elsewhere(option: str, others: Mapping[str, Iterable[str]]) -> str:
    commands = [f"ddpprof {name}" for name, options in others.items() if option in options]
    return f" {option} is an option of {', '.join(commands)}." if commands else ""


def count(text: str) -> int:
    if not text.removeprefix("-").isdecimal():
        raise ArgumentTypeError(f"{text} is not a whole number")
    value = int(text)
    if value < 0:
        raise ArgumentTypeError("must not be negative")
    if value > _LARGEST_COUNT:
        raise ArgumentTypeError(f"must be at most {_LARGEST_COUNT:,}")
    return value


def positive(text: str) -> int:
    value = count(text)
    if not value:
        raise ArgumentTypeError("must be at least 1")
    return value


def numbers(text: str) -> Numbers:
    spans = []
    for part in text.split(","):
        match = _SPAN.fullmatch(part.strip())
        if match is None:
            raise ArgumentTypeError(f"{text!r} is not a list of numbers; write, for example, 0-7,64")
        first = int(match.group(1))
        last = int(match.group(2) or first)
        if last < first:
            raise ArgumentTypeError(f"the range {part.strip()} ends before it begins")
        spans.append((first, last))
    return Numbers(tuple(spans))


def duration_ns(text: str) -> int:
    from ddpprof.comparison.gate import NANOSECONDS

    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a duration; write, for example, 10us or 0.1ms")
    return round(float(match.group(1)) * NANOSECONDS[match.group(2)])


def sizes_bytes(text: str) -> list[int]:
    """Parse ``1K-256M`` (each size is double the previous one) or a list such as ``4K,1M``."""
    sizes: list[int] = []
    for part in text.split(","):
        first, is_span, last = part.partition("-")
        size, end = _size_bytes(first), _size_bytes(last if is_span else first)
        if end < size:
            raise ArgumentTypeError(f"the range {part.strip()} ends before it begins")
        while size <= end:
            sizes.append(size)
            size *= 2
    return sizes


def _size_bytes(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None or not int(match.group(1)):
        raise ArgumentTypeError(f"{text!r} is not a size; write, for example, 1K-256M or 64K,1M")
    return int(match.group(1)) * _BYTES[match.group(2).upper()]


def megabytes(text: str) -> list[float]:
    """Parse a list such as ``1,2.5,25``."""
    return [_above_zero(word.strip(), "size in MB") for word in text.split(",")]


def caps(text: str) -> list[float | None]:
    """Parse a list such as ``1,25,default``; ``None`` stands for DDP's own cap."""
    return [None if word.strip() == "default" else megabytes(word)[0] for word in text.split(",")]


def factor(text: str) -> float:
    return _above_zero(text, "factor")


def bytes_per_s(text: str) -> float:
    """Parse a speed such as ``10Gbit``, ``10Gbps`` or ``1.2GB``; all are per second. Prefixes are powers of 1000."""
    match = _RATE.fullmatch(text.strip())
    value = float(match.group(1)) * _RATES[match.group(2).upper()] if match else 0.0
    if match is None or value < 1:
        raise ArgumentTypeError(f"{text!r} is not a bandwidth; write, for example, 10Gbit or 1.2GB")
    return value if match.group(3) == "B" else value / 8


def bits_per_s(text: str) -> int:
    return round(8 * bytes_per_s(text))


def add_link_speed(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--link-speed",
        type=bits_per_s,
        metavar="RATE",
        help="speed of the link between the hosts, such as 10Gbit; needed if the network interfaces do not report it, "
        "for example in virtual machines and containers",
    )


def _above_zero(text: str, what: str, below: float = _LARGEST) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < below:
        raise ArgumentTypeError(f"{text!r} is not a {what} above 0")
    return value


def seconds(text: str) -> float:
    return _above_zero(text, "number of seconds", below=_LONGEST_S)


RECORDING = ("trace", "watch")
PRESET_NAMES = ("runs", "skip-first", "steps", "profile-ranks", "metrics", "kill-after", "color")
"""options that can be preset: options of the `RECORDING` commands, ``color`` for all commands, and ``runs``, the folder
for new runs
"""
COLOR = "DDPPROF_COLOR"
COLORS = ("auto", "always", "never")
_VARIABLE = "DDPPROF_{}"


@dataclass(frozen=True, slots=True)
class Preset:
    value: str
    source: str
    """environment variable or file that sets the option"""


@cache
def presets() -> Mapping[str, Preset]:
    """Return the options that the environment or the project's file sets, by name.

    Raises `DdpprofError` if the file has an unknown option.
    """
    of_file = _in_file()
    of_environment = {
        name: Preset(value, variable)
        for name in PRESET_NAMES
        if (value := os.environ.get(variable := _VARIABLE.format(name.upper().replace("-", "_"))))
    }
    return {**of_file, **of_environment}


def apply_presets(parser: ArgumentParser, command: str) -> None:
    """Set the defaults of a command's options to the presets. Raises `DdpprofError` if a value is invalid."""
    for name, preset in presets().items():
        if name == "color":
            if preset.value not in COLORS:
                raise DdpprofError(f"color in {preset.source} is {preset.value}. Choose from: {', '.join(COLORS)}")
            os.environ[COLOR] = preset.value
        elif command in RECORDING:
            option = parser._option_string_actions.get(f"--{name}")  # noqa: SLF001 (argparse has no public list)
            if option is not None and callable(option.type):
                try:
                    option.default = option.type(preset.value)
                except (ArgumentTypeError, ValueError) as error:
                    raise DdpprofError(f"{name} in {preset.source}: {error}") from error


def folder_for_runs() -> str:
    """Return the folder in which new runs are created."""
    preset = presets().get("runs")
    return "runs" if preset is None else preset.value


def _in_file() -> dict[str, Preset]:
    folder = Path.cwd()
    path = next((one for above in (folder, *folder.parents) if (one := above / "pyproject.toml").is_file()), None)
    if path is None:
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        if "ddpprof" not in text:
            return {}
        import tomllib

        tables = tomllib.loads(text)
    except (OSError, ValueError):  # other tools report a broken pyproject.toml
        return {}
    tool = tables.get("tool", {})
    given = tool.get("ddpprof", {}) if isinstance(tool, dict) else {}
    if not isinstance(given, dict):
        return {}
    for name in given:
        if name.replace("_", "-") not in PRESET_NAMES:
            raise DdpprofError(
                f"{path}: [tool.ddpprof] has no option {name}.{did_you_mean(name, PRESET_NAMES)} Choose from: "
                f"{', '.join(PRESET_NAMES)}"
            )
    return {name.replace("_", "-"): Preset(str(value), str(path)) for name, value in given.items()}
