"""Definitions of all terms at the end of every page; the terms in tables link to them."""

from __future__ import annotations

from html import escape

from ddpprof.render.glossary import TERMS, Term
from ddpprof.render.html.page import PagePart


def definitions() -> PagePart:
    return PagePart("definitions", "Definitions", f"<dl>{''.join(map(_term, TERMS))}</dl>")


def term_id(term: Term) -> str:
    return "term-" + "".join(c if c.isalnum() else "-" for c in term.name.lower())


def _term(term: Term) -> str:
    formula = f"<code>{escape(term.formula)}</code>" if term.formula else ""
    found = f"<code>in the JSON report: {escape(term.field)}</code>" if term.field else ""
    return (
        f'<dt id="{term_id(term)}" tabindex="-1">{escape(term.name)}</dt>'
        f"<dd>{escape(term.definition)}{formula}{found}</dd>"
    )
