"""The native data of a run, read back as TensorBoard reads them: the report's numbers, as float32."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from html import unescape
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reports import HOSTILE, hostile_report, light_report, rank, report, step
from tables import collective, trace

from ddpprof.model import CollectiveKind, Rank
from ddpprof.render.tensorboard import CHARTS, run_metrics, tensorboard_markdown, write_native
from ddpprof.report import Report
from ddpprof.topics.steps.timeline import Drawing, drawing_of

accumulator = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="pip install 'ddpprof[tensorboard]'"
)

pytestmark = pytest.mark.filterwarnings("ignore:html5lib's sanitizer:DeprecationWarning")  # in TensorBoard's copy of it

Read = Callable[..., Any]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Writes a report, and reads one of its TensorBoard runs."""

    def written(of: Report, name: str = "run", drawings: Sequence[Drawing] = ()) -> Any:
        write_native(tmp_path, of, drawings)
        everything = {"scalars": 0, "tensors": 0, "images": 0, "histograms": 0}
        return accumulator.EventAccumulator(str(tmp_path / name), size_guidance=everything).Reload()

    return written


def lines(events: Any) -> dict[str, dict[int, float]]:
    return {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def ms(ns: int) -> float:
    return float(np.float32(ns / 1e6))


def test_each_step_of_each_rank_is_a_point_of_the_same_lines(read: Read) -> None:
    of = report()
    for one in of.ranks:
        found = lines(read(of, f"rank-{one.rank}"))
        for number in (12, 13):
            want = next(s for s in one.steps if s.step == number)
            values = {tag: points[number] for tag, points in found.items() if number in points}
            assert want.parts is not None
            assert values == {
                "ddp/step_ms": ms(want.duration_ns),
                "ddp/compute_ms": ms(want.compute_ns),
                "ddp/comm_ms": ms(want.comm_ns),
                "ddp/exposed_ms": ms(want.exposed_ns),
                "ddp/overlap_ms": ms(want.overlap_ns),
                "ddp/overlap_share": float(np.float32(want.overlap_ns / want.comm_ns)),
                "ddp/own_work_ms": ms(want.wrapper.total_ns),
                **({} if want.trailing_ns is None else {"ddp/trailing_ms": ms(want.trailing_ns)}),
                **{
                    f"ddp_step/{part.name.removesuffix('_ns')}_ms": ms(getattr(want.parts, part.name))
                    for part in fields(want.parts)
                },
            }


def test_what_a_step_cannot_tell_has_no_point(read: Read) -> None:
    alone = replace(step(12, 48_000, 0, 0, None, 0), parts=None)
    found = lines(read(report(ranks=(rank(0, alone),)), "rank-0"))
    assert set(found) == {f"ddp/{name}_ms" for name in ("step", "compute", "comm", "overlap", "exposed", "own_work")}


def test_lightly_recorded_steps_are_points_too(read: Read) -> None:
    of = light_report()
    found = lines(read(of, "rank-0"))["ddp/step_ms"]
    assert found == {step.step: ms(step.duration_ns) for step in of.ranks[0].light_steps}


def test_the_layout_names_lines_that_are_there(read: Read) -> None:
    tags = {tag for charts in CHARTS.values() for chart in charts.values() for tag in chart}
    assert "custom_scalars__config__" in read(report()).Tags()["tensors"]
    known = set(read(report(), "rank-0").Tags()["scalars"])
    assert {tag for tag in tags if not tag.endswith("/.*")} <= known
    assert any(tag.startswith("ddp_step/") for tag in known)


def test_metrics_of_a_run_are_those_that_compare_shows(read: Read) -> None:
    of = report()
    found = {tag: points[0] for tag, points in lines(read(of)).items()}
    assert found == {tag: float(np.float32(value)) for tag, value in run_metrics(of).items()}
    assert found["ddp_run/step_ms"] == ms(int(np.median([(s.duration_ns + t.duration_ns) / 2 for s, t in pairs(of)])))


def pairs(of: Report) -> list[tuple[Any, Any]]:
    return list(zip(of.ranks[0].steps, of.ranks[1].steps, strict=True))


def settings(events: Any) -> dict[str, Any]:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    metadata = events.SummaryMetadata("_hparams_/session_start_info")
    start = HParamsPluginData.FromString(metadata.plugin_data.content).session_start_info
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}


def test_settings_of_ddp_and_of_the_job_are_hyperparameters(read: Read) -> None:
    of = report()
    module = replace(of.job.modules[0], settings={"bucket_cap_mb": "25.0", "static_graph": "False"})
    found = settings(read(replace(of, job=replace(of.job, modules=(module,)))))
    assert found == {
        "world_size": 2, "hosts": 1, "backend": "gloo", "device": "cpu", "torch": "2.13.0+cpu", "comm_hook": "none",
        "buckets": 2, "bucket_cap_mb": 25.0, "static_graph": "False",
    }  # fmt: skip


def test_every_collective_is_in_the_histogram_of_its_kind_and_step(read: Read) -> None:
    rows = [collective(100 * i, 100 * i + 10 * i + 5) for i in range(8)]
    rows += [collective(900, 950, kind=CollectiveKind.BROADCAST), collective(1100, 1200, step=1)]
    drawing = drawing_of(Rank(0, trace(((0, 1000), (1000, 2000)), comm=rows), None))
    events = read(report(), "rank-0", [drawing])
    found = {
        (tag.removeprefix("ddp_collective_ms/"), event.step): event.tensor_proto
        for tag in events.Tags()["tensors"]
        for event in events.Tensors(tag)
    }
    tables = {key: np.frombuffer(tensor.tensor_content).reshape(-1, 3) for key, tensor in found.items()}
    assert {key: table[:, 2].sum() for key, table in tables.items()} == {
        ("all_reduce", 10): 8, ("broadcast", 10): 1, ("all_reduce", 11): 1,
    }  # fmt: skip
    first = tables["all_reduce", 10]
    assert (first[0, 0], first[-1, 1]) == (pytest.approx(5e-6), pytest.approx(75e-6))


@pytest.mark.parametrize(
    ("num_ranks", "num_steps"), [pytest.param(3, 2, id="with-numbers"), pytest.param(70, 50, id="many")]
)
def test_the_heat_map_is_darker_where_a_rank_takes_longer(read: Read, num_ranks: int, num_steps: int) -> None:
    from PIL import Image

    slow = replace(step(10, 10_000, 0, 0, None, 0), duration_ns=99_000_000)
    ranks = [rank(n, *(step(10 + i, 10_000, 0, 0, None, 0) for i in range(num_steps))) for n in range(num_ranks - 1)]
    tensor = read(report(ranks=(*ranks, rank(num_ranks - 1, slow)))).Tensors("ddp_rank_by_step/step_ms")[0].tensor_proto
    width, height, png = tensor.string_val
    picture = Image.open(BytesIO(png)).convert("L")
    assert picture.size == (int(width), int(height))
    cell = (picture.height - 60) // num_ranks
    first, last = (picture.getpixel((72, 52 + row * cell)) for row in (0, num_ranks - 1))
    assert isinstance(first, int)
    assert isinstance(last, int)
    assert first > 200 > 100 > last
    assert picture.getpixel((picture.width - 12, 52 + (num_ranks - 1) * cell)) == 255, "no such step: white"


def html(text: str) -> str:
    from tensorboard.plugin_util import markdown_to_safe_html

    return str(markdown_to_safe_html(text))


def written_text(events: Any) -> str:
    (value,) = events.Tensors("ddpprof/report")[0].tensor_proto.string_val
    return str(value.decode())


def test_the_report_is_text_with_tables_and_findings_in_order(read: Read) -> None:
    page = html(written_text(read(report())))
    assert page.count("<table>") == 5
    assert page.count("<ol>") == 1, "its findings are one list"
    assert "12 buffers of 4 BatchNorm layers" in page
    assert "\\" not in page


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_names_stay_text(name: str, read: Read) -> None:
    page, plain = (html(written_text(read(hostile_report(text)))) for text in (name, "x"))
    for tag in ("<script", "<img", "<a ", "<table", "<tr", "<td", "<li", "<h1", "<h2", "<em", "<code"):
        assert page.count(tag) == plain.count(tag), tag


def test_every_escape_of_the_report_is_one_that_tensorboard_reads() -> None:
    special = "\\`*_{}[]<>#|~&$@"
    page = html(tensorboard_markdown("".join(f"\\{character}" for character in special)))
    assert page.count("<") == 2, "a paragraph's"
    assert unescape(page) == f"<p>{special}</p>"
