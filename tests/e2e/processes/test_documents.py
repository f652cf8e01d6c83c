"""The README and docs/: every block of code that they show is run, or says why not."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documents import CHECKOUT, LANGUAGES, NOTES, Block, blocks, documents
from reading_along import make_folder, type_in

from ddpprof.cli.commands import parsers

OF_OTHERS = """batch-size epochs ranks read-ms tls-ca-file workers
    gpu help multi_gpu num_processes
    cpus-per-task from mem-per-cpu native ntasks nthreads no-dashboard no-python pid repo scheduler-file spec strict"""
"""options of readers' scripts, of launchers, and of tools"""
_COMMENT = re.compile(r"<!--.*?-->")
BLOCKS = blocks()


def marks_of(block: Block) -> list[pytest.MarkDecorator]:
    is_first_read = block.path == "README.md" or block.path.startswith("docs/start/")
    return [] if is_first_read and "long" not in block.notes else [pytest.mark.long]


RUN = [
    pytest.param(block, id=block.name, marks=marks_of(block))
    for block in {(block.text, *sorted(block.notes.items())): block for block in BLOCKS if block.is_run}.values()
]
"""each once, though the README and a page may both show it"""
PRINTED = [pytest.param(block, id=block.name) for block in BLOCKS if "part of" in block.notes]


@pytest.fixture(scope="session")
def files_of_a_reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader")
    make_folder(folder)
    return folder


@pytest.fixture
def folder(files_of_a_reader: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(files_of_a_reader, tmp_path / "reader"))


@pytest.mark.parametrize("block", RUN)
def test_a_block_does_what_it_shows(block: Block, folder: Path) -> None:
    done = type_in(block, folder)
    assert done.returncode == 0, f"{block.text}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    if block.output is not None:
        assert as_shown(done.stdout) == as_shown(block.output)


@pytest.mark.parametrize("block", PRINTED)
def test_an_excerpt_is_printed(block: Block, folder: Path) -> None:
    command = Block(block.path, block.line, "sh", block.notes["part of"], {})
    assert as_shown(block.text) in as_shown(type_in(command, folder).stdout)


def as_shown(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


@pytest.mark.parametrize("block", [pytest.param(block, id=block.name) for block in BLOCKS])
def test_a_block_says_what_it_is(block: Block) -> None:
    assert block.language in LANGUAGES
    assert set(block.notes) <= set(NOTES)
    reasons = [block.notes[note] for note in ("not run", "not compared") if note in block.notes]
    assert all(len(reason.split()) > 1 for reason in reasons)
    if block.language == "text":
        assert {"part of", "not compared"} & set(block.notes), "the output of which block?"


@pytest.mark.parametrize("path", [pytest.param(path, id=path.name) for path in documents()])
def test_commands_stand_in_blocks_that_are_found(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    commands = ("    ddpprof ", "    make ", "    pip ", "    srun ")
    assert not [line for line in lines if line.startswith(commands)]


def test_words_of_torchrun_and_shell_in_blocks_are_words_of_a_shell() -> None:
    for block in BLOCKS:
        if block.language == "sh" and "not run" in block.notes:
            assert shlex.split(block.text, comments=True)


def test_the_drawings_are_those_that_the_script_makes() -> None:
    program = "import figures; print(*(f'{name}\\0{text}\\0' for name, text in figures.figures().items()), sep='')"
    where = CHECKOUT / "docs" / "generate"
    done = subprocess.run([sys.executable, "-c", program], cwd=where, capture_output=True, text=True, check=True)
    words = done.stdout.split("\0")[:-1]
    drawn = dict(zip(words[::2], words[1::2], strict=True))
    kept = {path.name: path.read_text(encoding="utf-8") for path in (CHECKOUT / "docs" / "concepts").glob("*.svg")}
    assert drawn == kept


def test_options_are_those_of_the_commands() -> None:
    """Words that begin with two dashes, anywhere in the text, are options of ddpprof, or of a command named here."""
    _, of_commands = parsers()
    known = {option for parser in of_commands.values() for option in parser._option_string_actions}
    known |= {f"--{option}" for option in OF_OTHERS.split()}
    for path in documents():
        text = _COMMENT.sub("", path.read_text(encoding="utf-8"))
        unknown = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)) - known
        assert not unknown, f"{path.name}: {', '.join(sorted(unknown))}"


def test_every_finding_is_in_the_list_of_findings() -> None:
    calls = [
        node
        for path in (CHECKOUT / "ddpprof").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Finding", "_finding")
    ]
    listed = re.findall(r"^\| `([a-z-]+)`", (CHECKOUT / "docs/reference/findings.md").read_text(encoding="utf-8"), re.M)
    rules = {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}
    assert sorted(map(str, rules)) == sorted(listed)


def test_the_readme_is_a_page() -> None:
    assert len((CHECKOUT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
