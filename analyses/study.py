"""Functions that all studies share.

`measure(recordings)` of a study's ``analyse.py`` turns recorded runs into numbers, `table(results)` these into the
table of its README, `draw(results, figure)` into its picture. `publish` writes all three beside it.
"""

from __future__ import annotations

import gzip
import json
import math
import platform
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECORDINGS, RESULTS, PICTURE, README = "recordings", "results.json", "result.png", "README.md"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""colours of Okabe and Ito, which colour-blind readers can tell apart"""

MIB = 2**20


def publish(
    study: Path,
    measure: Callable[[Path], dict[str, Any]],
    table: Callable[[dict[str, Any]], list[str]],
    draw: Callable[[dict[str, Any], Figure], None],
) -> None:
    results = measure(study / RECORDINGS)
    (study / RESULTS).write_text(as_json(results), encoding="utf-8")
    lines = table(results)
    replace_table(study / README, lines)
    print("\n".join([f"{study.name}:", *lines]))
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        print(f"{study.name}: no new {PICTURE}, which needs matplotlib: pip install '.[studies]'")
        return
    figure = Figure(figsize=(7.2, 3.8), layout="constrained", facecolor="white")
    draw(results, figure)
    figure.savefig(study / PICTURE, dpi=100, metadata={"Software": None})


def report_json(path: Path) -> dict[str, Any]:
    """Return the JSON of ``ddpprof report`` for an experiment, or for a table of times."""
    command = [sys.executable, "-m", "ddpprof", "report", str(path), "--format", "json"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    report: dict[str, Any] = json.loads(said)
    return report


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")


def as_json(results: dict[str, Any]) -> str:
    return json.dumps(results, indent=1, ensure_ascii=False) + "\n"


def readme_table(readme: Path) -> list[str]:
    """Return its first Markdown table."""
    lines = readme.read_text(encoding="utf-8").splitlines()
    first, last = _table_rows(lines)
    return lines[first:last]


def replace_table(readme: Path, table: Sequence[str]) -> None:
    lines = readme.read_text(encoding="utf-8").splitlines()
    first, last = _table_rows(lines)
    readme.write_text("\n".join([*lines[:first], *table, *lines[last:]]) + "\n", encoding="utf-8")


def _table_rows(lines: Sequence[str]) -> tuple[int, int]:
    is_row = [line.startswith("|") for line in lines]
    first = is_row.index(True)
    return first, is_row.index(False, first) if False in is_row[first:] else len(lines)


def ms(nanoseconds: float) -> float:
    """Convert to ms, rounded so that results are the same to the last digit wherever they are computed."""
    return round(nanoseconds / 1e6, 3)


def median_ms(nanoseconds: Iterable[float]) -> float:
    return ms(median(nanoseconds))


def spread_ms(nanoseconds: Sequence[float]) -> list[float]:
    """Return the middle half of the values: from the first quartile to the third."""
    ordered = sorted(nanoseconds)
    return [ms(ordered[math.floor((len(ordered) - 1) / 4)]), ms(ordered[math.ceil((len(ordered) - 1) * 3 / 4)])]


def interval_of_median(values: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """Return the 95 % interval by bootstrap; it is the same for the same values."""
    return _interval_of(median, values, draws)


def interval_of_mean(values: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """Return the 95 % interval by bootstrap; it is the same for the same values."""
    return _interval_of(fmean, values, draws)


def _interval_of(
    statistic: Callable[[Sequence[float]], float], values: Sequence[float], draws: int
) -> tuple[float, float]:
    draw = random.Random(0)
    drawn = sorted(statistic(draw.choices(values, k=len(values))) for _ in range(draws))
    return drawn[round(0.025 * draws)], drawn[round(0.975 * draws) - 1]


def begin_recording(study: Path) -> Path:
    """Return an empty folder for new recordings."""
    folder = study / RECORDINGS
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def end_recording(study: Path, **settings: object) -> None:
    """Note the machine, and compress the traces better than a training job has time for."""
    import torch

    folder = study / RECORDINGS
    machine = {"python": platform.python_version(), "torch": torch.__version__, **settings}
    (folder / "machine.json").write_text(as_json(machine), encoding="utf-8")
    for trace in sorted(folder.rglob("*.json.gz")):
        content = gzip.decompress(trace.read_bytes())
        trace.write_bytes(gzip.compress(content, 9, mtime=0))
