"""The command line: it parses, calls and prints. It computes nothing, and imports heavy modules only when needed."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from ddpprof.cli.saying import say
from ddpprof.errors import DdpprofError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 2 for a mistake that the user can fix."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the terminal's encoding may lack the bars
    try:
        from ddpprof.cli.commands import COMMANDS, parsers  # inside the try, which catches Ctrl-C

        parser, of_commands = parsers()
        command = COMMANDS.get(arguments[0]) if arguments else None
        if command is not None and command.run_job is not None:
            return command.run_job(of_commands[command.name], arguments[1:])
        options, left = parser.parse_known_args(arguments)
        if left:
            (of_commands[command.name] if command else parser).error(f"unrecognized arguments: {' '.join(left)}")
        if options.run is None:
            parser.print_help()
            return 0
        return int(options.run(options))
    except DdpprofError as error:
        say(f"ddpprof: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        if interrupt.args:
            say(f"ddpprof: {interrupt}", file=sys.stderr)
        return 128 + signal.SIGINT
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
