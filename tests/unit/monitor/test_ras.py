"""What NCCL's RAS says about a job that hangs, and the verdict on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hung_ranks import ENGINE, NOW_NS, USER, on_device, rank, waiting
from msgspec.structs import replace as replace_struct
from ras_answers import HALVES, HEALTHY, MISSING, NONE_LAUNCHED, OF_2_24, ONE_BEHIND, json_answer

from ddpprof.model.hang import Fault, Verdict
from ddpprof.model.overdue import Frame
from ddpprof.model.pulse import Activity
from ddpprof.monitor import evidence as evidence_module
from ddpprof.monitor import ras
from ddpprof.monitor.evidence import RankEvidence, with_nccl
from ddpprof.monitor.hang_detector import HangDetector, Overdue
from ddpprof.monitor.judge import judge
from ddpprof.monitor.ras import address_of, behind, in_words, read_answer
from ddpprof.topics.hang_words import verdict_lines

LOADER = Frame("/home/me/data.py", 7, "fetch")


@pytest.mark.parametrize(
    ("answer", "size", "late", "said"),
    [
        pytest.param(
            json_answer(101, 100, 101, 101),
            4,
            1,
            "rank 1 has launched 100 AllReduce operations (ranks 0, 2, 3: 101)",
            id="json",
        ),
        pytest.param(ONE_BEHIND, 4, 1, "rank 1 has launched 100 AllReduce operations (ranks 0, 2, 3: 101)", id="text"),
        pytest.param(NONE_LAUNCHED, 4, 1, "rank 1 has launched 0 AllReduce operations (ranks 0, 2, 3: 101)", id="none"),
        pytest.param(
            OF_2_24,
            8,
            None,
            "ranks 5, 7 have launched 6,649 operations (ranks 0, 1, 2, 3, 4, 6: 6,650)",
            id="nccl-2.24",
        ),
        pytest.param(
            json_answer(5, 7), 2, 0, "rank 0 has launched 5 AllReduce operations (rank 1: 7)", id="json-of-two-ranks"
        ),
        pytest.param(
            json_answer(100, 100, 101, 101),
            4,
            None,
            "ranks 0, 1 have launched 100 AllReduce operations (ranks 2, 3: 101)",
            id="json-halves",
        ),
        pytest.param(HALVES, 4, None, None, id="text-halves-without-names"),
        pytest.param(
            MISSING,
            4,
            None,
            "rank 3 (process 103) does not answer; rank 0 reports: Remote process error",
            id="text-missing",
        ),
        pytest.param(
            json_answer(9, 9, 9, missing=(2,), async_error={0: 6, 1: 7}),
            3,
            None,
            "rank 2 (process 102) does not answer; rank 0 reports: Remote process error",
            id="json-missing",
        ),
        pytest.param(json_answer(9, 9), 2, None, None, id="json-healthy"),
    ],
)
def test_what_an_answer_says(answer: str, size: int, late: int | None, said: str | None) -> None:
    found = read_answer(answer, size)
    if said is None and found is None:
        return
    assert found is not None
    assert (behind(found), in_words(found)) == (late, said)


@pytest.mark.parametrize(
    ("answer", "size"),
    [
        pytest.param(json_answer(9, 8), 4, id="another-communicator"),
        pytest.param(HEALTHY, 4, id="no-oddity-in-text"),
        pytest.param("SERVER PROTOCOL 2\nOK\nOK\n", 2, id="no-answer"),
        pytest.param("", 2, id="nothing"),
        pytest.param("SERVER PROTOCOL 2\n{", 2, id="cut-off"),
        pytest.param('{"communicators": [{"size": 2, "ranks": [{}], "missing_ranks": []}]}', 2, id="other-layout"),
        pytest.param('{"communicators": 5}', 2, id="other-type"),
        pytest.param(OF_2_24, 4, id="ranks-beyond-the-job"),
    ],
)
def test_an_answer_that_says_nothing(answer: str, size: int) -> None:
    assert read_answer(answer, size) is None


@pytest.mark.parametrize("address", ["10.0.0.1:28028", "example.com:28028", "28028", "localhost", "[::2]:1", ""])
def test_only_this_machine_is_asked(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras.socket, "create_connection", lambda *_, **__: pytest.fail("connected"))
    assert ras.ask(address) is None


def test_the_address_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ras.ADDRESS_VARIABLE, raising=False)
    assert address_of(None) == "localhost:28028"
    monkeypatch.setenv(ras.ADDRESS_VARIABLE, "127.0.0.1:9")
    assert address_of(None) == "127.0.0.1:9"


def on_nccl(one: RankEvidence) -> RankEvidence:
    assert one.record is not None
    return on_device(replace(one, record=replace_struct(one.record, backend="nccl")))


def asked(answer: str | None, *ranks: RankEvidence, monkeypatch: pytest.MonkeyPatch) -> tuple[RankEvidence, ...]:
    monkeypatch.setattr(ras, "ask", lambda _address: answer)
    return with_nccl([on_nccl(one) for one in ranks])


def test_a_job_without_nccl_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_module.ras, "ask", lambda _address: pytest.fail("asked"))
    ranks = (waiting(0), waiting(1))
    assert with_nccl(ranks) == ranks
    elsewhere = replace(on_nccl(waiting(0)), process=None)
    assert with_nccl([elsewhere])[0] is elsewhere


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(None, id="nobody"),
        pytest.param(json_answer(5, 7, first_pid=900), id="another-job"),
        pytest.param(json_answer(5, 7, 7), id="another-size"),
    ],
)
def test_answers_that_are_not_about_the_job_are_ignored(answer: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = asked(answer, waiting(0), waiting(1), monkeypatch=monkeypatch)
    assert [one.nccl for one in ranks] == [None, None]
    assert judge(ranks).nccl is None


def test_the_rank_that_launched_fewer_collectives_is_at_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ranks wait at the same line, as in ``loss.item()``."""
    ranks = [replace(rank(number, USER, activity=Activity.OTHER), computes=True) for number in range(2)]
    assert judge([on_nccl(one) for one in ranks]).fault is Fault.LINK
    verdict = judge(asked(json_answer(7, 5), *ranks, monkeypatch=monkeypatch))
    assert (verdict.fault, verdict.rank, verdict.waiting) == (Fault.MISSING_COLLECTIVE, 1, (0,))
    assert verdict.place == str(USER)
    assert verdict.nccl == "rank 1 has launched 5 AllReduce operations (rank 0: 7)"
    assert f"NCCL's RAS: {verdict.nccl}." in verdict_lines(verdict)


def test_what_that_rank_does_elsewhere_holds_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = replace(rank(0, USER, activity=Activity.OTHER), computes=True)
    late = rank(1, LOADER, activity=Activity.DATA)
    verdict = judge(asked(json_answer(7, 5), ahead, late, monkeypatch=monkeypatch))
    assert (verdict.fault, verdict.rank, verdict.place) == (Fault.LOADER, 1, str(LOADER))


def test_the_bucket_is_that_of_the_pulse(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead, late = (
        waiting(0, bucket=1),
        rank(1, USER, ENGINE, activity=Activity.BACKWARD, num_passes=11, module=0, bucket=0),
    )
    verdict = judge(asked(json_answer(7, 6), ahead, late, monkeypatch=monkeypatch))
    assert (verdict.rank, verdict.bucket, verdict.parameters) == (1, 1, ("second", "first"))
    assert verdict.nccl == "rank 1 has launched 6 AllReduce operations (rank 0: 7)"


def test_a_job_that_hangs_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ras, "ask", lambda _address: json_answer(7, 6))
    ranks = tuple(on_nccl(waiting(number, since_s=300)) for number in range(2))
    monkeypatch.setattr("ddpprof.monitor.hang_detector.gather", lambda *_, **__: ranks)
    found = HangDetector(tmp_path, lambda: NOW_NS).diagnose(Overdue(step=10, waited_s=300, usual_s=0.1))
    assert isinstance(found, Verdict)
    assert found.nccl == "rank 1 has launched 6 AllReduce operations (rank 0: 7)"


def test_equal_counts_leave_the_verdict_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = (waiting(0), waiting(1))
    plain = judge([on_nccl(one) for one in ranks])
    assert judge(asked(json_answer(7, 7), *ranks, monkeypatch=monkeypatch)) == plain
