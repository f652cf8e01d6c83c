"""Code blocks of the README and of docs/, and what the comments before each say about it.

    <!-- not run: WHY -->          it cannot run in a test
    <!-- long -->                  it trains, so that only `make test-long` runs it
    <!-- train.py: NAME -->        the script of tests/e2e/scripts that stands for the reader's train.py
    <!-- with: training.py -->     the names of tests/support/readers/training.py are the reader's own
    <!-- part of: COMMAND -->      a block of text that this command prints, among other lines
    <!-- not compared: WHY -->     a block of text that no command prints again

Any other block of text is the output of the block before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
LANGUAGES = ("sh", "python", "yaml", "toml", "text")
NOTES = ("not run", "long", "train.py", "with", "part of", "not compared")
_NOTE = re.compile(r"<!-- ([^:>]+?)(?:: (.*?))? -->$")
_FENCE = re.compile(r"^ *```(.*)$")


@dataclass(frozen=True, slots=True)
class Block:
    path: str
    line: int
    language: str
    text: str
    notes: Mapping[str, str]
    output: str | None = None
    """what a reader sees next, if the page shows it"""

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.language != "text" and "not run" not in self.notes


def documents() -> list[Path]:
    return [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]


def blocks() -> list[Block]:
    return [block for path in documents() for block in _blocks_of(path)]


def _blocks_of(path: Path) -> Iterator[Block]:
    waiting: Block | None = None
    for block in _fenced(path.read_text(encoding="utf-8").splitlines(), path.relative_to(CHECKOUT).as_posix()):
        is_output = block.language == "text" and not {"part of", "not compared"} & set(block.notes)
        if waiting is not None:
            if is_output:
                yield Block(waiting.path, waiting.line, waiting.language, waiting.text, waiting.notes, block.text)
            else:
                yield waiting
            waiting = None
            if is_output:
                continue
        if block.is_run:
            waiting = block
        else:
            yield block
    if waiting is not None:
        yield waiting


def _fenced(lines: list[str], path: str) -> Iterator[Block]:
    notes: dict[str, str] = {}
    begun: int | None = None
    language = ""
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence is None:
            note = _NOTE.match(line.strip())
            if begun is None and note is not None:
                notes[note[1]] = note[2] or ""
            elif begun is None and line.strip():
                notes = {}
        elif begun is None:
            begun, language = number, fence[1].split(" ")[0]
        else:
            yield Block(path, begun + 1, language, "\n".join(lines[begun + 1 : number]), notes)
            begun, notes = None, {}
