"""`ddpprof schema`: print the JSON Schema of the output of ``--format json``."""

from __future__ import annotations

import argparse
import sys


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
