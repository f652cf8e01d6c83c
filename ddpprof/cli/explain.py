"""`ddpprof explain`: what a term of the reports means."""

from __future__ import annotations

import argparse

from ddpprof.errors import DdpprofError


def add_explain_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "term", nargs="*", metavar="TERM", help="a word of a report, as in: exposed; without: all of them"
    )
    parser.set_defaults(run=run_explain)


def run_explain(options: argparse.Namespace) -> int:
    import sys

    from ddpprof.render.glossary import TERMS, find_term, similar_terms
    from ddpprof.render.sections.explain import term_sections
    from ddpprof.render.terminal import render_terminal

    words = " ".join(options.term)
    if not words:
        render_terminal(term_sections(TERMS), sys.stdout)
        return 0
    term = find_term(words)
    if term is None:
        similar = " or ".join(similar_terms(words))
        instead = f"Did you mean {similar}? " if similar else ""
        raise DdpprofError(f"no term is called {words!r}. {instead}All of them: ddpprof explain")
    render_terminal(term_sections([term]), sys.stdout)
    return 0
