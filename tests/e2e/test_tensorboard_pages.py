"""What `ddpprof tensorboard` shows: the plugin's numbers and TensorBoard's are the report's, on its pages."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from reports import HOSTILE
from tensorboards import GLOO_2, NCCL, ROOT, Server, read, serving

from ddpprof.intervals import union
from ddpprof.topics.collective_matching import match_collectives, rank_collectives
from ddpprof.topics.ranks.own_time import measure_arrivals

if TYPE_CHECKING:
    from browser import Tab

pytest.importorskip("tensorboard", reason="pip install 'ddpprof[tensorboard]'")
pytest.importorskip("torch_tb_profiler", reason="pip install 'ddpprof[tensorboard]'")

GLOO_4 = ROOT / "sample_traces" / "transformer-gloo-4ranks"
HOSTILE_NAMES = [
    *(HOSTILE[name] for name in ("html", "escapes", "right-to-left", "endless")),
    '"><img src=x onerror=alert(1)>',
]
PAGES = ("timeseries", "scalars", "custom_scalars", "images", "histograms", "distributions", "text", "hparams")
OVERLAP, WAIT, OPERATIONS = ("distributed/overlap", "distributed/waittime", "distributed/commops")

pytestmark = [pytest.mark.long, pytest.mark.e2e]


def hostile_run(folder: Path) -> Path:
    """A run whose command, host, module, parameters and ops have such names."""
    path = folder / "hostile"
    shutil.copytree(GLOO_2, path)
    about = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**about, "command": HOSTILE_NAMES}))
    for rank in (0, 1):
        facts = json.loads((path / f"rank-{rank}.facts.json").read_text())
        facts["host"] = HOSTILE_NAMES[0]
        module = facts["modules"][0]
        module["name"] = module["comm_hook"] = HOSTILE_NAMES[-1]
        module["parameters"] = [
            [f"{HOSTILE_NAMES[n % 5]}{n}", *rest] for n, (_, *rest) in enumerate(module["parameters"])
        ]
        (path / f"rank-{rank}.facts.json").write_text(json.dumps(facts))
        packed = path / f"rank-{rank}.trace.json.gz"
        text = gzip.decompress(packed.read_bytes()).decode()
        for name, put in zip(
            ("aten::add_", "aten::copy_", "aten::mul", "aten::sum", "aten::mm"), HOSTILE_NAMES, strict=True
        ):
            text = text.replace(f'"{name}"', json.dumps(put))
        packed.write_bytes(text.encode())
    return path


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all pages: runs of two and four ranks, a trace of NCCL's where there is one, a hostile run."""
    folder = tmp_path_factory.mktemp("shown")
    for run in (GLOO_2, GLOO_4):
        shutil.copytree(run, folder / run.name)
    (folder / "queue.py").write_text("raise ImportError('a file of the user, where they stand')")
    nccl = [NCCL] if NCCL.exists() else []
    with serving(folder, GLOO_2.name, GLOO_4.name, hostile_run(folder), *nccl) as server:
        assert "the profiler plugin has not read all traces" not in server.errors()
        yield server


RUNS = pytest.mark.parametrize(
    "path",
    [
        pytest.param(GLOO_2, id="gloo-2"),
        pytest.param(GLOO_4, id="gloo-4"),
        pytest.param(NCCL, id="nccl", marks=pytest.mark.skipif(not NCCL.exists(), reason="no ../shared/traces")),
    ],
)


def name_of(path: Path) -> str:
    return path.name.removesuffix(".json.gz")


def exactly(values: list[float]) -> Any:
    """The plugin adds up floats of µs: to a billionth of a µs."""
    return pytest.approx(values, abs=1e-6)


@RUNS
def test_the_distributed_view_shows_the_overlap_of_the_report(shown: Server, path: Path) -> None:
    data = shown.plugin(OVERLAP, name_of(path))["data"]
    _, report = read(path)
    workers = sorted(data["all"])
    assert [int(worker.rpartition("_")[2]) for worker in workers] == [rank["rank"] for rank in report["ranks"]]
    for worker, rank in zip(workers, report["ranks"], strict=True):
        assert {step["step"] for step in rank["steps"]} == {int(step) for step in data if step != "all"}
        for step in rank["steps"]:
            compute, overlap, comm = (step[name] / 1000 for name in ("compute_ns", "overlap_ns", "comm_ns"))
            assert data[str(step["step"])][worker][:3] == exactly([compute - overlap, overlap, comm - overlap])


@RUNS
def test_the_overview_shows_what_a_step_is_made_of(shown: Server, path: Path) -> None:
    """The plugin's parts exclude each other: copies are taken from communication, which is taken from ops of a CPU."""
    _, report = read(path)
    for worker, rank in zip(sorted(shown.plugin(OVERLAP, name_of(path))["data"]["all"]), report["ranks"], strict=True):
        steps = shown.plugin("overview", name_of(path), worker)["steps"]
        names = [column.get("name") for column in steps["columns"]]
        for row, step in zip(steps["rows"], rank["steps"], strict=True):
            cells = {name: value for name, value in zip(names, row, strict=True) if name is not None}
            assert cells["Step"] == str(step["step"])
            if report["job"]["device"] == "cpu":
                assert cells["Communication"] == exactly(step["comm_ns"] / 1000)
                assert (
                    cells["CPU Exec"] + cells["DataLoader"] >= (step["compute_ns"] - step["overlap_ns"]) / 1000 - 1e-6
                )
            else:
                assert cells["Kernel"] == exactly(step["compute_ns"] / 1000)
                assert cells["Communication"] <= step["exposed_ns"] / 1000 + 1e-6


@RUNS
def test_waiting_and_transfer_are_those_of_the_arrivals(shown: Server, path: Path) -> None:
    data = shown.plugin(WAIT, name_of(path))["data"]
    run, _ = read(path)
    tables = [table for rank in run.ranks if (table := rank_collectives(rank)) is not None]
    matched = match_collectives(tables)
    waiting = measure_arrivals(tables, matched, None).waiting_ns
    for column, (worker, table) in enumerate(zip(sorted(data["all"]), tables, strict=True)):
        comm = table.collectives
        for index, step in enumerate(table.steps):
            in_step = comm.step == index
            total = union(comm.start_ns[in_step], comm.end_ns[in_step]).total_ns
            if len(tables) == 1:
                moved = total
            else:
                lines = np.flatnonzero(matched.step == step.number)
                rows = matched.rows[lines, column]
                moved = union(comm.start_ns[rows] + waiting[lines, column], comm.end_ns[rows]).total_ns
            assert data[str(step.number)][worker] == exactly([moved / 1000, (total - moved) / 1000])


@RUNS
def test_collectives_are_as_many_and_as_large_as_in_the_report(shown: Server, path: Path) -> None:
    _, report = read(path)
    wanted: dict[str, list[int]] = {}
    for row in report["across"]["collectives"]:
        of_kind = wanted.setdefault(row["kind"], [0, 0])
        of_kind[0] += row["num_calls"]
        of_kind[1] += row["num_bytes"] or 0
    for table in shown.plugin(OPERATIONS, name_of(path))["data"].values():
        assert {name.partition(":")[2]: row for name, *row in table["rows"]}.keys() == wanted.keys()
        for name, calls, num_bytes, *_ in table["rows"]:
            assert [calls, num_bytes] == wanted[name.partition(":")[2]]


@RUNS
def test_scalars_are_the_report_at_float32(shown: Server, path: Path) -> None:
    _, report = read(path)
    names = {"step": "duration_ns", "compute": "compute_ns", "comm": "comm_ns", "exposed": "exposed_ns"}
    for rank in report["ranks"]:
        for tag, name in names.items():
            points = shown.get(
                "plugin/scalars/scalars", run=f"{name_of(path)}/rank-{rank['rank']}", tag=f"ddp/{tag}_ms"
            )
            found = {step: value for _, step, value in points}
            assert {step["step"]: found[step["step"]] for step in rank["steps"]} == {
                step["step"]: float(np.float32(step[name] / 1e6)) for step in rank["steps"]
            }


@RUNS
def test_operators_and_the_trace_are_there(shown: Server, path: Path) -> None:
    worker = min(shown.plugin(OVERLAP, name_of(path))["data"]["all"])
    operators = {row["name"]: row["calls"] for row in shown.plugin("operation/table", name_of(path), worker)["data"]}
    assert operators["aten::convolution" if path != GLOO_4 else "aten::linear"] > 0
    assert not [name for name in operators if name.startswith(("nccl:", "gloo:", "ProfilerStep"))]
    query = f"run={name_of(path)}/traces&worker={worker}&span=default"
    with urllib.request.urlopen(f"{shown.address}data/plugin/pytorch_profiler/trace?{query}", timeout=600) as answer:
        body = answer.read()
    events = json.loads(gzip.decompress(body))["traceEvents"]
    assert {event["name"] for event in events} >= set(operators)


def test_plugin_data_of_hostile_names_are_json(shown: Server) -> None:
    worker = min(shown.plugin(OVERLAP, "hostile")["data"]["all"])
    assert re.fullmatch(r"[A-Za-z0-9_-]+", worker)
    names = [row["name"] for row in shown.plugin("operation/table", "hostile", worker)["data"]]
    assert set(HOSTILE_NAMES) & set(names)


@pytest.mark.parametrize("page", PAGES)
def test_pages_need_no_other_host_and_run_nothing(shown: Server, tab: Tab, page: str) -> None:
    """`tab` fails the test for errors, dialogs and requests to other hosts: hostile names are text."""
    opened = tab.open(f"{shown.address}#{page}")
    opened.wait_for_load_state("networkidle")
    text = {"text": "hostile", "hparams": "world_size"}.get(page, "ddp")
    opened.get_by_text(text).first.wait_for(timeout=30_000)
    assert opened.title() == "TensorBoard"


def test_hostile_names_are_read_in_the_report(shown: Server, tab: Tab) -> None:
    opened = tab.open(f"{shown.address}#text")
    for name in ("<script>alert(1)</script>", HOSTILE_NAMES[-1]):
        opened.get_by_text(name).first.wait_for(timeout=30_000)
    assert opened.locator("h1", has_text="hostile").count() == 1
    assert opened.locator("img[src=x]").count() == 0
