"""`ddpprof diagnose`: report which rank blocks a job or caused it to fail, and where."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddpprof.cli.reading import last_attempt_of
from ddpprof.cli.saying import say
from ddpprof.errors import DdpprofError
from ddpprof.files import local

if TYPE_CHECKING:
    from ddpprof.model.hang import Verdict
    from ddpprof.monitor.evidence import RankEvidence
    from ddpprof.monitor.hang_detector import Examination

_WELL, _NOT_WELL = 0, 1


def add_diagnose_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_directory",
        type=local,
        metavar="RUN",
        help="run directory of a running or finished job, or a folder with one PyTorch flight-recorder dump per rank "
        "(file names must end with the rank)",
    )
    parser.add_argument(
        "--format",
        choices=("text", "json", "line"),
        default="text",
        help="text, JSON (null if the job is healthy), or one line for logs (%(default)s)",
    )
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="short for --format json")
    parser.add_argument(
        "--dump-stacks",
        action="store_true",
        help="also print the stacks of all threads of the ranks on this machine (needs py-spy)",
    )
    parser.epilog = "The exit code is 0 if the job is healthy, and 1 if it hangs or has failed."
    parser.set_defaults(run=run_diagnose)


def run_diagnose(options: argparse.Namespace) -> int:
    from ddpprof import rundir
    from ddpprof.monitor.evidence import dump_stacks, gather
    from ddpprof.monitor.hang_detector import examine
    from ddpprof.monitor.overview import why_starting

    run: Path = options.run_directory
    starting = why_starting(run)
    if starting is not None:
        return _say_well(starting, options.format)
    has_failed_early = not rundir.is_run(run) and (run / rundir.EXITS_FILE).is_file()
    if not rundir.is_run(run) and run.is_dir() and not has_failed_early:
        return _judge_dumps(run, options.format)
    directory = run if has_failed_early else last_attempt_of(run)
    if not rundir.pulses_in(directory) and not has_failed_early and _starts_again(run, directory):
        return _say_well("the job was restarted, and no rank of the new attempt is training yet.", options.format)
    if options.dump_stacks and options.format != "text":
        raise DdpprofError(f"--dump-stacks prints the stacks as text. Remove --format {options.format}")
    stacks = dump_stacks(gather(directory, records=False)) if options.dump_stacks else None
    seen = examine(directory)
    if not seen.evidence and seen.verdict is None:
        raise DdpprofError(_why_unknown(run, directory))
    if stacks is not None:
        say(stacks)
    if seen.verdict is None:
        return _say_well(_why_well(seen, run), options.format)
    hung_before = seen.hung_at_last and seen.is_over
    if hung_before and options.format == "text":
        say("The job has ended.")
    _print(seen.verdict, options.format, is_over=hung_before)
    return _NOT_WELL


def _starts_again(run: Path, directory: Path) -> bool:
    """Return True if an earlier attempt was watched, and the last attempt (`directory`) may still be starting."""
    from ddpprof import rundir
    from ddpprof.load.record import load_exits
    from ddpprof.model.json_files import last_exit_of_job

    *earlier, _ = rundir.attempts_in(run).values()
    was_watched = any(isinstance(one, Path) and rundir.pulses_in(one) for one in earlier)
    return was_watched and last_exit_of_job(load_exits(directory)) is None


def _say_well(words: str, form: str) -> int:
    say(f"ddpprof: {words}", file=sys.stderr)
    if form == "json":
        say("null")
    return _WELL


def _why_unknown(run: Path, directory: Path) -> str:
    from ddpprof import rundir

    if rundir.pulses_in(directory):
        return (
            f"no pulse file in {directory} can be read. The disk was full, or another version of ddpprof wrote the "
            "files."
        )
    return (
        f"{run} has no pulse file from any rank: either no rank has started training, or the job is not being watched. "
        "Start it with: ddpprof watch train.py"
    )


def _why_well(seen: Examination, run: Path) -> str:
    """Return a sentence about the state of a job that does not hang and has not failed."""
    from ddpprof.model.hang import Standstill
    from ddpprof.model.pulse import OVERDUE_S, Ended
    from ddpprof.monitor.hang_detector import interruption
    from ddpprof.topics.hang_words import standstill_line

    evidence, step = seen.evidence, max(one.state.step for one in seen.evidence)
    if seen.is_over:
        how = interruption(evidence) if seen.was_interrupted else _how_it_ended(evidence, run)
        return f"{how}. View the whole run with: ddpprof report {run}"
    if seen.overdue is not None:
        standstill = seen.standstill or Standstill(seen.overdue.waited_s, step=step)
        again = "" if standstill.hangs_after_s else " Try again in a few seconds."
        return f"{standstill_line(standstill)}.{again}"
    unwatched = [one.rank for one in evidence if one.state.ended == Ended.UNWATCHED]
    if unwatched:
        return f"ddpprof stopped watching rank {unwatched[0]}, so it is unknown whether the job hangs."
    waits_s = [(one.now_ns - one.state.step_since_ns) / 1e9 for one in evidence if not one.has_ended]
    if min(waits_s, default=0.0) > OVERDUE_S:
        return f"the job has been at step {step:,} for {min(waits_s):.0f} s. ddpprof does not consider this a hang yet."
    return f"the job is training, at step {step:,}. View its ranks with: ddpprof top {run}"


def _how_it_ended(evidence: Sequence[RankEvidence], run: Path) -> str:
    from ddpprof.load.record import load_exits
    from ddpprof.model.pulse import Ended
    from ddpprof.monitor.hang_detector import interruption
    from ddpprof.monitor.judge import judge_end
    from ddpprof.monitor.whole_run import nonfinite_steps
    from ddpprof.topics.losses import nonfinite_finding

    ends = {one.state.ended for one in evidence}
    if Ended.UNWATCHED in ends:
        return "ddpprof stopped watching while training continued"
    if Ended.INTERRUPTED in ends:
        return interruption(evidence)
    loss = nonfinite_finding({one.rank: nonfinite_steps(one.state) for one in evidence})
    if loss is not None:
        return f"training ended without an error, but {loss.title[0].lower()}{loss.title[1:]}"
    unequal = judge_end(evidence, load_exits(last_attempt_of(run)))
    if unequal is not None:
        return f"{unequal.title[0].lower()}{unequal.title[1:]}: {unequal.evidence}. {unequal.advice.removesuffix('.')}"
    return "training ended successfully"


def _judge_dumps(folder: Path, form: str) -> int:
    """Compare the PyTorch flight-recorder dumps in a folder."""
    from ddpprof.layout import clean, count
    from ddpprof.monitor.flight_dumps import dumps_in, judge_dumps, lonely_calls, read_dump

    dumps = dumps_in(folder)
    if not dumps:
        raise DdpprofError(
            f"{folder} is neither a run nor a folder with PyTorch flight-recorder dumps. "
            "Record a run with: ddpprof watch train.py"
        )
    called = {rank: read_dump(path) for rank, path in dumps.items()}
    verdict = judge_dumps(called)
    if verdict is None and len(dumps) == 1:
        return _say_well(
            "there is only one dump. To compare ranks, put the dumps of the other ranks into the same folder.", form
        )
    if verdict is None:
        lonely = "".join(
            f" In group {clean(group)}, only rank {rank} called collectives. If the group has other ranks, they may "
            "have skipped these calls."
            for group, rank in lonely_calls(called).items()
        )
        said = (
            f"{count(len(dumps), 'rank')} called the same collectives, according to the flight-recorder dumps.{lonely}"
        )
        return _say_well(said, form)
    _print(verdict, form)
    return _NOT_WELL


def _print(verdict: Verdict, form: str, *, is_over: bool = False) -> None:
    from ddpprof.render.json import render_json
    from ddpprof.topics.hang_words import verdict_line, verdict_lines

    if form == "json":
        say(render_json(verdict), end="")
    elif form == "line":
        say(verdict_line(verdict))
    else:
        for line in verdict_lines(verdict, is_over=is_over):
            say(line)
