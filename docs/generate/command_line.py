"""Generate the command-line reference from the commands' parsers."""

from __future__ import annotations

import argparse
import html
import re
from collections.abc import Iterator

from ddpprof.cli.commands import COMMANDS, Command, parsers

_SHARED = ("--world-readable", "-h", "--color", "-q", "-v")
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

| option | |
|---|---|
| `-q`, `--quiet` | print only results and errors |
| `-v`, `--verbose` | print the Python traceback of an error |
| `--color auto`, `always`, `never` | when to use colors; `NO_COLOR` is respected with `auto` |
| `--json` | print the result as JSON on stdout, in every command that prints one; messages go to stderr |
| `--world-readable` | let other users on this machine read the files that ddpprof writes, subject to your umask |

`ddpprof --version` prints the version, and `ddpprof RUN` does the same as `ddpprof report RUN`. The
[exit codes](exit-codes.md) are the same in all commands.

## Default values of options

`trace` and `watch` take defaults from the environment, or from the `pyproject.toml` in the current folder or the
nearest parent that has it. The command line takes precedence over the environment, and the environment over the file.
`ddpprof doctor` lists the options that are set.

```toml
[tool.ddpprof]
steps = 20               # DDPPROF_STEPS
skip-first = 10          # DDPPROF_SKIP_FIRST
profile-ranks = "0,8"    # DDPPROF_PROFILE_RANKS
metrics = "9400"         # DDPPROF_METRICS
kill-after = 600         # DDPPROF_KILL_AFTER
runs = "/scratch/runs"   # DDPPROF_RUNS: the folder for new runs of all commands
color = "never"          # DDPPROF_COLOR: for all commands
```
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
