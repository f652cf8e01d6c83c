"""mkdocs' hook: adds the pages that are made from the code and from other files of the repository.

command_line.py  The command line, from its parsers
figures.py       The drawings of the concepts, which are files of the repository: python docs/generate/figures.py
json_pages.py    The JSON documents, from their schemas
links.py         Links between files of the repository, as links between pages
terms.py         All terms, from the glossary
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from command_line import command_line_page
from json_pages import json_page
from links import PICTURES, STUDIES, page_of, relinked
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from terms import terms_page

from ddpprof import rundir
from ddpprof.report.topics import TABLES, schema_as_markdown

CHECKOUT = Path(__file__).parents[2]
_TABLES = """# Tables

These are the columns of [`report.tables`](../guides/tables.md). Every column may contain nulls for unknown
values.

"""
FROM_REPOSITORY = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "analyses/README.md")


def on_config(config: MkDocsConfig) -> None:
    """List the studies, each with the title of its page, below their overview."""
    for chapter in config.nav or ():
        for pages in chapter.values():
            for entry in pages if isinstance(pages, list) else ():
                if isinstance(entry, dict) and "Studies" in entry:
                    entry["Studies"] = [entry["Studies"], *(f"studies/{name}.md" for name in STUDIES)]


def on_files(files: Files, config: MkDocsConfig) -> None:
    for name, content in _generated():
        files.append(File.generated(config, name, content=content))
    pictures = {f"pictures/{path.name}": path for path in PICTURES}
    pictures |= {f"studies/{name}.png": CHECKOUT / "analyses" / name / "result.png" for name in STUDIES}
    for name, path in pictures.items():
        files.append(File.generated(config, name, abs_src_path=str(path)))


def _generated() -> Iterator[tuple[str, str]]:
    yield "reference/command-line.md", command_line_page()
    yield "reference/json.md", json_page()
    yield "reference/tables.md", _TABLES + schema_as_markdown(TABLES)
    yield "concepts/terms.md", terms_page()
    for name in (*FROM_REPOSITORY, *(f"analyses/{study}/README.md" for study in STUDIES)):
        page = page_of(name)
        assert page is not None, name
        yield page, relinked((CHECKOUT / name).read_text(encoding="utf-8"), name)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    if page.file.src_uri == "reference/files.md":
        layout, _, rest = (rundir.__doc__ or "").partition("\n\n")[2].partition("\n\n")
        markdown = markdown.replace("LAYOUT", f"```text\n{_flush(layout)}\n```\n\n{_as_markdown(rest)}")
    return markdown if page.file.generated_by else relinked(markdown, f"docs/{page.file.src_uri}")


def _flush(text: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in text.splitlines())


def _as_markdown(docstring: str) -> str:
    return docstring.replace("``", "`").strip()
