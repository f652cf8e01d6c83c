"""`ddpprof completion`: print a shell script that completes commands, options and file names."""

from __future__ import annotations

import argparse
from pathlib import Path

from ddpprof.files import local, location

SHELLS = ("bash", "zsh", "fish", "tcsh", "powershell")


def add_completion_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell to print a script for")
    parser.set_defaults(run=run_completion)


def run_completion(options: argparse.Namespace) -> int:
    import shtab

    from ddpprof.cli.commands import parsers
    from ddpprof.render.glossary import TERMS

    root, of_commands = parsers()
    for parser in of_commands.values():
        if parser.get_default("run_words") is not None:
            parser.add_argument("script", nargs=argparse.REMAINDER, type=Path)
        for action in parser._actions:  # noqa: SLF001 (argparse has no public list of them)
            if action.type in (Path, local, location) or action.dest == "out":
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            if action.dest == "term":
                names = (word for term in TERMS for word in (term.name, *term.aliases))
                action.choices = sorted({word for word in names if word.isidentifier()})
    print(shtab.complete(root, shell=options.shell))
    return 0
