"""The whole report of runs made by hand: complete, trace only, record only, with gaps."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from tables import collective, ddp_module, forward, record, recorded, run, trace

from ddpprof.model import CollectiveKind, DataParallelModule, Mark, Phase, Rank, RecordedStep, Trace
from ddpprof.model.whole_run import RankWholeRun, Stretch, WholeRun
from ddpprof.report import Report
from ddpprof.report.build import build_report
from ddpprof.topics.script_collectives import Place, Purpose
from ddpprof.topics.steps.breakdown import Breakdown, RecordedBreakdown
from ddpprof.topics.steps.overlap import Overlap

MS = 1_000_000
MODULE = ddp_module((8_000_000, 2_000_000), [[1], [0]], gradient_as_bucket_view=False)
LOGGED = {
    "forward_compute_time": 18, "backward_compute_time": 50, "backward_comm_time": 60,
    "backward_compute_comm_overlap_time": 40,
}  # fmt: skip


def made_trace(shift: int = 0, **changes: Any) -> Trace:
    """One step: forward 0-20, backward 20-60, two buckets, of which the second trails until 80, optimizer 85-95."""
    return trace(
        compute=[(0, 20, Phase.FORWARD, 0), (20, 60, Phase.BACKWARD, 0), (85, 95, Phase.OPTIMIZER, 0)],
        comm=[collective(32, 45 + shift, launched=31), collective(62 + shift, 80, launched=58)],
        host=[(Mark.BUCKET_COPY_OUT, 80, 82, 0)],
        **changes,
    )


def made_steps(**changes: Any) -> tuple[RecordedStep, ...]:
    forwards = (forward(0, 1, 20, 21),)
    return (
        recorded(7, 0, 100, "off", data_ns=None, forwards=()),
        recorded(8, 0, 110, "light", forwards=forwards, optimizers=((85, 95),), data_ns=3),
        recorded(10, 0, 100, forwards=forwards, ready={0: (57, 30)}, **changes),
        recorded(11, 100, 200, forwards=(), torch_stats={0: LOGGED}),
    )


def whole() -> Report:
    return build_report(
        run(
            Rank(0, made_trace(), record(0, [MODULE], made_steps(), profiler_pause_ns=5)),
            Rank(1, made_trace(shift=10), record(1, [MODULE], made_steps())),
        )
    )


def test_the_job() -> None:
    job = whole().job
    assert (job.name, job.command, job.world_size, job.num_ranks_read) == ("run", ("train.py",), 2, 2)
    assert (job.hosts, job.device, job.backend, job.torch) == (("node",), "cpu", "gloo", "2.13")
    (module,) = job.modules
    assert (module.num_parameters, module.parameter_bytes, module.num_buckets) == (2, 10_000_000, 2)
    assert (module.name, module.bucket_cap_mib, module.comm_hook) == ("Net", 25.0, None)


def test_ranks_that_average_in_other_groups_are_left_out_of_what_needs_one_model() -> None:
    other = ddp_module((1_000,), [[0]])
    ranks = []
    for number, (group, module) in enumerate([((0, 2), MODULE), ((1, 3), other), ((0, 2), MODULE), ((1, 3), other)]):
        facts = record(number, [module], made_steps(), group_ranks=group, group_size=2)
        ranks.append(Rank(number, made_trace(shift=500 * (number % 2)), facts))
    report = build_report(run(*ranks))
    assert (report.job.group_ranks, report.job.num_averaging, report.job.world_size) == ((0, 2), 2, 4)
    assert report.missing[0] == (
        "the step, buckets, late ranks and predictions refer to ranks 0, 2; the other ranks average gradients in "
        "other process groups"
    )
    assert {row.num_bytes for row in report.buckets} == {8_000_000, 2_000_000}
    assert report.across is not None
    assert report.across.clock is not None
    assert [one.rank for one in report.across.clock.ranks] == [0, 2]


def test_a_profiled_step() -> None:
    first, second = whole().ranks
    (step,) = first.steps
    assert (step.step, step.duration_ns, step.num_comm_kernels) == (10, 100, 2)
    assert (step.compute_ns, step.comm_ns, step.overlap_ns, step.exposed_ns, step.trailing_ns) == (70, 31, 13, 18, 18)
    assert step.parts == Breakdown(20, 40, 18, 10, 0, 0, 0, 12)
    assert second.steps[0].trailing_ns == 8
    assert first.whole == Overlap(70, 31, 13, 18, 0, 2)


def test_the_light_steps_and_the_cost() -> None:
    rank = whole().ranks[0]
    assert [(s.step, s.mode, s.duration_ns) for s in rank.light_steps] == [
        (7, "off", 100), (8, "light", 110), (11, "profiled", 100)
    ]  # fmt: skip
    assert [s.parts for s in rank.light_steps] == [None, RecordedBreakdown(21, 64, 10, 3, 12), None]
    assert rank.recording_cost is not None
    assert (rank.recording_cost.light_ratio, rank.recording_cost.profiler_pause_ns) == (1.1, 5)


def test_ddps_own_times_stand_in_the_following_step() -> None:
    times = whole().ranks[0].steps[0].torch_times
    assert times is not None
    assert (times.forward_ns, times.backward_ns, times.comm_ns, times.overlap_ns) == (20, 38, 51, 27)
    assert (times.torch_forward_ns, times.torch_comm_ns) == (18, 60)


def test_buckets_over_both_ranks() -> None:
    first, second = whole().buckets
    assert (first.num_bytes, first.ready_ns, first.launched_ns, first.transfer_ns) == (2_000_000, 10, 11, 13)
    assert (second.num_bytes, second.ready_ns, second.launched_ns, second.transfer_ns) == (8_000_000, 37, 38, 8)
    assert (first.late_by_ns, second.late_by_ns) == (0, 0)


def test_findings_take_the_rank_that_suffers_least() -> None:
    gains = {f.rule: f.gain_ns for f in whole().findings}
    # rank 0 trails for 18, rank 1 for 8: the difference is waiting, which no bucket size removes
    assert gains == {"trailing-communication": 4, "gradient-copies": 2}


def test_trace_only() -> None:
    made = build_report(run(Rank(0, made_trace(), None), command=()))
    (rank,) = made.ranks
    assert (made.job.modules, made.buckets, made.findings, made.job.torch) == ((), (), (), None)
    assert (made.job.backend, made.job.device, rank.host, rank.ended) == ("gloo", "cpu", None, None)
    assert (rank.steps[0].trailing_ns, rank.steps[0].torch_times, rank.recording_cost) == (18, None, None)
    assert rank.steps[0].wrapper.pre_forward_ns is None


def test_record_only() -> None:
    step = recorded(4, 0, 110, "light", forwards=(forward(0, 1, 20, 21, buffer_sync_ns=9),), ready={0: (57, 30)},
                    buckets=[(0, 0, 31, 45), (0, 1, 58, 80)], data_ns=30)  # fmt: skip
    module = structs.replace(MODULE, num_buffers=2, settings={**MODULE.settings, "broadcast_buffers": True})
    made = build_report(run(Rank(0, None, record(0, [module], [step])), world_size=2))
    (rank,) = made.ranks
    assert (rank.whole, rank.steps, [s.step for s in rank.light_steps]) == (None, (), [4])
    assert [(b.launched_ns, b.started_ns, b.finished_ns, b.transfer_ns) for b in made.buckets] == [
        (11, None, 25, None), (38, None, 60, None),
    ]  # fmt: skip
    assert {f.rule: f.gain_ns for f in made.findings} == {"idle-for-data": 30, "buffers-broadcast": 9}


@pytest.mark.parametrize(("device", "gain_ns"), [("cpu", 26 * MS), ("cuda", None)])
def test_a_watched_run_tells_how_long_training_waits_for_data(device: str, gain_ns: int | None) -> None:
    """On CPU: the host of an accelerator may wait while that computes."""
    times = {"data_ns": 26 * MS, "forward_ns": 20 * MS, "backward_ns": 50 * MS, "optimizer_ns": MS, "wait_ns": 5 * MS}
    stretch = Stretch(
        first_step=5, num_steps=100, start_ns=0, end_ns=100 * 100 * MS, median_ns=99 * MS, longest_ns=200 * MS,
        memory_bytes=None, num_flagged=0, **times,
    )  # fmt: skip
    slower = replace(stretch, data_ns=40 * MS)  # the surplus may be waiting that others share
    watched = [
        RankWholeRun(rank, "node", 0, 5, 105, 10_000 * MS, "finished", "other", 0, of_rank)
        for rank, of_rank in enumerate((slower, stretch))
    ]
    whole = WholeRun(105, 5, 10_000 * MS, tuple(watched))
    made = build_report(
        run(*(Rank(rank, None, record(rank, [MODULE], device=device)) for rank in range(2)), whole_run=whole)
    )
    assert {one.rule: one.gain_ns for one in made.findings} == ({} if gain_ns is None else {"idle-for-data": gain_ns})


def test_a_missing_rank_is_named_and_the_others_are_reported() -> None:
    made = build_report(
        run(Rank(1, made_trace(), None), world_size=2, missing=("rank 0 of 2 wrote no files",))
    )  # fmt: skip
    assert made.missing == ("rank 0 of 2 wrote no files",)
    assert (made.job.world_size, made.job.num_ranks_read, [r.rank for r in made.ranks]) == (2, 1, [1])


def test_a_rank_that_never_described_its_modules_is_reported_without_buckets() -> None:
    made = build_report(run(Rank(0, made_trace(), record(0, [], made_steps()))))
    assert (made.buckets, made.job.modules) == ((), ())
    assert made.ranks[0].steps[0].trailing_ns == 18


def test_modules_come_from_the_first_rank_that_has_them() -> None:
    made = build_report(
        run(Rank(0, made_trace(), None), Rank(1, made_trace(), record(1, [MODULE], made_steps())))
    )  # fmt: skip
    assert [m.name for m in made.job.modules] == ["Net"]
    assert [b.launched_ns for b in made.buckets] == [11, 38]


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(trace(steps=[]), id="no-steps"),
        pytest.param(trace(), id="no-work"),
        pytest.param(trace(device="gpu"), id="no-work-on-the-accelerator"),
        pytest.param(trace(steps=[(5, 5)]), id="a-step-without-length"),
        pytest.param(trace(compute=[(0, 50, Phase.OTHER, 0)]), id="no-ddp"),
    ],
)
def test_what_is_absent_is_none(made: Trace) -> None:
    built = build_report(run(Rank(0, made, None)))
    assert built.findings == ()
    for step in built.ranks[0].steps:
        assert (step.trailing_ns, step.comm_ns, step.torch_times) == (None, 0, None)
        assert step.parts is None or step.parts.step_ns == step.duration_ns


def test_no_communication() -> None:
    made = trace(compute=[(0, 20, Phase.FORWARD, 0), (20, 60, Phase.BACKWARD, 0)])
    (rank,) = build_report(run(Rank(0, made, record(0, [MODULE], made_steps())))).ranks
    assert (rank.steps[0].comm_ns, rank.steps[0].exposed_ns, rank.steps[0].trailing_ns) == (0, 0, 0)


def test_notes_are_said_once_with_the_number_of_ranks() -> None:
    ranks = [Rank(n, trace(notes=("all",) if n else ("all", "one")), None) for n in range(3)]
    assert build_report(run(*ranks, missing=("first",))).missing == ("first", "all", "one (1 of 3 ranks)")


def test_an_accelerator_that_idles_while_the_host_waits_for_data() -> None:
    made = trace(
        steps=[(0, 100), (100, 200)],
        device="gpu",
        compute=[(10, 60, Phase.BACKWARD, 0), (110, 160, Phase.BACKWARD, 1)],
        host=[(Mark.DATA, 65, 105, 1)],
    )
    made_run = run(Rank(0, made, record(0, [MODULE], made_steps())))
    assert {f.rule: f.gain_ns for f in build_report(made_run).findings} == {
        "idle-for-data": 40,
        "launch-bound": 10,
    }, "the last step, which the trace cuts off, counts in no mean"


def test_a_step_without_work_of_the_device_is_named_and_counts_in_no_mean() -> None:
    made = trace(steps=[(0, 100), (100, 101)], device="gpu", compute=[(10, 60, Phase.FORWARD, 0)])
    built = build_report(run(Rank(0, made, None)))
    assert [step.step for step in built.ranks[0].steps] == [10, 11]
    assert [step.step for step in built.ranks[0].measured_steps] == [10]
    assert "step 11 has no device work and is excluded from all means" in built.missing


@pytest.mark.parametrize(
    ("hosts", "late"),
    [
        pytest.param(("a", "a"), [1], id="one-host"),
        pytest.param(("a", "b"), [None], id="two-hosts"),
        pytest.param(("a", None), [None], id="one-unknown"),
    ],
)
def test_ranks_are_late_by_one_clock_only(hosts: tuple[str | None, str | None], late: list[int | None]) -> None:
    ranks = []
    for number, host in enumerate(hosts):
        comm = [collective(50 + number, 60, launched=40 + number)]
        marks = [(Mark.FORWARD, 0, 30, 0)]
        compute = [(5, 20, Phase.FORWARD, 0), (30, 50, Phase.BACKWARD, 0)]
        made = trace(compute=compute, comm=comm, host=marks, device="gpu")
        ranks.append(Rank(number, replace(made, host=host), None))
    assert [bucket.late_rank for bucket in build_report(run(*ranks)).buckets] == late


@pytest.mark.parametrize(
    "evaluation",
    [
        pytest.param({"forwards": (forward(150, 200, has_gradients=False),)}, id="through-ddp"),
        pytest.param({"began_evaluation": True}, id="without-ddp"),
    ],
)
def test_a_step_with_an_evaluation_is_not_averaged(evaluation: dict[str, Any]) -> None:
    compute = [(0, 50, Phase.BACKWARD, 0), (100, 150, Phase.BACKWARD, 1)]
    made = trace(steps=[(0, 100), (100, 240)], compute=compute)
    steps = [recorded(10, 0, 100), recorded(11, 100, 240, **evaluation)]
    built = build_report(run(Rank(0, made, record(0, [MODULE], steps))))
    assert built.usual_steps == (10,)


def test_baseline_steps_count_in_no_table_but_the_slowdowns() -> None:
    comm = [collective(50, 60), collective(150, 160, step=1, phase=Phase.FORWARD, kind=CollectiveKind.BROADCAST)]
    compute = [(0, 20, Phase.FORWARD, 0), (20, 50, Phase.BACKWARD, 0), (100, 120, Phase.FORWARD, 1)]
    made = trace(steps=[(0, 100), (100, 200)], compute=compute, comm=comm)
    steps = [recorded(10, 0, 100), recorded(11, 100, 200, mode="baseline")]
    built = build_report(run(*(Rank(number, made, record(number, [MODULE], steps)) for number in range(2))))
    assert [[step.step for step in rank.steps] for rank in built.ranks] == [[10], [10]]
    assert built.across is not None
    assert [row.kind for row in built.across.collectives] == ["all_reduce"]
    assert built.overlap_slowdown is not None
    assert built.overlap_slowdown.num_baseline_steps == 2


def test_collectives_beside_ddp_are_told_by_the_modules_parameters_and_not_of_baseline_steps() -> None:
    comm = [
        collective(start, start + 5, phase=Phase.OTHER, step=step, num_bytes=size)
        for step in (0, 1)
        for start, size in ((100 * step + 85, 8_000_000), (100 * step + 90, 2_000_000))
    ]
    host = [(Mark.FORWARD, 0, 20, 0), (Mark.OPTIMIZER, 70, 80, 0), (Mark.FORWARD, 100, 120, 1)]
    made = trace(steps=[(0, 100), (100, 200)], comm=comm, host=host)
    steps = [recorded(10, 0, 100), recorded(11, 100, 200, mode="baseline")]
    built = build_report(run(Rank(0, made, record(0, [MODULE], steps))))
    assert built.outside is not None
    (one,) = built.outside
    assert (one.purpose, one.place, one.num_calls, one.num_bytes, one.exposed_ns) == (
        Purpose.PARAMETERS, Place.AFTER_OPTIMIZER, 2, 10_000_000, 10,
    )  # fmt: skip
    assert {f.rule: f.gain_ns for f in built.findings} == {"parameter-averaging": 10}


def test_data_parallel_as_recorded_and_as_traced() -> None:
    module = DataParallelModule("Net", (0, 1), 2, 10_000_000)
    host = [(Mark.DATA_PARALLEL, 0, 60, 0), (Mark.REPLICATE, 5, 20, 0)]
    compute = [(30, 60, Phase.FORWARD, 0)]
    made = trace(device="gpu", compute=compute, comm=[collective(10, 40, phase=Phase.FORWARD)], host=host)
    steps = [recorded(10, 0, 100, forwards=())]
    alone = record(0, [], steps, world_size=1, backend="", data_parallel=(module,))
    built = build_report(run(Rank(0, made, alone)))
    assert built.data_parallel is not None
    assert built.data_parallel.modules == (module,)
    assert built.data_parallel.step is not None
    assert (built.data_parallel.step.replicate_ns, built.data_parallel.step.exposed_ns) == (30, 20)
    assert {f.rule: f.gain_ns for f in built.findings if f.rule == "data-parallel"} == {"data-parallel": 20}
    light = build_report(run(Rank(0, None, alone)))
    assert light.data_parallel is not None
    assert (light.data_parallel.step, light.ranks[0].devices) == (None, ())
    assert [f.rule for f in light.findings] == ["data-parallel"]


def test_a_trial_without_ddp_says_so() -> None:
    report = build_report(run(Rank(0, trace(), record()), settings={"without_ddp": True}))
    assert "this is a trial without DDP, for comparison" in report.missing
