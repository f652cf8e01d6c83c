"""`ddpprof whatif`: predict the step time with other settings by replaying a step of a run."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpprof.cli.arguments import bytes_per_s, caps, count, duration_ns, factor, megabytes, positive
from ddpprof.cli.output import add_output_options, check_output, deliver
from ddpprof.cli.reading import add_reading_options, analysed_run, finding_of, measured_network, refuse_missing
from ddpprof.errors import DdpprofError
from ddpprof.files import location

if TYPE_CHECKING:
    from ddpprof.predict import BucketCaps
    from ddpprof.report import Job, Report
    from ddpprof.report.run_profile import Profiled
    from ddpprof.report.whatif import Asked


_RANK = re.compile(r"[1-9]\d{0,8}")


def add_whatif_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", type=location, metavar="RUN", help="a run recorded by ddpprof trace")
    add(
        "--finding",
        type=positive,
        metavar="N",
        help=("predict the step time with the change that this finding in the report suggests"),
    )
    buckets = parser.add_argument_group("buckets")
    add = buckets.add_argument
    add(
        "--bucket-cap-mb", type=caps, metavar="MB,MB…", help=("predict the step time for each cap, such as 1,5,default")
    )
    add(
        "--bucket-cap-mb-list",
        type=megabytes,
        action="append",
        metavar="MB,MB…",
        help="predict the step time with one cap per bucket, in launch order",
    )
    add("--first-bucket-mb", type=factor, metavar="MB", help="predict the step time with this cap for the first bucket")
    training = parser.add_argument_group("training")
    add = training.add_argument
    add("--gradient-as-bucket-view", action="store_true", help="assume that gradients are not copied out of buckets")
    add("--static-graph", action="store_true", help="assume that only the first step searches for unused parameters")
    add("--compress", metavar="HOOK", type=_hook, help="PyTorch communication hook: fp16, bf16 or powersgd:RANK")
    add("--no-overlap", action="store_true", help="assume that all-reduces start only after the backward pass")
    add("--batch-scale", type=factor, default=1.0, metavar="X", help="assume a batch size that is X times as large")
    add(
        "--accumulation",
        type=positive,
        metavar="N",
        help="assume N backward passes per step, of which only the last reduces gradients",
    )
    add(
        "--without-rank",
        type=count,
        action="append",
        metavar="RANK",
        help="assume that this straggler is as fast as the other ranks",
    )
    network = parser.add_argument_group("network")
    add = network.add_argument
    add(
        "--network",
        type=location,
        metavar="FILE",
        help="network for the predictions, as measured by ddpprof netbench -o FILE",
    )
    add(
        "--run-network",
        type=location,
        metavar="FILE",
        help="network on which the run was recorded, if it differs from --network",
    )
    add("--bandwidth", type=bytes_per_s, metavar="10Gbit", help="bandwidth of each rank's link")
    add("--latency", type=duration_ns, metavar="50us", help="latency of one message between two ranks")
    add("--world-size", type=positive, metavar="N", help="number of ranks")
    add("--algorithm", choices=["ring", "tree", "gather"], default="ring", help="all-reduce algorithm (%(default)s)")
    add_output_options(parser)
    add_reading_options(parser)
    parser.set_defaults(run=run_whatif)


def _hook(text: str) -> tuple[str, int]:
    name, _, rank = text.partition(":")
    if name not in ("fp16", "bf16", "powersgd") or (rank and (name != "powersgd" or not _RANK.fullmatch(rank))):
        raise argparse.ArgumentTypeError(f"{text!r} is not one of fp16, bf16, powersgd:RANK")
    return name, int(rank or 1)


def run_whatif(options: argparse.Namespace) -> int:
    refuse_missing(options.path)
    check_output(options)
    from ddpprof.render.sections.whatif import whatif_sections
    from ddpprof.report.whatif import build_whatif

    profiled, job, step_ns = _profile(options)
    answer = build_whatif(job, profiled, _asked(options), step_ns)
    deliver(options, job.name, answer, whatif_sections(answer))
    return 0


def _profile(options: argparse.Namespace) -> tuple[Profiled, Job, int | None]:
    from ddpprof.report.run_profile import Benches, profile_run

    benches = Benches(measured_network(options.network), measured_network(options.run_network))
    with analysed_run(options.path, options) as analysis:
        if options.finding is not None:
            _take_change(options, analysis.report)
        without = options.without_rank or []
        profiled = profile_run(analysis.to_replay(without), benches, without)
        return profiled, analysis.report.job, analysis.report.step_ns


def _take_change(options: argparse.Namespace, report: Report) -> None:
    """Set the options that correspond to the finding's change. Raises `DdpprofError` if no option corresponds to it."""
    from ddpprof.engine.finding import ChangeKind

    change = finding_of(report, options.path, options.finding).change
    values = {} if change is None else dict(change.values)
    if change is not None and change.kind is ChangeKind.COMM_HOOK:
        options.compress = _hook(next(iter(values)).partition("_")[0])
    elif change is not None and change.kind is ChangeKind.NO_SYNC:
        options.accumulation = values["num_passes"]
    elif change is None or change.kind is not ChangeKind.DDP or not values.keys() <= _REPLAYED:
        raise DdpprofError(
            f"ddpprof cannot predict the effect of the change that finding {options.finding} suggests.{_try(options)}"
        )
    if "bucket_cap_mb" in values:
        options.bucket_cap_mb = [values["bucket_cap_mb"]]
    if "bucket_cap_mb_list" in values:
        options.bucket_cap_mb_list = [values["bucket_cap_mb_list"]]
    options.gradient_as_bucket_view = options.gradient_as_bucket_view or bool(values.get("gradient_as_bucket_view"))
    searches_no_more = values.get("find_unused_parameters") is False  # like a static graph, in the replay
    options.static_graph = options.static_graph or bool(values.get("static_graph")) or searches_no_more


_REPLAYED = {"bucket_cap_mb", "bucket_cap_mb_list", "gradient_as_bucket_view", "static_graph", "find_unused_parameters"}
"""arguments of DDP whose effect the replay can predict"""


def _try(options: argparse.Namespace) -> str:
    return f" Measure it: ddpprof try {options.path} --finding {options.finding}"


def _asked(options: argparse.Namespace) -> Asked:
    from ddpprof.model.backends import Compression
    from ddpprof.predict import Algorithm, Setting
    from ddpprof.report.whatif import Asked

    hook, rank = options.compress or (None, 1)
    world = Setting(
        gradient_as_bucket_view=options.gradient_as_bucket_view,
        static_graph=options.static_graph,
        compression=None if hook is None else Compression(hook),
        powersgd_rank=rank,
        overlaps=not options.no_overlap,
        batch_scale=options.batch_scale,
        accumulation=options.accumulation,
        world_size=options.world_size,
        algorithm=Algorithm(options.algorithm),
        bytes_per_s=options.bandwidth,
        latency_ns=options.latency,
    )
    return Asked(world, _world_label(options), tuple(_buckets(options)))


def _buckets(options: argparse.Namespace) -> Iterator[BucketCaps]:
    from ddpprof.model.ddp_module import DEFAULT_CAP_MIB
    from ddpprof.predict import BucketCaps

    lists = [*(options.bucket_cap_mb_list or [])]
    if options.first_bucket_mb is not None:
        lists += [[options.first_bucket_mb, cap or DEFAULT_CAP_MIB] for cap in options.bucket_cap_mb or [None]]
    else:
        yield from (BucketCaps(cap) for cap in options.bucket_cap_mb or [])
    yield from (BucketCaps(list_mb=tuple(caps_mb)) for caps_mb in lists)


_WORLD = (
    "gradient_as_bucket_view",
    "static_graph",
    "compress",
    "no_overlap",
    "batch_scale",
    "accumulation",
    "without_rank",
    "network",
    "bandwidth",
    "latency",
    "world_size",
    "algorithm",
)
"""options about training and the network; a prediction's label contains the options of this list that the user gives"""


def _world_label(options: argparse.Namespace) -> str:
    """Return the label of a prediction: the given options of `_WORLD`, with their values."""
    from ddpprof.words import utf8_text

    defaults = {"batch_scale": 1.0, "algorithm": "ring"}
    given = {name: getattr(options, name) for name in _WORLD if getattr(options, name) != defaults.get(name)}
    words = (
        name.replace("_", "-") if value is True else f"{name.replace('_', '-')} {_word(name, value)}"
        for name, value in given.items()
        if value is not False and value is not None
    )
    return utf8_text(", ".join(words))


def _word(name: str, value: object) -> str:
    if name == "bandwidth" and isinstance(value, float):
        return f"{value * 8 / 1e9:g}Gbit"
    if name == "latency" and isinstance(value, int):
        return f"{value / 1e3:g}us"
    if isinstance(value, tuple):
        return ":".join(map(str, value)) if value[0] == "powersgd" else str(value[0])
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
