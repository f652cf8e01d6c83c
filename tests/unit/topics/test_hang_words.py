"""The verdict on a job that hangs or has failed, in words and as a line for logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from ddpprof.model.hang import Fault, Hint, Standstill, Verdict
from ddpprof.topics.hang_words import standstill_line, verdict_line, verdict_lines

S = 1_000_000_000
HANGING = Verdict(
    Fault.OTHER_COLLECTIVE,
    rank=1,
    host="node1",
    pid=77,
    step=1200,
    activity="other",
    place="/a b/train.py:12 in main",
    module="Net",
    bucket=3,
    parameters=tuple(f"layer.{number}.weight" for number in range(8)),
    waiting=(0, 2),
    waiting_at="/a b/train.py:20 in main",
    since_unix_ns=100 * S,
    at_unix_ns=112 * S,
)


def test_a_job_that_hangs() -> None:
    first, where, waiting, missing, advice = verdict_lines(HANGING)
    assert first == "The job hangs at step 1,200: rank 1 calls a collective that the other ranks do not call."
    assert where == "Rank 1: host node1, process 77, at /a b/train.py:12 in main."
    assert waiting.startswith("Ranks 0, 2 have waited for 12 s, since ")
    assert waiting.endswith(", at /a b/train.py:20 in main.")
    assert missing == (
        "They wait for gradients in bucket 3 of Net: layer.0.weight, layer.1.weight, layer.2.weight, layer.3.weight, "
        "layer.4.weight, layer.5.weight and 2 more."
    )
    assert advice.startswith("Call that collective on every rank")


def test_a_rank_for_which_none_is_seen_to_wait() -> None:
    own_code = replace(HANGING, fault=Fault.OWN_CODE, parameters=())
    assert verdict_lines(own_code)[-1] == "Check that line: the other ranks wait until that rank continues."
    assert verdict_lines(replace(own_code, waiting=()))[-1] == (
        "Check that line. No rank is known to be waiting for another rank."
    )


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.UNKNOWN])
def test_every_fault_has_a_sentence_and_names_its_rank(fault: Fault) -> None:
    first, *_ = verdict_lines(replace(HANGING, fault=fault, detail=None))
    assert ("rank 1" in first) is (fault not in (Fault.LINK, Fault.MISMATCH))
    assert "{" not in " ".join(verdict_lines(replace(HANGING, fault=fault)))


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"detail": "ValueError: no batch."}, "rank 1 has died: ValueError: no batch."),
        ({"exit_code": -9}, "rank 1 has died with SIGKILL."),
        ({"exit_code": -11}, "rank 1 has died with SIGSEGV."),
        ({"exit_code": -99}, "rank 1 has died with signal 99."),
        ({"exit_code": 3}, "rank 1 has died with exit code 3."),
        ({"detail": "x" * 301}, f"rank 1 has died: {'x' * 299}…"),
        ({}, "rank 1 has died without a message."),
    ],
)
def test_how_a_rank_died(known: dict[str, object], expected: str) -> None:
    died = replace(HANGING, fault=Fault.DIED, has_failed=True, **known)
    assert verdict_lines(died)[0] == f"The job failed at step 1,200: {expected}"


NOT_KNOWN = "The out-of-memory killer may have killed the process"
SOMEBODY_ELSE = "The kernel's out-of-memory killer did not kill any process"


@pytest.mark.parametrize(
    ("exit_code", "num_oom_kills", "advice"),
    [
        pytest.param(-9, None, NOT_KNOWN, id="not-known"),
        pytest.param(-9, 0, SOMEBODY_ELSE, id="somebody-else"),
        pytest.param(-9, 1, "The kernel's out-of-memory killer killed a process on that host", id="by-the-kernel"),
        pytest.param(None, 2, "The kernel's out-of-memory killer killed 2 processes on that host", id="unseen"),
        pytest.param(None, 0, None, id="unseen-and-no-memory-was-full"),
        pytest.param(137, 1, "The kernel's out-of-memory killer killed a process on that host", id="as-a-shell-says"),
        pytest.param(-11, 1, None, id="another-signal"),
        pytest.param(1, 1, None, id="by-itself"),
    ],
)
def test_who_killed_a_rank(exit_code: int | None, num_oom_kills: int | None, advice: str | None) -> None:
    died = replace(HANGING, fault=Fault.DIED, has_failed=True, detail=None, parameters=())
    lines = verdict_lines(replace(died, exit_code=exit_code, num_oom_kills=num_oom_kills))
    if advice is None:
        assert "killer" not in " ".join(lines)
    else:
        assert lines[-1].startswith(advice)


@pytest.mark.parametrize(
    ("exit_code", "advice"),
    [(-24, "It reached its CPU time limit"), (-1, "Its terminal or its connection was closed")],
)
def test_signals_that_say_enough(exit_code: int, advice: str) -> None:
    died = replace(HANGING, fault=Fault.DIED, has_failed=True, detail=None, parameters=(), exit_code=exit_code)
    assert verdict_lines(died)[-1].startswith(advice)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("MemoryError", "The rank could not allocate memory"),
        ("bdb.BdbQuit", "A breakpoint() was reached"),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/x'", "A disk or /dev/shm, where"),
        ("DataLoader worker (pid 7) is killed by signal: Killed.", NOT_KNOWN),
        (
            "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers …",
            "Shared memory (/dev/shm) was probably full",
        ),
        ("torch.OutOfMemoryError: CUDA out of memory.", "The rank ran out of memory"),
    ],
)
def test_advice_on_memory(error: str, advice: str) -> None:
    died = replace(HANGING, fault=Fault.DIED, has_failed=True, detail=f"RuntimeError: {error}", parameters=())
    assert verdict_lines(died)[-1].startswith(advice)


def test_parameters_without_gradient() -> None:
    detail = "RuntimeError: Expected to have finished reduction in the prior iteration"
    died = replace(
        HANGING, fault=Fault.DIED, has_failed=True, detail=detail, bucket=None, module=None, parameters=("branch.bias",)
    )
    *_, missing, advice = verdict_lines(died)
    assert missing == "Parameters without a gradient: branch.bias."
    assert "find_unused_parameters=True" in advice


def test_text_of_the_job_cannot_reach_the_terminal_unfiltered() -> None:
    hostile = replace(
        HANGING, host="\x1b[31mred", place="\x1b]0;title\x07", parameters=("a\x1b[2Jb",), activity="\x1b[1m"
    )
    assert "\x1b" not in "".join([*verdict_lines(hostile), verdict_line(hostile)])


def test_a_line_for_logs() -> None:
    line = verdict_line(replace(HANGING, parameters=("a.weight", "b.weight")))
    assert line == (
        "ddpprof_verdict fault=other-collective rank=1 host=node1 pid=77 step=1200 activity=other bucket=3 "
        'parameters=a.weight,b.weight place="/a b/train.py:12 in main" waiting=0,2'
    )


def test_the_documentation_has_every_fault_with_its_sentence() -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "hangs.md").read_text(encoding="utf-8")
    for fault in Fault:
        sentence = verdict_lines(Verdict(fault, rank=1))[0]
        said = sentence.removeprefix("The job hangs: ").removesuffix(".").removesuffix(" without a message")
        assert f"| `{fault}` | {said}" in page


def test_quotes_in_a_line_for_logs_are_escaped() -> None:
    line = verdict_line(Verdict(Fault.OWN_CODE, rank=1, host="", place='my "x".py:3 in f'))
    assert line == r'ddpprof_verdict fault=own-code rank=1 host="" place="my \"x\".py:3 in f"'


AT_EXIT = Verdict(Fault.DOES_NOT_EXIT, rank=0, step=30, since_unix_ns=100 * S, at_unix_ns=112 * S)


@pytest.mark.parametrize(
    ("verdict", "is_over", "sentence"),
    [
        pytest.param(
            AT_EXIT, False, "Training is over (30 steps), but the process of rank 0 has not exited for 12 s.", id="now"
        ),
        pytest.param(
            replace(AT_EXIT, step=1, since_unix_ns=None),
            True,
            "Training was over (1 step), but the process of rank 0 had not exited.",
            id="in-the-past",
        ),
        pytest.param(
            replace(AT_EXIT, step=None, detail="a concurrent.futures executor still has work"),
            False,
            "Training is over, but the process of rank 0 has not exited for 12 s: a concurrent.futures executor "
            "still has work.",
            id="with-the-reason",
        ),
    ],
)
def test_a_process_that_does_not_exit_is_no_step_that_hangs(verdict: Verdict, is_over: bool, sentence: str) -> None:
    assert verdict_lines(verdict, is_over=is_over)[0] == sentence


def test_what_a_rank_that_holds_the_interpreter_after_its_training_may_run() -> None:
    detail = "it runs code that holds Python's global interpreter lock"
    held = replace(AT_EXIT, detail=detail, hint=Hint.HELD_AFTER_TRAINING, pid=17)
    first, *_, advice = verdict_lines(held)
    assert first == f"Training is over (30 steps), but the process of rank 0 has not exited for 12 s: {detail}."
    assert "py-spy dump --native --pid 17" in advice
    assert "delete the model before you call destroy_process_group()" in advice


def test_a_hang_of_the_past_is_told_in_the_past() -> None:
    first, _, waiting, missing, _ = verdict_lines(HANGING, is_over=True)
    assert first.startswith("The job hung at step 1,200. Diagnosis at that time: rank 1 calls a collective")
    assert waiting.startswith("Ranks 0, 2 had waited for 12 s, since ")
    assert missing.startswith("They waited for gradients in bucket 3 of Net: ")


def test_a_detail_of_several_sentences_follows_as_such() -> None:
    detail = "Its forward pass in step 60 was not followed by a backward pass. Since then, …"
    first, *_ = verdict_lines(replace(HANGING, fault=Fault.FEWER_PASSES, detail=detail))
    assert "that the other ranks run. Its forward pass in step 60 was not" in first


@pytest.mark.parametrize("hint", list(Hint))
def test_every_hint_has_advice(hint: Hint) -> None:
    lines = verdict_lines(replace(HANGING, hint=hint))
    assert "rank 1" in lines[0] or hint is Hint.OTHER_ORDER
    assert lines[-1][-1] == "."
    assert "{" not in " ".join(lines)


def test_advice_on_a_rank_that_left_its_loop_does_not_speak_of_its_batches_alone() -> None:
    first, *_, advice = verdict_lines(replace(HANGING, fault=Fault.ENDED_EARLY, hint=Hint.LEFT_LOOP))
    assert first == "The job hangs at step 1,200: rank 1 has left the training loop."
    assert "early stopping" in advice


def test_all_ranks_are_stopped() -> None:
    stopped = Verdict(Fault.STOPPED, step=7)
    assert verdict_lines(stopped)[0] == "The job hangs at step 7: all ranks are stopped."
    assert "kill -CONT" in verdict_lines(stopped)[-1]


def test_a_job_that_stands_still_on_purpose() -> None:
    assert standstill_line(Standstill(8.0, step=7)).startswith("step 7 has taken 8 s so far, but a rank saves,")
    saves = Standstill(8.0, rank=0, step=7, place="train.py:3 in save", waiting=(1,))
    assert standstill_line(saves) == (
        "step 7 has taken 8 s so far, but rank 0 saves, evaluates or computes at train.py:3 in save, or has just "
        "resumed; rank 1 waits for it"
    )
    debugged = Standstill(70.0, rank=1, waits_for="user input in a debugger", place="a.py:1 in f", waiting=(0, 2))
    assert standstill_line(debugged) == (
        "rank 1 has waited for user input in a debugger at a.py:1 in f for 70 s; ranks 0, 2 wait for it"
    )
