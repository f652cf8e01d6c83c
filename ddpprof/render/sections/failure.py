"""How the job failed; this comes before anything else."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Sequence, Set

from ddpprof.layout import Line, Section, clean, count
from ddpprof.model.backends import backend_of
from ddpprof.render.error_words import NOT_KNOWN, advice_on_error, killer_sentence, shortened, signal_name
from ddpprof.report import Report
from ddpprof.topics.ddp_errors import advice_on_ddp_error
from ddpprof.topics.failure import Failure, RankEnd
from ddpprof.topics.hangs import SAME_COLLECTIVES
from ddpprof.words import ranks_in_words

_MOST_LISTED = 8


def failure_lines(report: Report) -> Iterable[Section]:
    if report.failure is not None:
        for text in _sentences(report.failure, {one.rule for one in report.findings}):
            yield Line(text, is_warning=True)


def failure_sentence(failure: Failure) -> str:
    """Return the sentence that opens the verdict on a failed job."""
    named = _named(failure)
    if named is None:
        return "The job failed, and no rank reported why."
    return f"The job failed: rank {named.rank} {_how(named)}."


def _named(failure: Failure) -> RankEnd | None:
    """Return the rank to report first: the cause, or else a rank that recorded how it failed."""
    return failure.first or next((end for end in failure.others if end.failed), None)


def _sentences(failure: Failure, found: Set[str]) -> Iterator[str]:
    """Yield the sentences. `found`: rules with findings, which may know better why ranks waited for each other."""
    yield failure_sentence(failure)
    rest = [end for end in failure.others if end is not _named(failure)]
    first = failure.first
    named = _named(failure)
    if named is not None and (advice := _advice(named)) is not None:
        yield advice
    if named is not None and _may_be_of_gloo(named):
        for end in (named, *(end for end in rest if end.place is not None)):
            inside = f"in {end.collective}" if end.collective else ""
            at = f"at {clean(end.place)}" if end.place else ""
            yield f"Rank {end.rank} was {', '.join(filter(None, (inside, at)))}."
        yield f"Gloo ends a process like this if it receives more data than it expects. {SAME_COLLECTIVES}"
    killer = None if first is None else killer_sentence(first.error, first.exit_code, first.num_oom_kills)
    if killer is not None:
        yield killer
    elif first is not None and first.ended is None and first.exit_code is None:
        yield f"It may have been killed.{f' {NOT_KNOWN}' if first.num_oom_kills is None else ''}"
    lost, silent = [end for end in rest if end.failed], [end for end in rest if not end.failed]
    then = "then " if failure.first is not None else "also "
    for end in lost[:_MOST_LISTED]:
        yield f"Rank {end.rank} {then}{_how(end)}."
    if len(lost) > _MOST_LISTED:
        yield f"{len(lost) - _MOST_LISTED} more ranks failed in the same way."
    ended = [end for end in silent if end.exit_code == -signal.SIGTERM]
    silent = [end for end in silent if end not in ended]
    if ended:
        yield f"{_ranks(ended)} {'was' if len(ended) == 1 else 'were'} still running{_progress(ended)}, and {_ENDED}."
    if silent:
        they_were = "it was" if len(silent) == 1 else "they were"
        yield f"{_ranks(silent)} ended without a message{_progress(silent)}: {they_were} {_WITHOUT_A_WORD}."
    if failure.first is None and failure.finished:
        yield (
            f"{_ranks(failure.finished)} had finished{_progress(failure.finished)}."
            f"{'' if 'skipped-backward' in found else _UNEVEN}"
        )
    elif failure.first is None and any(end.waited_for_a_peer for end in failure.others):
        yield (
            "A collective times out when another rank does not take part in it: check what the other ranks were doing."
        )


def _advice(end: RankEnd) -> str | None:
    return None if end.error is None else advice_on_ddp_error(end) or advice_on_error(end.error)


def _may_be_of_gloo(end: RankEnd) -> bool:
    """Return whether gloo may have aborted the process: SIGABRT ended it in a collective."""
    return end.exit_code == -signal.SIGABRT and backend_of(end.backend).aborts and end.collective is not None


_UNEVEN = (
    " If ranks have different numbers of batches, those with more batches wait for the others: divide the data evenly."
)
_ENDED = "got SIGTERM, which launchers send to all ranks when one fails"
_WITHOUT_A_WORD = (
    "killed, for example by SIGKILL or the out-of-memory killer, or ended by the launcher, which ends all ranks when "
    "one fails, or by os._exit()"
)


def _how(end: RankEnd) -> str:
    if end.error is not None:
        error = shortened(end.error.removeprefix("failed: "))
        return f"failed{_after(end)}: {clean(error, most=300).rstrip('.')}"
    code = end.exit_code or 0
    if code == -signal.SIGKILL:
        return f"was killed by SIGKILL{_after(end)}"
    if code < 0:
        return f"died of {signal_name(-code)}{_after(end)}"
    if code > 0:
        return f"ended with exit code {code}{_after(end)}, without a message"
    return f"ended without a message{_after(end)}"


def _after(end: RankEnd) -> str:
    return "" if end.num_steps is None else f" after {count(end.num_steps, 'step')}"


def _progress(ends: Sequence[RankEnd]) -> str:
    known = sorted({end.num_steps for end in ends if end.num_steps is not None})
    if not known or any(end.num_steps is None for end in ends):
        return ""
    return f" after {count(known[0], 'step')}" if len(known) == 1 else f" after {known[0]} to {known[-1]} steps"


def _ranks(ends: Sequence[RankEnd]) -> str:
    return ranks_in_words([end.rank for end in ends]).capitalize()
