"""Findings that are advice, and those that may be noise, wherever they are shown."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from large_runs import thousand_ranks
from observations import observed
from reports import GOLDEN, HOSTILE, data_parallel_report, gpu_report, hostile_report, light_report, report

from ddpprof.engine.finding import Change, ChangeKind, Finding, Predicted, ddp_change
from ddpprof.engine.numbers import clocks_of
from ddpprof.engine.topic import in_order
from ddpprof.layout import Commands, Line, Remarks, Table
from ddpprof.model.json_files import Measured, Outcome, TriedChange
from ddpprof.render.html.report_page import report_page
from ddpprof.render.json import render_json
from ddpprof.render.markdown import render_markdown
from ddpprof.render.sections.overview import Number, change_sentence, finding_list, first_screen, verdict
from ddpprof.render.terminal import render_terminal
from ddpprof.report import Job, LightStepReport, Report
from ddpprof.topics.failure import Failure, RankEnd
from ddpprof.topics.script_code import ScriptLine
from ddpprof.topics.steps.view import spread_table

SURE = Finding("late", "A rank is late", "in all steps", "Look at it.", 5_000_000)
NOISE = Finding("large", "A bucket is large", "it has 25 MB", "Split it.", 3_000_000, is_noise=True)


def terminal(made: Report) -> str:
    file = io.StringIO()
    render_terminal(tuple(finding_list(made)), file, 80)
    return file.getvalue()


def markdown(made: Report) -> str:
    return render_markdown("a", finding_list(made))


@pytest.mark.parametrize("shown", [terminal, markdown])
def test_what_may_be_noise_stands_last_and_advises_nothing(shown: object) -> None:
    assert callable(shown)
    text = shown(report(findings=(SURE, NOISE)))
    advised, noise = text.split("Not beyond noise")
    assert "1. " in advised
    assert "→ Look at it." in advised
    assert "A bucket is large" in noise
    assert "it has 25 MB" in noise
    assert "Split it" not in text


@pytest.mark.parametrize("shown", [terminal, markdown])
def test_where_all_may_be_noise_that_is_said(shown: object) -> None:
    assert callable(shown)
    text = shown(report(findings=(NOISE,)))
    assert "No finding exceeds the noise." in text
    assert "→" not in text


@pytest.mark.parametrize("shown", [terminal, markdown])
@pytest.mark.parametrize(("findings", "words"), [((), "No findings"), ((SURE,), "No further findings")])
def test_without_profiled_steps_it_says_how_to_get_them(
    findings: tuple[Finding, ...], words: str, shown: object
) -> None:
    assert callable(shown)
    few = light_report()
    few = replace(few, findings=findings, job=replace(few.job, num_steps=10, recorded_with=("train.py",)))
    text = " ".join(shown(few).split())
    assert f"{words}: most rules need" in text
    assert "Training ran for 10 steps, but the default options need" in text
    assert "ddpprof trace --skip-first 2 --cost-steps 2 --warmup 1 --steps 5 train.py" in text
    assert "without profiled steps" not in shown(report(findings=findings))


def test_a_page_never_says_to_change_first_what_may_be_noise() -> None:
    pytest.importorskip("plotly")
    assert 'First fix: <a href="#finding-1">A rank is late</a>' in report_page(report(findings=(SURE, NOISE)), None)
    assert '<article class="finding" id="finding-1"' in report_page(report(findings=(SURE, NOISE)), None)
    page = report_page(report(findings=(NOISE,)), None)
    assert "First fix" not in page
    assert "Not beyond noise" in page
    assert "Nothing to change beyond noise</a></h2>" in page
    assert "What to change</a></h2>" not in page
    assert '<article class="finding noise" id="finding-1"' in page
    assert "Split it" not in page.split('type="application/json"')[0]


def test_json_says_which_findings_may_be_noise() -> None:
    written = json.loads(render_json(report(findings=(SURE, NOISE))))
    assert [finding["is_noise"] for finding in written["findings"]] == [False, True]


def test_means_over_ranks_and_steps() -> None:
    came = verdict(report())  # steps of 64 and 66.5, 64.8 and 65.5 ms, of which 6.5 and 9, 6.3 and 8 are exposed
    assert came.text == "A step takes 65.2 ms. Exposed communication takes 7.45 ms, 11% of the step."
    assert came.numbers == (
        Number("step", "65.2 ms"),
        Number("communication", "13.1 ms"),
        Number("hidden", "43%"),
        Number("exposed", "7.45 ms"),
        Number("trailing", "1.51 ms"),
    )


def test_the_step_is_that_without_the_profiler_and_shares_are_of_profiled_ones() -> None:
    """A profiler may lengthen steps by much; what it shows of them is told beside that."""
    made = report()
    timed = [LightStepReport(number, mode, ns * 10**6, None) for number, mode, ns in LIGHT]
    ranks = tuple(replace(rank, light_steps=tuple(timed)) for rank in made.ranks)
    came = verdict(replace(made, ranks=ranks))
    assert came.text == (
        "A step takes 50.0 ms. In the profiled steps, exposed communication takes 7.45 ms of 65.2 ms (11%)."
    )
    assert came.numbers[0] == Number("step", "50.0 ms")
    on_accelerator = verdict(
        replace(made, ranks=ranks, times=clocks_of(Report))
    )  # whose host may be ahead by any number of steps
    assert on_accelerator.text == "A step takes 65.2 ms. Exposed communication takes 7.45 ms, 11% of the step."


LIGHT = [(5, "off", 49), (6, "light", 50), (7, "light", 51), (8, "baseline", 9), (9, "off", 50)]


@pytest.mark.parametrize(
    ("ratios", "says"),
    [
        pytest.param([2], "", id="a-long-step"),
        pytest.param([7], "1 of 3 profiled steps, which took 7.0 times as long as the other steps.", id="most"),
        pytest.param([3, 2], "2 of 4 profiled steps, which took 2.0 to 3.0 times as long as the other steps."),
    ],
)
def test_steps_of_another_kind(ratios: list[int], says: str) -> None:
    made = report()
    more = [replace(made.ranks[0].steps[0], step=99 + at, duration_ns=by * 66_000_000) for at, by in enumerate(ratios)]
    ranks = tuple(replace(rank, steps=(*rank.steps, *more)) for rank in made.ranks)
    text = verdict(replace(made, ranks=ranks, usual_steps=(12, 13))).text
    assert text.partition("11% of the step.")[2] == (says and f" These numbers exclude {says}")


def test_steps_that_average_parameters_now_and_then() -> None:
    made = report()
    longer = replace(made.ranks[0].steps[0], step=99, duration_ns=7 * 66_000_000, exposed_ns=300_000_000)
    ranks = tuple(replace(rank, steps=(*rank.steps, longer)) for rank in made.ranks)
    text = verdict(replace(made, ranks=ranks, usual_steps=(12, 13))).text
    assert text.endswith(
        "1 of 3 profiled steps, which took 7.0 times as long as the other steps, mostly because of communication."
    )


FAILED = Failure(RankEnd(1, "a", "failed: ValueError: boom", False, 14, exit_code=None), (), ())
SAVES = Predicted(5_000_000, 4_000_000, 6_000_000)
CERTAIN = Finding("idle-for-data", "Training waits for its DataLoader", "why", "Use workers.", 9_000_000)
BOUND = Finding("buckets-too-large", "Bucket 0 holds 90% of the gradients", "why", "Split it.", 9_000_000)


OWN = (
    "76% of the step is computation of the model and the optimizer (mostly gemm), whose efficiency ddpprof does not "
    "judge. ddpprof timeline shows its operators."
)
HOOK = Change(ChangeKind.COMM_HOOK, {"fp16_compress_hook": True}, "the hook", is_lossy=True)


@pytest.mark.parametrize(
    ("findings", "changes", "ends"),
    [
        pytest.param(
            (CERTAIN,),
            {},
            "First fix: Training waits for its DataLoader. This costs up to 9.00 ms per step.",
            id="what-was-measured",
        ),
        pytest.param(
            (replace(CERTAIN, title="Computing metrics takes 9.00 ms per step"),),
            {},
            "First fix: Computing metrics takes 9.00 ms per step.",
            id="what-the-title-says-already",
        ),
        pytest.param(
            (replace(BOUND, predicted=SAVES),),
            {},
            "First fix: Bucket 0 holds 90% of the gradients. Changing this is predicted to save 5.00 ms per step "
            "(4.00–6.00).",
            id="what-was-predicted",
        ),
        pytest.param((BOUND,), {}, "Use ddpprof tune to measure it.", id="nothing-leads-without-a-prediction"),
        pytest.param((replace(CERTAIN, is_noise=True),), {}, f"No finding exceeds the noise. {OWN}", id="noise"),
        pytest.param(
            (replace(CERTAIN, is_noise=True, gain_ns=9_000_000, longer_recording="--steps 50"),),
            {},
            "but this run is too short to tell whether this is due to chance: ddpprof trace --steps 50 train.py",
            id="not-decided",
        ),
        pytest.param(
            (
                replace(CERTAIN, title="Equal samples", gain_ns=None, is_correctness=True),
                replace(CERTAIN, title="Rank 1 is late", is_noise=True, longer_recording="--steps 50"),
            ),
            {},
            "Equal samples. Rank 1 is late (up to 9.00 ms per step), but this run is too short to tell whether this is "
            "due to chance: ddpprof trace --steps 50 train.py",
            id="not-decided-beside-a-correctness-finding",
        ),
        pytest.param(
            (replace(BOUND, predicted=SAVES, is_noise=True, is_worth_trying=True, change=HOOK),),
            {},
            "Worth trying: the hook, which rounds gradients, and may save 5.00 ms per step. The gain cannot be "
            "predicted from this run. Measure it with ddpprof try --finding 1 --allow-lossy.",
            id="worth-trying-but-lossy",
        ),
        pytest.param((), {}, f"saves more than 1% of the step. {OWN}", id="nothing"),
        pytest.param((), {"failure": FAILED}, "Exposed communication took 7.45 ms, 11% of the step.", id="failed"),
        pytest.param(
            (replace(CERTAIN, title="4 threads share 2 cores", gain_ns=None),),
            {},
            "First fix: 4 threads share 2 cores.",
            id="of-unknown-gain",
        ),
        pytest.param(
            (replace(CERTAIN, title="Each rank trains its own copy", gain_ns=None, may_be_meant=True),),
            {},
            "Check whether this is intended: Each rank trains its own copy.",
            id="may-be-meant",
        ),
    ],
)
def test_every_verdict_ends_with_what_to_change_or_with_nothing(
    findings: tuple[Finding, ...], changes: dict[str, Any], ends: str
) -> None:
    made = report(findings=findings, **changes)
    [verdict_line] = [one.text for one in first_screen(made, ["a"]) if isinstance(one, Line) and one.is_headline]
    assert verdict_line.endswith(ends)
    plain = re.sub(r"<[^>]+>", "", report_page(made))
    assert ends in unescape(plain)


def test_without_communication() -> None:
    made = report()
    quiet = tuple(
        replace(rank, steps=tuple(replace(step, num_comm_kernels=0, comm_ns=0) for step in rank.steps))
        for rank in made.ranks
    )
    assert verdict(replace(made, ranks=quiet)).text == "A step takes 65.2 ms, without communication."


def test_of_light_steps() -> None:
    assert verdict(light_report()).text == (
        "A step takes 56.2 ms. Only profiled steps show how much of the step is communication."
    )


def test_of_nothing() -> None:
    assert verdict(replace(report(), ranks=())).text == "No step was recorded completely."


def test_many_ranks_are_summed_up_and_the_odd_one_is_named() -> None:
    (table,) = spread_table(thousand_ranks(1000, 1))
    assert isinstance(table, Table)
    assert table.title == "All 1000 ranks, ms: step 10"
    backward = next(row for row in table.rows if row[0] == "backward")
    assert backward == ("backward", "24.00", "24.12", "24.22", "28.70", "700")


def test_few_ranks_need_no_summary() -> None:
    assert list(spread_table(thousand_ranks(16, 1))) == []


def test_traces_alone_do_not_tell_that_no_setting_helps() -> None:
    made = report(findings=())
    assert change_sentence(replace(made, job=replace(made.job, modules=()))) == (
        "Change nothing yet: traces alone do not show which DDP setting would shorten the step, because they do not "
        "contain DDP's buckets and options. Use ddpprof trace to record them."
    )


def test_traces_without_steps_say_what_they_lack() -> None:
    made = report(findings=())
    ranks = tuple(replace(rank, steps=(), light_steps=()) for rank in made.ranks)
    empty = replace(made, ranks=ranks, whole_run=None, job=replace(made.job, modules=(), num_steps=None))
    assert verdict(empty).text.startswith("The traces have no steps, so the step time is unknown.")
    recorded = replace(empty, job=replace(empty.job, num_steps=0))
    assert verdict(recorded).text == "No step was recorded completely."


MS = 1_000_000


def drawn(shown: Report, width: int = 80, paths: tuple[str, ...] = ("runs/a",)) -> str:
    file = io.StringIO()
    render_terminal(first_screen(shown, paths), file, width)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("first-screen", report()),
        ("first-screen-gpu", gpu_report()),
        ("first-screen-light", light_report()),
        ("first-screen-data-parallel", data_parallel_report()),
    ],
)
def test_first_screen(name: str, made: Report, expect_golden: Callable[[Path, str], None]) -> None:
    expect_golden(GOLDEN / f"{name}.txt", drawn(made))


def findings(number: int, **changes: Any) -> tuple[Finding, ...]:
    return tuple(
        replace(Finding(f"rule-{i}", f"Title {i}", "Evidence.", "Do it.", gain_ns=(number - i) * MS), **changes)
        for i in range(number)
    )


def test_three_findings_with_their_advice_and_the_others_in_one_line_each() -> None:
    noise = findings(1, title="A long title " * 20, is_noise=True, predicted=Predicted(MS, -MS, 3 * MS))
    said = drawn(report(findings=(*findings(5), *noise)))
    assert [f"{n}. Title {n - 1}" in said for n in (1, 2, 3, 4)] == [True, True, True, False]
    assert said.count("→ Do it.") == 3
    assert "Evidence" not in said
    assert "- Title 3 [finding 4, up to 2.00 ms per step]\n- Title 4 [finding 5, up to 1.00 ms per step]\n" in said
    assert "Not beyond noise\n- A long title A long" in said
    assert "[finding 6, may save 1.00 ms per step (-1.00 to 3.00)]\n" in " ".join(said.split("\n  "))


@pytest.mark.parametrize(
    ("measured", "heading", "words"),
    [
        (
            Measured(2 * MS, -MS, 5 * MS, Outcome.CANNOT_TELL, 5),
            "Findings\n",
            "[predicted to save 4.00 ms per step (3.00–5.00); measured: 2.00 ms per step (-1.00 to 5.00), cannot tell]",
        ),
        (
            Measured(2 * MS, MS, 3 * MS, Outcome.OTHER_RESULTS, 5),
            "Tried without success\n",
            "measured: 2.00 ms per step (1.00–3.00), changes the losses]",
        ),
        (Measured(None, None, None, Outcome.FAILED, 0), "Tried without success\n", "tried: the job failed]"),
    ],
)
def test_a_change_that_was_tried_says_so_where_it_belongs(measured: Measured, heading: str, words: str) -> None:
    change = ddp_change(None, bucket_cap_mb=1)
    finding = Finding("a", "Title", "", "", 5 * MS, predicted=Predicted(4 * MS, 3 * MS, 5 * MS), change=change)
    view = replace(observed(), tried=(TriedChange("a", change.code, measured),))
    said = drawn(report(findings=in_order([finding], view, {})))
    _, _, after = said.partition(heading)
    assert words in " ".join(after.split())
    assert "First fix" not in said or measured.outcome is Outcome.CANNOT_TELL


@pytest.mark.parametrize(
    ("changes", "is_offered"),
    [
        pytest.param({}, True, id="an-edit"),
        pytest.param({"change": ddp_change(None, bucket_cap_mb=1)}, False, id="ddpprof-can-apply-it"),
        pytest.param({"measured": Measured(MS, 0, 2 * MS, Outcome.CONFIRMED, 5)}, False, id="measured"),
        pytest.param({"gain_ns": None}, False, id="no-gain"),
    ],
)
def test_the_command_that_measures_an_edit_is_offered(changes: dict[str, Any], is_offered: bool) -> None:
    finding = replace(Finding("straggler", "All ranks wait", "", "Look.", 5 * MS), **changes)
    job = replace(report().job, recorded_with=("train.py",))
    said = drawn(report(findings=(finding,), job=job))
    assert ("--finding 1 --script CHANGED.py" in said) is is_offered
    on_two_hosts = commands_after(replace(job, hosts=("a", "b")), findings=(finding,))
    assert not any("ddpprof try" in command for command in on_two_hosts.values())


def test_a_change_that_rounds_gradients_is_tried_only_if_allowed() -> None:
    lossy = replace(BOUND, rule="trailing-communication", change=HOOK, predicted=SAVES)
    lossless = replace(BOUND, change=ddp_change(None, bucket_cap_mb=1), predicted=SAVES)
    job = replace(report().job, recorded_with=("train.py",))
    assert commands_after(job, findings=(lossy,))["try the first fix"] == "ddpprof try runs/a --allow-lossy"
    assert commands_after(job, findings=(lossless, lossy))["try the first fix"] == "ddpprof try runs/a"


def test_the_operators_that_take_the_most_time_are_named() -> None:
    """On CPU, the runs of an operator at different positions in the step are separate kernels."""
    (gemm, *_) = report().kernels
    kernels = tuple(
        replace(gemm, kernel=replace(gemm.kernel, name=name, position=position), total_ns=total_ns)
        for position, (name, total_ns) in enumerate(
            [
                ("aten::mm", 50), ("autograd::engine::evaluate_function: BmmBackward0", 45), ("aten::softmax", 40),
                ("aten::add", 30), ("aten::mm", 8), ("aten::add", 14),
            ]
        )
    )  # fmt: skip
    made = report(findings=(), kernels=kernels)
    assert "optimizer (mostly aten::mm, BmmBackward0, aten::add), whose efficiency" in change_sentence(made)
    (_, *said) = finding_list(made)
    assert next(line.text for line in said if isinstance(line, Line)).startswith("76% of the step is computation of")
    assert commands_after(made.job, findings=())["its operators"] == "ddpprof timeline runs/a"
    assert "its operators" not in commands_after(made.job, findings=(CERTAIN,))
    assert "mostly" not in change_sentence(replace(made, times={"step": "device"}))


def test_wrong_training_is_no_fix_of_its_speed() -> None:
    wrong = Finding(
        "same-random-numbers", "Both ranks draw the same random numbers", "", "Seed.", None, is_correctness=True
    )
    assert change_sentence(report(findings=(wrong,))) == (
        f"Correctness: Both ranks draw the same random numbers. No finding about the step time exceeds the noise. {OWN}"
    )
    broken = replace(wrong, comes_first=True)
    alone = change_sentence(report(findings=(SURE,)))
    assert alone.startswith("First fix: ")
    both = change_sentence(report(findings=(broken, SURE)))
    assert both == f"Correctness: Both ranks draw the same random numbers. {alone}"


def test_remarks_are_shown_in_full() -> None:
    helps = "Accumulating gradients over 4 batches would save 23.7 ms per batch (13.9–33.5), with a larger batch size."
    file = io.StringIO()
    render_terminal([Remarks("Also found", (helps, "Short."))], file, 80)
    assert file.getvalue() == (
        "\nAlso found\n"
        "- Accumulating gradients over 4 batches would save 23.7 ms per batch\n"
        "  (13.9–33.5), with a larger batch size.\n"
        "- Short.\n"
    )


def test_of_very_many_findings_the_number_is_said() -> None:
    assert "- 4 more: --section findings\n" in drawn(report(findings=findings(13)))


def test_about_forty_lines_even_of_many_ranks() -> None:
    many = replace(thousand_ranks(1000, 1), findings=findings(9), missing=tuple(f"note {n}" for n in range(9)))
    said = drawn(many)
    assert len(said.splitlines()) <= 50
    assert "6 more notes: ddpprof report runs/a --section job\n" in said


def test_a_failure_is_told_once_and_in_full() -> None:
    boom = RankEnd(1, "a", "failed: ValueError: boom", False, 14, exit_code=None)
    lost = RankEnd(0, "a", "failed: RuntimeError: lost", True, 14, exit_code=None)
    said = drawn(report(failure=Failure(boom, (lost,), ())), width=200)
    assert said.startswith(
        "The job failed: rank 1 failed after 14 steps: ValueError: boom.\n"
        "Rank 0 then failed after 14 steps: RuntimeError: lost.\n"
    )
    assert "\nBefore the failure a step took 65.2 ms. Exposed communication took " in said
    assert said.count("boom") == 1
    assert "ddpprof compare" not in said


def test_commands_name_all_parts_of_the_run_and_are_never_broken() -> None:
    parts = ("/mnt/a host/" + 80 * "x", "/mnt/b")
    said = drawn(report(), 80, parts)
    assert f"ddpprof report '{parts[0]}' /mnt/b --full\n" in said


def test_whatif_is_named_only_where_it_can_read_the_run() -> None:
    """It reads one path, which is not a report in JSON."""
    predicted = replace(report().findings[0], predicted=Predicted(3 * MS, 2 * MS, 4 * MS))
    shown = report(findings=(predicted,))

    def names(paths: tuple[str, ...], **options: bool) -> bool:
        commands = first_screen(shown, paths, **options)[-1]
        assert isinstance(commands, Commands)
        return any("ddpprof whatif" in command for _, command in commands.commands)

    assert names(("runs/a",))
    assert not names(("/mnt/a", "/mnt/b"))
    assert not names(("a.json",), can_replay=False)


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_names_stay_names(name: str) -> None:
    said = drawn(hostile_report(name))
    assert "\x1b" not in said
    assert all(character.isprintable() or character == "\n" for character in said)


@pytest.mark.parametrize(
    ("recorded_with", "hosts", "sweep"),
    [
        (("--nproc-per-node", "2", "train.py"), ("a",), "--nproc-per-node 2 train.py"),
        (("--steps", "9", "--nproc=2", "train.py", "--lr", "1"), ("a",), "--nproc=2 train.py --lr 1"),
        (("train.py",), ("a",), "train.py"),
        (("--nnodes", "2", "train.py"), ("a",), None),
        (("train.py",), ("a", "b"), None),
        ((), ("a",), None),
    ],
)
def test_what_comes_next_leads_to_a_result(
    recorded_with: tuple[str, ...], hosts: tuple[str, ...], sweep: str | None
) -> None:
    """One run on each side cannot tell, so six are offered, or a sweep, which runs all settings in turn."""
    (module,) = report().job.modules
    job = replace(
        report().job, recorded_with=recorded_with, hosts=hosts, modules=(replace(module, parameter_bytes=6 * 2**20),)
    )
    offered = commands_after(job)
    wanted = None if sweep is None else f"ddpprof sweep --vary bucket_cap_mb=5,25 {sweep}"
    assert offered.get("measure a setting") == wanted
    assert offered["before a change"].startswith("ddpprof trace --repeat 6 --out BEFORE ")
    assert offered["after the change"].startswith("ddpprof trace --repeat 6 --out AFTER ")
    assert offered["compare the two"] == "ddpprof compare BEFORE AFTER"
    hooked = replace(job, modules=(replace(module, comm_hook="fp16_compress_hook"),))
    of_hook = None if sweep is None else f"ddpprof sweep --vary comm_hook=True,False {sweep}"
    assert commands_after(hooked).get("measure the hook") == of_hook
    all_in_one = replace(job, modules=(replace(module, parameter_bytes=5 * 2**20),))
    assert "measure a setting" not in commands_after(all_in_one), "the first cap holds all gradients"


def commands_after(job: Job, **changes: Any) -> dict[str, str]:
    commands = first_screen(report(job=job, **changes), ["runs/a"])[-1]
    assert isinstance(commands, Commands)
    return dict(commands.commands)


@pytest.mark.parametrize(
    ("data_ms", "idle_ms", "copy_ms", "said"),
    [
        pytest.param(1, 2, 12, "11% of the step. The largest cost is copying data: 12.0 ms, 18%.", id="copies"),
        pytest.param(30, 2, 0, "11% of the step. The largest cost is waiting for data: 30.0 ms, 46%.", id="data"),
        pytest.param(
            1, 20, 0, "11% of the step. The largest cost is time between operations, for example in Python code: 20.0 "
                      "ms", id="idle"
        ),
        pytest.param(7, 2, 0, "11% of the step.", id="communication"),
    ],
)  # fmt: skip
def test_the_verdict_names_a_larger_cost_than_communication(
    data_ms: int, idle_ms: int, copy_ms: int, said: str
) -> None:
    """Exposed communication takes 7.45 ms of 65.2 ms."""
    made = report()
    ranks = tuple(
        replace(
            rank,
            steps=tuple(
                replace(
                    one,
                    parts=one.parts
                    and replace(one.parts, data_ns=data_ms * 10**6, idle_ns=idle_ms * 10**6, copy_ns=copy_ms * 10**6),
                )
                for one in rank.steps
            ),
        )
        for rank in made.ranks
    )
    assert said in verdict(replace(made, ranks=ranks)).text
    assert verdict(replace(made, ranks=ranks)).text.endswith(said) is (not said.endswith("ms"))
    lines = (
        ScriptLine("/a/train.py:44 in main", 40 * MS, 0.6, MS, 0.1),
        ScriptLine("/a/train.py:38 in f", 15 * MS, 0.2, 11 * MS, 0.6),
    )
    at = " Most of this time passes at train.py:38 in f."
    assert (at in verdict(replace(made, ranks=ranks, script_lines=lines)).text) is said.endswith("ms")
    assert at not in verdict(replace(made, ranks=ranks, script_lines=lines[:1])).text


def test_lines_that_take_most_of_a_step_are_named_if_nothing_else_is_found() -> None:
    lines = tuple(ScriptLine(f"/a/train.py:{number} in main", number * MS, 0.1, 0, 0.0) for number in (20, 9, 8, 7))
    shown = (
        "The longest-running lines of a profiled step are train.py:20 in main (20.0 ms), train.py:9 in main (9.00 ms), "
    )
    assert shown in change_sentence(report(findings=(), script_lines=lines))
    assert "train.py:7" not in change_sentence(report(findings=(), script_lines=lines))
    assert "train.py" not in change_sentence(report(findings=(SURE,), script_lines=lines))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"recorded_with": ("--steps", "3", "x.py")}, "--steps 3 x.py", id="recorded-by-the-command"),
        pytest.param({"is_of_torchrun": True}, "--nproc-per-node 2 train.py", id="torchrun"),
        pytest.param({"is_of_torchrun": True, "hosts": ("a", "b")}, "train.py", id="torchrun-on-several-hosts"),
        pytest.param({}, "train.py", id="unknown"),
    ],
)
def test_the_command_that_records_again(changes: dict[str, Any], words: str) -> None:
    assert replace(report().job, **changes).trace_command("--out", "A") == f"ddpprof trace --out A {words}"


@pytest.mark.parametrize(
    ("made", "said"),
    [
        pytest.param(report(), "A step takes 50.0 ms. In the profiled steps, exposed", id="cpu"),
        pytest.param(replace(gpu_report(), times={"step": "device"}), "A step takes 65.2 ms. Exposed", id="device"),
    ],
)
def test_time_that_the_profiler_adds_is_not_the_largest_cost(made: Report, said: str) -> None:
    """A profiled step takes 65.2 ms, of which 20 ms are idle. Without the profiler, a step takes 50 ms."""
    timed = LightStepReport(5, "light", 50 * 10**6, None)
    ranks = tuple(
        replace(
            rank,
            light_steps=(timed,),
            steps=tuple(replace(one, parts=one.parts and replace(one.parts, idle_ns=20 * 10**6)) for one in rank.steps),
        )
        for rank in made.ranks
    )
    text = verdict(replace(made, ranks=ranks)).text
    assert said in text
    assert "largest cost" not in text
