"""Definitions of terms."""

from __future__ import annotations

from collections.abc import Iterable

from ddpprof.layout import Definition, Section
from ddpprof.render.glossary import Term


def term_sections(terms: Iterable[Term]) -> Iterable[Section]:
    for term in terms:
        yield Definition(
            term.name,
            term.definition,
            tuple(
                (what, text)
                for what, text in (
                    ("formula", term.formula),
                    ("in the JSON report", term.field),
                    ("also", ", ".join(name for name in term.aliases if "," not in name)),
                )
                if text
            ),
        )
