"""`ddpprof explain` and `schema`: explain a term or finding from reports, and print the JSON Schema of a document."""

from __future__ import annotations

import argparse
import sys

from ddpprof.errors import DdpprofError


def add_explain_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "term",
        nargs="*",
        metavar="TERM",
        help="a term from a report, such as exposed, or the name of a finding, such as straggler (default: all terms)",
    )
    parser.set_defaults(run=run_explain)


def run_explain(options: argparse.Namespace) -> int:
    from ddpprof.render.glossary import TERMS, find_finding, find_term, similar_terms, term_sections
    from ddpprof.render.terminal import render_terminal

    words = " ".join(options.term)
    if not words:
        render_terminal(term_sections(TERMS), sys.stdout)
        return 0
    found = [one for one in (find_term(words), find_finding(words)) if one is not None]
    if not found:
        similar = " or ".join(similar_terms(words))
        instead = f"Did you mean {similar}? " if similar else ""
        raise DdpprofError(f"there is no term {words!r}. {instead}List all terms with: ddpprof explain")
    render_terminal(term_sections(found), sys.stdout)
    return 0


def add_schema_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "document",
        nargs="?",
        default="report",
        choices=(
            "report",
            "comparison",
            "repeated",
            "overhead",
            "scaling",
            "sweep",
            "tuning",
            "trying",
            "whatif",
            "verdict",
            "brief",
            "brief-comparison",
        ),
        help="kind of document (default: report)",
    )
    parser.set_defaults(run=run_schema)


def run_schema(options: argparse.Namespace) -> int:
    from ddpprof.render.json_documents import DOCUMENTS, render_schema

    sys.stdout.write(render_schema(DOCUMENTS[options.document]))
    return 0
