"""How a failed job is told: first, and in one voice in every format."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from reports import report

from ddpprof.engine.finding import Finding
from ddpprof.layout import FindingList, Line
from ddpprof.model.hang import Fault, Verdict
from ddpprof.model.whole_run import WholeRun
from ddpprof.render.html.report_page import report_page
from ddpprof.render.json import render_json
from ddpprof.render.markdown import render_markdown
from ddpprof.render.sections import sections
from ddpprof.render.sections.overview import finding_list, verdict
from ddpprof.render.terminal import render_terminal
from ddpprof.topics.failure import Failure, RankEnd, failure_lines
from ddpprof.topics.hangs import CRASH_AT_EXIT

KILLED_WORKER = "DataLoader worker (pid 7) is killed by signal: Killed."
LOST = (
    "failed: RuntimeError: [/a/pair.cc:553] Connection closed by peer [127.0.0.1]:9. This is typically caused by a "
    "remote worker crashing. Check the…"
)
LATE = "failed: RuntimeError: [/a/b.cc:78] Timed out waiting 20000ms for recv operation to complete."


def end(
    rank: int,
    ended: str | None,
    num_steps: int | None = None,
    exit_code: int | None = None,
    is_consequence: bool = False,
) -> RankEnd:
    return RankEnd(rank, "a", ended, is_consequence, num_steps, exit_code=exit_code)


def told(failure: Failure, **changes: Any) -> list[str]:
    return [line.text for line in failure_lines(failure, report(**changes)) if isinstance(line, Line)]


BOOM = Failure(end(1, "failed: ValueError: boom", 14), (end(0, LOST, 14, is_consequence=True),), ())


TIMEOUT = Failure(None, (end(0, LATE, 14, is_consequence=True), end(1, None, 13), end(2, None, 14)), ())
UNEVEN = Failure(None, (end(0, LOST, 26, is_consequence=True),), (end(1, "finished", 26),))


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        pytest.param(
            BOOM,
            "The job failed: rank 1 failed after 14 steps: ValueError: boom.\n"
            "Rank 0 then failed after 14 steps: RuntimeError: Connection closed by peer [127.0.0.1]:9.",
            id="an-error-and-what-it-caused",
        ),
        pytest.param(
            Failure(end(1, None, 1, -9), (end(0, None, 1, -15),), ()),
            "The job failed: rank 1 was killed by SIGKILL after 1 step.\nThe out-of-memory killer may have killed the "
            "process: check the host's log (dmesg).\nRank 0 was still running after 1 step, and got SIGTERM, which "
            "launchers send to all ranks when a rank fails.",
            id="killed",
        ),
        pytest.param(
            Failure(replace(end(1, None, 1, -9), num_oom_kills=0), (), ()),
            "The job failed: rank 1 was killed by SIGKILL after 1 step.\nThe kernel's out-of-memory killer did not "
            "kill any process on that host at that time. Something else sent the signal: a scheduler (which may limit "
            "memory and time as well), systemd-oomd, or a person.",
            id="killed-by-somebody",
        ),
        pytest.param(
            Failure(replace(end(1, None, 1), num_oom_kills=1), (), ()),
            "The job failed: rank 1 ended without a message after 1 step.\nThe kernel's out-of-memory killer killed a "
            "process on that host, so memory was probably full. If so, use a smaller batch or fewer DataLoader "
            "workers, or give the job more memory.",
            id="killed-by-the-kernel",
        ),
        pytest.param(
            Failure(replace(end(1, None, 1), num_oom_kills=0), (), ()),
            "The job failed: rank 1 ended without a message after 1 step.\nRank 1 may have been killed.",
            id="killed-perhaps",
        ),
        pytest.param(
            Failure(replace(end(1, f"failed: RuntimeError: {KILLED_WORKER}", 1), num_oom_kills=2), (), ()),
            f"The job failed: rank 1 failed after 1 step: RuntimeError: {KILLED_WORKER}\nThe kernel's out-of-memory "
            "killer killed 2 processes on that host, so memory was probably full. If so, use a smaller batch or fewer "
            "DataLoader workers, or give the job more memory.",
            id="a-worker-was-killed",
        ),
        pytest.param(
            Failure(end(1, None, 9), (end(0, LOST, 9, is_consequence=True),), ()),
            "The job failed: rank 1 ended without a message after 9 steps.\nRank 1 may have been killed. The "
            "out-of-memory killer may have killed the process: check the host's log (dmesg).\nRank 0 then failed "
            "after 9 steps: RuntimeError: Connection closed by peer [127.0.0.1]:9.",
            id="without-a-word",
        ),
        pytest.param(
            Failure(end(2, None, None, -11), (), ()), "The job failed: rank 2 died with SIGSEGV.", id="signal"
        ),
        pytest.param(
            Failure(end(2, None, 7, 3), (), ()),
            "The job failed: rank 2 ended with exit code 3 after 7 steps.",
            id="an-exit-code",
        ),
        pytest.param(
            Failure(None, (end(0, None, 31), end(1, None, 31)), ()),
            "The job failed, and no rank reported why.\nRanks 0, 1 ended without a message after 31 steps: they were "
            "killed, for example by SIGKILL or the out-of-memory killer; ended by the launcher, which ends all ranks "
            "when a rank fails; or ended by os._exit().",
            id="no-rank-said-why",
        ),
        pytest.param(
            UNEVEN,
            "The job failed: rank 0 failed after 26 steps: RuntimeError: Connection closed by peer "
            "[127.0.0.1]:9.\nRank 1 had finished after 26 steps. If ranks have different numbers of batches, ranks "
            "with more batches wait for the other ranks: shard the data evenly.",
            id="fewer-steps",
        ),
        pytest.param(
            TIMEOUT,
            "The job failed: rank 0 failed after 14 steps: RuntimeError: Timed out waiting 20000ms for recv "
            "operation to complete.\nRanks 1, 2 ended without a message after 13 to 14 steps: they were killed, for "
            "example by SIGKILL or the out-of-memory killer; ended by the launcher, which ends all ranks when a rank "
            "fails; or ended by os._exit().\nA collective times out when another rank does not take part in it: check "
            "what the other ranks were doing.",
            id="a-timeout",
        ),
    ],
)
def test_the_sentences(failure: Failure, text: str) -> None:
    assert "\n".join(told(failure)) == text


def test_of_many_ranks_few_are_listed() -> None:
    others = tuple(end(rank, LOST, 5, is_consequence=True) for rank in range(1, 12))
    lines = told(Failure(end(0, "failed: ValueError: x", 5), others, ()))
    assert len(lines) == 10
    assert lines[-1] == "3 more ranks failed in the same way."


def test_it_comes_first_in_every_format() -> None:
    made = report(failure=BOOM, findings=())
    terminal = io.StringIO()
    render_terminal(sections(made), terminal, 200)
    assert terminal.getvalue().startswith(
        "The job failed: rank 1 failed after 14 steps: ValueError: boom.\nRank 0 then"
    )
    assert "\n\nThe job failed: rank 1 failed" in render_markdown("run", sections(made))[:80]
    page = report_page(made)
    assert page.index("The job failed: rank 1") < page.index('id="verdict"')
    assert json.loads(render_json(made))["failure"]["first"]["rank"] == 1


def test_no_failed_job_is_called_healthy() -> None:
    made = report(failure=BOOM, findings=())
    assert verdict(made).text.startswith(
        "The job failed: rank 1 failed after 14 steps: ValueError: boom. "
        "Before the failure a step took 65.2 ms. Exposed communication took"
    )
    (found,) = finding_list(made)
    assert isinstance(found, FindingList)
    assert found.otherwise == "No findings in the steps recorded before the failure."


def test_errors_are_text() -> None:
    lines = told(Failure(end(0, "failed: E: \x1b[31m<b>\u202e\n" + "x" * 999), (), ()))
    assert "\x1b" not in lines[0]
    assert "\u202e" not in lines[0]
    assert len(lines[0]) < 400


def test_an_error_of_ddp_is_followed_by_what_to_do() -> None:
    twice = "failed: RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the…"
    failure = Failure(end(1, twice, 0), (end(0, twice, 0),), ())
    first, advice, other = told(failure)
    assert first == (
        "The job failed: rank 1 failed after 0 steps: RuntimeError: Expected to mark a variable ready only once."
    )
    assert advice.startswith("A parameter got its gradient twice in one backward pass. With gradient checkpointing, ")
    assert other.startswith("Rank 0 then failed after 0 steps: ")


@pytest.mark.parametrize("is_known", [False, True])
def test_no_guess_at_uneven_batches_beside_a_finding_that_tells_more(is_known: bool) -> None:
    failure = Failure(None, (end(0, LOST, 119, is_consequence=True),), (end(1, "finished", 119),))
    skipped = Finding("skipped-backward", "Rank 1 skipped", "", "", None, is_correctness=True)
    last = told(failure, findings=(skipped,) if is_known else ())[-1]
    assert last.startswith("Rank 1 had finished after 119 steps.")
    assert ("different numbers of batches" in last) is not is_known


def test_where_the_ranks_were_when_gloo_aborted_one() -> None:
    first = replace(end(0, None, 31, exit_code=-6), collective="all_reduce", place="a.py:8 in f", backend="gloo")
    lost = replace(end(1, LOST, 31, is_consequence=True), collective="broadcast", place="a.py:9 in f")
    died, own, other, why, _ = told(Failure(first, (lost,), ()))
    assert died == "The job failed: rank 0 died with SIGABRT after 31 steps."
    assert (own, other) == ("Rank 0 was in all_reduce, at a.py:8 in f.", "Rank 1 was in broadcast, at a.py:9 in f.")
    assert why.startswith("Gloo aborts a process in this way if it receives more data than expected. Every rank must")


def test_a_process_that_crashed_after_its_script_had_ended() -> None:
    assert told(Failure(end(0, "finished", 6, -6), (), (end(1, "finished", 6, -15),))) == [
        "The job failed: rank 0 finished its script after 6 steps, and then died with SIGABRT.",
        CRASH_AT_EXIT,
    ]
    assert told(Failure(end(0, "finished", 6, -9), (), ()))[0].endswith("rank 0 was killed by SIGKILL after 6 steps.")


@pytest.mark.parametrize(
    ("collective", "backend"),
    [
        pytest.param(None, "gloo", id="in-no-collective"),
        pytest.param("all_reduce", "nccl", id="with-nccl"),
        pytest.param("all_reduce", None, id="with-a-backend-that-is-not-known"),
    ],
)
def test_another_abort_is_not_explained_by_gloo(collective: str | None, backend: str | None) -> None:
    first = replace(end(0, None, 31, exit_code=-6), collective=collective, place="a.py:8 in f", backend=backend)
    lost = replace(end(1, LOST, 31, is_consequence=True), collective="barrier", place="a.py:9 in f")
    assert not any("Gloo" in text for text in told(Failure(first, (lost,), ())))


def test_the_launchers_verdict_is_told_instead_of_what_the_ranks_recorded() -> None:
    """The rank that recorded an error may be another one than the rank at fault."""
    late = Failure(end(1, LATE, 14), (end(0, None, 14, exit_code=-15),), ())
    hang = Verdict(Fault.OWN_CODE, rank=0, host="a", step=14, place="pack.py:10 in pack", has_failed=True)
    run = WholeRun(14, 0, 10**9, (), hang=hang)
    lines = told(late, whole_run=run)
    assert lines[0] == "The job failed at step 14: rank 0 is still running the script's own code."
    assert lines[1] == "Rank 0: host a, at pack.py:10 in pack."
    assert any(line.startswith("Rank 1 then failed after 14 steps: RuntimeError: Timed out") for line in lines)
    assert verdict(report(whole_run=run, failure=late)).text.startswith(lines[0])


def test_an_error_that_a_rank_recorded_is_told_in_its_own_words_with_its_line() -> None:
    """They include the parameters that DDP's errors are about."""
    assert BOOM.first is not None
    boom = replace(BOOM, first=replace(BOOM.first, place="/home/me/train.py:3 in step"))
    hang = Verdict(Fault.DIED, rank=1, step=14, detail="ValueError: boom", has_failed=True)
    lines = told(boom, whole_run=WholeRun(14, 0, 10**9, (), hang=hang))
    assert lines[:2] == [
        "The job failed: rank 1 failed after 14 steps: ValueError: boom.",
        "Rank 1 was at /home/me/train.py:3 in step.",
    ]
