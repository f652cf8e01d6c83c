"""`ddpprof tensorboard` as a user runs it: the plugin's numbers and TensorBoard's are the report's, on its pages."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from jobs import DDPPROF, QUICK, Run, environment, script
from reports import HOSTILE

from ddpprof.intervals import union
from ddpprof.load.run import load_run
from ddpprof.measures.arrivals import measure_arrivals
from ddpprof.measures.candidates import rank_collectives
from ddpprof.measures.matching import match_collectives
from ddpprof.render.json import render_json
from ddpprof.report import build_report

if TYPE_CHECKING:
    from browser import Tab

pytest.importorskip("tensorboard", reason="pip install 'ddpprof[tensorboard]'")
pytest.importorskip("torch_tb_profiler", reason="pip install 'ddpprof[tensorboard]'")

ROOT = Path(__file__).parents[2]
GLOO_2, GLOO_4 = ROOT / "sample_traces" / "convnet-gloo-2ranks", ROOT / "sample_traces" / "transformer-gloo-4ranks"
NCCL = ROOT.parent / "shared" / "traces" / "resnet50_a100_rank0of2.json.gz"
HOSTILE_NAMES = [
    *(HOSTILE[name] for name in ("html", "escapes", "right-to-left", "endless")),
    '"><img src=x onerror=alert(1)>',
]
PAGES = ("timeseries", "scalars", "custom_scalars", "images", "histograms", "distributions", "text", "hparams")
OVERLAP, WAIT, OPERATIONS = ("distributed/overlap", "distributed/waittime", "distributed/commops")


class Server:
    """A command that serves, and what it answers."""

    def __init__(self, process: subprocess.Popen[str], said: list[str]) -> None:
        self.process, self.said = process, said
        self.address = next(
            line.removeprefix("TensorBoard: ").strip() for line in said if line.startswith("TensorBoard")
        )

    def get(self, route: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.address}data/{route}?{query}", timeout=60) as answer:
            return json.load(answer)

    def plugin(self, view: str, run: str, worker: str = "All") -> Any:
        return self.get(f"plugin/pytorch_profiler/{view}", run=f"{run}/traces", worker=worker, span="default")


@contextmanager
def serving(folder: Path, *arguments: str | Path) -> Iterator[Server]:
    """Ended by SIGTERM, if it has not ended."""
    process = subprocess.Popen(
        [*DDPPROF, "tensorboard", *map(str, arguments), "--port", "0"],
        cwd=folder, env=environment(TMPDIR=str(folder)), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("Ctrl-C"):
            break
    try:
        yield Server(process, said)
    finally:
        process.terminate()
        process.communicate(timeout=30)


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
        yield server


def read(path: Path) -> tuple[Any, Any]:
    """Tables and JSON report."""
    run = load_run(path)
    return run, json.loads(render_json(build_report(run)))


RUNS = pytest.mark.parametrize(
    "path",
    [
        pytest.param(GLOO_2, id="gloo-2"),
        pytest.param(GLOO_4, id="gloo-4"),
        pytest.param(NCCL, id="nccl", marks=pytest.mark.skipif(not NCCL.exists(), reason="no ../shared/traces")),
    ],
)
pytestmark = [pytest.mark.slow, pytest.mark.e2e]


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
    transfer = measure_arrivals(tables, matched, None).transfer_ns
    for column, (worker, table) in enumerate(zip(sorted(data["all"]), tables, strict=True)):
        comm = table.collectives
        for index, step in enumerate(table.steps):
            in_step = comm.step == index
            total = union(comm.start_ns[in_step], comm.end_ns[in_step]).total_ns
            if len(tables) == 1:
                moved = total
            else:
                lines = np.flatnonzero(matched.step == step.number)
                end = comm.end_ns[matched.rows[lines, column]]
                moved = union(end - transfer[lines], end).total_ns
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
    names = {"step": "duration_ns", "compute": "compute_ns", "comm": "comm_ns", "exposed_comm": "exposed_ns"}
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
    with urllib.request.urlopen(f"{shown.address}data/plugin/pytorch_profiler/trace?{query}", timeout=60) as answer:
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


@contextmanager
def one_run(folder: Path) -> Iterator[Server]:
    with serving(folder, GLOO_2, "--no-plugin", "--logdir", "logs") as server:
        yield server


def processes_of(folder: Path) -> set[int]:
    """TensorBoard's, all that were started for this folder: its session's."""
    found, sessions = {}, set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session = (process / "stat").read_text().rpartition(")")[2].split()[:4]
            command = (process / "cmdline").read_text()
        except OSError:
            continue
        if state != "Z":  # ended, and nobody has asked how
            found[int(process.name)] = int(session)
            if "tensorboard.main" in command and str(folder) in command:
                sessions.add(int(session))
    return {process for process, session in found.items() if session in sessions}


def running(processes: set[int]) -> set[int]:
    states = {number: Path(f"/proc/{number}/stat") for number in processes}
    return {number for number, path in states.items() if path.exists() and ") Z " not in path.read_text()}


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 0, id="ctrl-c"), pytest.param(signal.SIGTERM, 143, id="sigterm")]
)
def test_it_ends_with_all_its_processes_and_files(tmp_path: Path, number: int, code: int) -> None:
    with serving(tmp_path, NCCL if NCCL.exists() else GLOO_2, "--no-plugin", "--logdir", tmp_path / "logs") as server:
        processes = processes_of(tmp_path)
        assert len(processes) > 1, "TensorBoard and its data server"
        server.process.send_signal(number)
        assert server.process.wait(timeout=30) == code
    assert running(processes) == set()
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def test_it_listens_on_loopback_alone(tmp_path: Path) -> None:
    with one_run(tmp_path) as server:
        assert server.address.startswith("http://127.0.0.1:")
        port = int(server.address.rstrip("/").rpartition(":")[2])
        listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        assert [
            row[1].partition(":")[0] for row in listening if row[1].endswith(f":{port:04X}") and row[3] == "0A"
        ] == ["0100007F"]


def test_where_tensorboard_ends_early_its_last_words_are_said(tmp_path: Path, ddpprof: Run) -> None:
    with one_run(tmp_path) as server:
        port = server.address.rstrip("/").rpartition(":")[2]
        done = ddpprof("tensorboard", GLOO_2, "--no-plugin", "--logdir", "others", "--port", port)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("ddpprof: TensorBoard ended by itself, with exit code ")
    assert port in line


def test_a_traced_run_is_a_log_directory(tmp_path: Path, ddpprof: Run) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    job = script("torchrun_plain.py")
    done = ddpprof("trace", "--out", "run", *QUICK, "--standalone", "--nproc-per-node=2", *job)
    assert done.returncode == 0, done.stderr
    assert "TensorBoard" not in done.stderr
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard" / "rank-1")).Reload()
    _, report = read(tmp_path / "run")
    found = {event.step: event.value for event in events.Scalars("ddp/step_ms")}
    steps = [*report["ranks"][1]["steps"], *report["ranks"][1]["light_steps"]]
    assert found == {step["step"]: float(np.float32(step["duration_ns"] / 1e6)) for step in steps}
    again = ddpprof(
        "trace", "--force", "--no-profiler", "--out", "run", *QUICK, "--standalone", "--nproc-per-node=2", *job
    )
    assert again.returncode == 0, again.stderr
    assert len(list((tmp_path / "run" / "tensorboard" / "rank-1").iterdir())) == 1


LIVE = """
import hashlib, sys, torch, torch.distributed as dist, ddpprof
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(dist.get_rank())
model = DDP(torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    for _ in range(60):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()

if sys.argv[1] == "plain":
    train()
else:
    from torch.utils.tensorboard import SummaryWriter

    window = dict(skip_first=2, cost_steps=4, steps=3)
    with SummaryWriter("logs") as writer, ddpprof.profile("run", **window, tensorboard=writer):
        train()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
sys.stdout.write(f"{digest}\\n")
sys.stdout.flush()
dist.destroy_process_group()
"""


def test_live_scalars_are_of_every_step_and_change_nothing(
    tmp_path: Path, torchrun: Run, report: Callable[[str], dict[str, Any]]
) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (tmp_path / "train.py").write_text(LIVE)
    plain, live = (torchrun("train.py", how) for how in ("plain", "live"))
    assert (plain.returncode, live.returncode) == (0, 0), live.stderr
    assert len({*plain.stdout.split(), *live.stdout.split()}) == 1, "the same parameters, bit by bit"
    assert "ddpprof" not in live.stderr
    for rank in report("run")["ranks"]:
        events = accumulator.EventAccumulator(str(tmp_path / "logs" / f"ddpprof-rank-{rank['rank']}")).Reload()
        found = {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}
        assert sorted(found["ddp/step_ms"]) == list(range(60))
        for step in rank["light_steps"]:
            assert found["ddp/step_ms"][step["step"]] == float(np.float32(step["duration_ns"] / 1e6))
            for name, ns in (step["parts"] or {}).items():
                assert found[f"ddp_step/{name.removesuffix('_ns')}_ms"][step["step"]] == float(np.float32(ns / 1e6))
