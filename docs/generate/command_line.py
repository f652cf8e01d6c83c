"""Generate the command-line reference from the commands' parsers."""

from __future__ import annotations

import argparse
import html
import re
from collections.abc import Iterator

from ddpprof.cli.commands import COMMANDS, Command, parsers

_SHARED = ("--world-readable", "-h")
_ALIGNED = re.compile(r"\n  (\S.*)")


_BEGINNING = """# Command line

This page is generated from the commands' parsers; `ddpprof COMMAND --help` prints the same text. Defaults are in
parentheses.
"""


def command_line_page() -> str:
    _, of_commands = parsers()
    lines = [_BEGINNING]
    for command in COMMANDS.values():
        lines += ["", *_command(command, of_commands[command.name])]
    return "\n".join([*lines, "", _ENDING])


_ENDING = """## All commands

- `--world-readable` lets other users on this machine read the files that ddpprof writes, subject to your umask.
- `ddpprof --version` prints the version, `ddpprof --help` all commands with an example of each.

| exit code | meaning |
|---|---|
| 0 | done; for `compare --fail-on`, passed |
| 1 | `compare --fail-on`: failed; `doctor`: a check failed; `diagnose`: the job hangs or has failed |
| 2 | a mistake that you can fix: a wrong option, or a file that cannot be read. One line on stderr says which |
| 3 | `compare --fail-on`: too few runs to tell |
| 130 | Ctrl-C |
| other | `ddpprof trace` and `ddpprof watch` end as your job does, with its exit code or signal |
"""


def _command(command: Command, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## {command.name}"
    yield ""
    yield f"**{command.question}** {parser.description}"
    yield ""
    yield "```text"
    yield _usage(parser)
    yield "```"
    yield ""
    yield f"For example: `{command.example}`"
    for group in parser._action_groups:  # noqa: SLF001 (argparse has no public way to list its options)
        actions = [one for one in group._group_actions if _is_shown(one)]  # noqa: SLF001
        if not actions:
            continue
        title = {"positional arguments": "arguments"}.get(group.title or "", group.title or "")
        yield ""
        yield f"**{title[:1].upper()}{title[1:]}**"
        if group.description:
            yield ""
            yield f"{group.description[:1].upper()}{group.description[1:]}."
        yield ""
        yield "| | |"
        yield "|---|---|"
        for action in actions:
            yield f"| {_names(action)} | {_help(action, parser)} |"
    if parser.epilog:
        yield ""
        yield _ALIGNED.sub(r"\n\n    \1\n", html.escape(parser.epilog, quote=False))


def _usage(parser: argparse.ArgumentParser) -> str:
    if parser.usage:
        return "\n".join(line.strip() for line in parser.usage.splitlines())
    words = [_positional(action) for action in parser._positionals._group_actions]  # noqa: SLF001
    return " ".join([parser.prog, "[options]", *words])


def _positional(action: argparse.Action) -> str:
    name = str(action.metavar or action.dest)
    if action.choices is not None:
        name = "|".join(map(str, action.choices))
    return {"*": f"[{name} …]", "+": f"{name} [{name} …]", "?": f"[{name}]"}.get(str(action.nargs), name)


def _is_shown(action: argparse.Action) -> bool:
    return action.help != argparse.SUPPRESS and not any(name in _SHARED for name in action.option_strings)


def _names(action: argparse.Action) -> str:
    if not action.option_strings:
        return _code(_positional(action))
    value = ""
    if action.nargs != 0:
        value = str(action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper()))
        value = f" {value}"
    return ", ".join(_code(f"{name}{value}") for name in action.option_strings)


def _code(text: str) -> str:
    return f"`{text}`"


def _help(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    values = {**vars(action), "prog": parser.prog}
    return html.escape((action.help or "") % values, quote=False).replace("|", "\\|").replace("*", "\\*")
