"""The command-line interface.

Each command parses its options, calls the library and prints the result.

Heavy modules are imported only when needed.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import TYPE_CHECKING

from ddpprof.cli.saying import CHOICES, say, say_error
from ddpprof.errors import DdpprofError

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_CLEAN_UP_S = 0.01
_BEFORE_SIGNALS = 128
"""the exit code is this number plus N if signal N ended the process"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. The exit code is 2 for an error that the user can fix."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _prepare_process()
    CHOICES.forget()
    try:
        from ddpprof.cli.commands import parsers, refuse_unknown  # inside the try block, which catches Ctrl-C

        arguments = _with_command(arguments)
        parser, of_commands = parsers(wanted=arguments[:1])
        command = of_commands.get(arguments[0], parser) if arguments else parser
        if command is parser and arguments and not arguments[0].startswith("-"):
            refuse_unknown(arguments)
        run_words = command.get_default("run_words")
        if run_words is not None:
            return int(run_words(command, arguments[1:]))
        options, left = parser.parse_known_args(arguments)
        if left:
            command.error(f"unrecognized arguments: {' '.join(left)}")
        if options.run is None:
            parser.print_help()
            return 0
        return int(options.run(options))
    except DdpprofError as error:
        say_error(error)
        return 2
    except KeyboardInterrupt as interrupt:
        if interrupt.args:
            say(f"ddpprof: {interrupt}", file=sys.stderr)
        return _BEFORE_SIGNALS + signal.SIGINT
    except BrokenPipeError:  # `ddpprof report … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.filename is not None:  # for example no permission, or a name that is too long
            say(f"ddpprof: {os.fsdecode(error.filename)}: {error.strerror}.", file=sys.stderr)
            return 2
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        say("ddpprof: cannot write the output: no space left.", file=sys.stderr)
        return 2


def _with_command(words: list[str]) -> list[str]:
    """Return the words, preceded by ``report`` if the first word is a path instead of a command."""
    from ddpprof.cli.commands import COMMANDS

    first = words[0] if words else "-"
    is_other = first in COMMANDS or first.startswith("-") or first.endswith(".py")
    return words if is_other or not os.path.exists(first) else ["report", *words]  # noqa: PTH110 (long names)


def _prepare_process() -> None:
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the terminal's encoding may lack bar characters
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _interrupt_again


def _interrupt_again(unraisable: UnraisableHookArgs) -> None:
    """Send a signal again if Python ignored its handler's exception, for example at the end of an import."""
    error = unraisable.exc_value
    if isinstance(error, KeyboardInterrupt):
        number = int(signal.SIGINT)
    elif isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > _BEFORE_SIGNALS:
        number = error.code - _BEFORE_SIGNALS
    else:
        sys.__unraisablehook__(unraisable)
        return
    import threading

    main_thread = threading.main_thread().ident
    threading.Timer(_CLEAN_UP_S, signal.pthread_kill, (main_thread, number)).start()
