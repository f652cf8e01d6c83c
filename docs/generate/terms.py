"""Generate the page of all terms from the glossary that `ddpprof explain` prints."""

from __future__ import annotations

import re

from ddpprof.render.glossary import TERMS, Term

_BEGINNING = """# All terms

`ddpprof explain TERM` prints the same in the terminal. Every page that `report` writes ends with these definitions. The
fields are those of the [JSON report](../reference/json.md).
"""


def terms_page() -> str:
    return "\n".join([_BEGINNING, *(line for term in TERMS for line in _lines(term)), ""])


def _lines(term: Term) -> list[str]:
    rows = [
        f"- {name}: `{text}`" for name, text in (("Formula", term.formula), ("In the JSON report", term.field)) if text
    ]
    also = [f"- Also: {', '.join(term.aliases)}"] if term.aliases else []
    lines = ["", f"## {term.name}", "", _as_text(term.definition)]
    return [*lines, "", *rows, *also] if rows or also else lines


def _as_text(definition: str) -> str:
    """Show command lines, calls and names with underscores as code."""
    code = r"\w+\([^()]*\)|ddpprof (?:trace|whatif|overhead)(?: --[\w-]+(?: \d+)?| train\.py)*|ProfilerStep#k"
    return re.sub(rf"({code})", r"`\1`", definition)
