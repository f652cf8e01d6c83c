"""mkdocs hook that adds the pages made from the code and from other files of the repository.

It also writes each page as Markdown beside its HTML, and a list of the pages, ``llms.txt`` (https://llmstxt.org).

command_line.py  the command line, from its parsers
figures.py       the figures of the concept pages, which are files of the repository: python docs/generate/figures.py
json_pages.py    the JSON documents, from their schemas
links.py         links between files of the repository, as links between pages
terms.py         all terms, from the glossary
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from command_line import command_line_page
from json_pages import json_page
from links import PICTURES, STUDIES, page_of, relinked
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
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
    if not page.file.generated_by:
        markdown = relinked(markdown, f"docs/{page.file.src_uri}")
    _MARKDOWN[page.file.src_uri] = markdown
    return markdown


_MARKDOWN: dict[str, str] = {}
"""name of each page → its Markdown"""


def on_nav(nav: Navigation, **_: Any) -> None:
    """Keep the chapters and titles, for the list of pages."""
    _CHAPTERS.clear()
    _list_pages("ddpprof", nav.items)


_CHAPTERS: dict[str, list[Page]] = {}
"""title of each chapter → its pages"""


def _list_pages(chapter: str, items: Sequence[object]) -> None:
    for one in items:
        if isinstance(one, Page):
            _CHAPTERS.setdefault(chapter, []).append(one)
        elif isinstance(one, Section):
            _list_pages(one.title, one.children)


def on_post_build(config: MkDocsConfig) -> None:
    site = Path(config.site_dir)
    for name, markdown in _MARKDOWN.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(markdown, encoding="utf-8")
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for chapter, pages in _CHAPTERS.items():
        lines += ["", f"## {chapter}", "", *(f"- [{page.title}]({page.file.src_uri})" for page in pages)]
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _flush(text: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in text.splitlines())


def _as_markdown(docstring: str) -> str:
    return docstring.replace("``", "`").strip()
