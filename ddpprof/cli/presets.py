"""Default values of options, from environment variables or the ``pyproject.toml`` of the project.

    DDPPROF_STEPS=20                 environment variable
    [tool.ddpprof]                   pyproject.toml, in the current folder or the nearest one above it
    steps = 20

An option on the command line takes precedence over the environment, and the environment over the file.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ddpprof.errors import DdpprofError, did_you_mean

RECORDING = ("trace", "watch")
NAMES = ("runs", "skip-first", "steps", "profile-ranks", "metrics", "kill-after", "color")
"""options of `RECORDING` commands, ``color`` for all commands, and ``runs``, the folder for new runs"""
COLOR = "DDPPROF_COLOR"
COLORS = ("auto", "always", "never")
_VARIABLE = "DDPPROF_{}"


@dataclass(frozen=True, slots=True)
class Preset:
    value: str
    source: str
    """environment variable or file in which it is set"""


@cache
def presets() -> Mapping[str, Preset]:
    """Return the options that are set, by name. Raises `DdpprofError` if the file has an unknown option."""
    of_file = _in_file()
    of_environment = {
        name: Preset(value, variable)
        for name in NAMES
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
        if name.replace("_", "-") not in NAMES:
            raise DdpprofError(
                f"{path}: [tool.ddpprof] has no option {name}.{did_you_mean(name, NAMES)} Choose from: "
                f"{', '.join(NAMES)}"
            )
    return {name.replace("_", "-"): Preset(str(value), str(path)) for name, value in given.items()}
