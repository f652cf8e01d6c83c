"""The command line: it parses, calls and prints. It computes nothing, and imports heavy modules only when needed.

after_trace.py         what `ddpprof trace` prints and writes when the job has ended
arguments.py           parsers for option values
capture.py             `ddpprof capture`: let a running job profile the next steps on all ranks
commands.py            every command with its purpose and options; help, shell completion and parsers are made of it
compare.py             `ddpprof compare`: compare two jobs, and check the second against limits
completion.py          `ddpprof completion`: print a script that lets a shell complete commands, options and file names
demo.py                `ddpprof demo`: trace the example trainings that come with ddpprof
diagnose.py            `ddpprof diagnose`: say which rank holds a job up, or has ended it, and where
doctor.py              `ddpprof doctor`: run the checks, print the results, and write them to a file for a bug report
experiment_plan.py     from the words of `ddpprof overhead`, `scale` and `sweep` to the plan of an experiment
experiments.py         `ddpprof overhead`, `scale` and `sweep`: their options, their trials, and what they print
explain.py             `ddpprof explain`: explain a term of the reports
job.py                 a job that a command starts with recording on: its words, its launch, its end
log_directory.py       a run as a TensorBoard log directory
metrics_out.py         ``--metrics``: where the metrics of a running job go
netbench.py            `ddpprof netbench`: start the ranks, or be one of them, and print their measurements
output.py              where a command writes its result, and in which format
reading.py             reading a run: which parts, by how many processes, and with what progress bar
report.py              `ddpprof report`: read a run, measure it and print the report
saying.py              the one place that prints sentences, whose names and texts may come from foreign files
schema.py              `ddpprof schema`: print the JSON Schema of the output of ``--format json``
tables.py              `ddpprof report RUN --out FOLDER/`: write the report's tables as Parquet files
tensorboard.py         `ddpprof tensorboard`: write the runs for TensorBoard, and serve them on this machine only
tensorboard_app.py     TensorBoard itself, which answers requests for this machine only
tensorboard_server.py  TensorBoard as a child process, on loopback only, that ends with this process
this_machine.py        requests that a server on loopback answers: those that were made for this machine
timeline.py            `ddpprof timeline`: export a run as one file for Perfetto
top.py                 `ddpprof top`: look at a running job, rank by rank
trace.py               `ddpprof trace`: run the job with recording switched on, then report on it
tune.py                `ddpprof tune`: profile the job, predict, try the most promising settings in turn, and report
watch.py               `ddpprof watch`: run the job and note in every step what its ranks do
whatif.py              `ddpprof whatif`: read a run, replay its step with other settings, and print the predictions
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import TYPE_CHECKING

from ddpprof.cli.saying import say
from ddpprof.errors import DdpprofError

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_CLEAN_UP_S = 0.01
_BEFORE_SIGNALS = 128
"""exit code of a process that ends at a signal, less the number of the signal"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 2 for a mistake that the user can fix."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _prepare_process()
    try:
        from ddpprof.cli.commands import parsers, refuse_unknown  # inside the try, which catches Ctrl-C

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
        say(f"ddpprof: {error}", file=sys.stderr)
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


def _prepare_process() -> None:
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the terminal's encoding may lack the bars
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _interrupt_again


def _interrupt_again(unraisable: UnraisableHookArgs) -> None:
    """Repeat a signal whose exception came where Python drops it, as in an import's clean-up, once that is over."""
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
