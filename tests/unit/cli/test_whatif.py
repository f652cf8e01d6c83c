"""`ddpprof whatif` on the runs that come with the project: its words, files and mistakes."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from netbenches import netbench
from reports import report
from shared import TRACES

from ddpprof.cli import main
from ddpprof.cli.arguments import bytes_per_s
from ddpprof.cli.whatif import _WORLD, _take_change, add_whatif_options
from ddpprof.engine.finding import Finding, ddp_change
from ddpprof.render.json_documents import schema
from ddpprof.report.whatif import WhatIf

CHECKOUT = Path(__file__).parents[3]


RUN = str(CHECKOUT / "sample_traces" / "transformer-gloo-4ranks")


def test_without_options_it_tries_caps_and_names_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", RUN, "--no-cache"]) == 0
    said = capsys.readouterr().out
    lines = said.splitlines()
    assert lines[0] == "transformer-gloo-4ranks · 4 ranks · gloo · from 4 recorded steps"
    settings = [line.split()[0] for line in lines if line.startswith("bucket_cap_mb=")]
    assert settings[:4] == ["bucket_cap_mb=None", "bucket_cap_mb=1", "bucket_cap_mb=2", "bucket_cap_mb=5"]
    for begin in ("Best buckets found: ", "Network among 4 ranks", "Replay of the recorded step", "Assumptions: "):
        assert any(line.startswith(begin) for line in lines), begin
    assert max(map(len, lines)) <= 80


def test_json_is_as_its_schema_says(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--bandwidth", "10Gbit", "--world-size", "16", "--bucket-cap-mb", "5,default", "--first-bucket-mb", "2"]
    assert main(["whatif", RUN, "--no-cache", "--format", "json", *options]) == 0
    answer = json.loads(capsys.readouterr().out)
    jsonschema.validate(answer, schema(WhatIf))
    labels = [outcome["label"] for outcome in answer["outcomes"]]
    assert labels == ["buckets as recorded", "bucket_cap_mb_list=[2, 5]", "bucket_cap_mb_list=[2, 25]"]
    assert answer["world"] == "bandwidth 10Gbit, world-size 16"
    for outcome in answer["outcomes"]:
        prediction = outcome["prediction"]
        assert sum(prediction["parts"].values()) == pytest.approx(prediction["step_ns"])
        assert prediction["low_ns"] <= prediction["step_ns"] <= prediction["high_ns"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        pytest.param(["--without-rank", "9"], "the run has no rank 9 to exclude", id="no-such-rank"),
        pytest.param(
            ["--bandwidth", "fast"], "'fast' is not a bandwidth; write, for example, 10Gbit or 1.2GB", id="bandwidth"
        ),
        pytest.param(["--compress", "zip"], "'zip' is not one of fp16, bf16, powersgd:RANK", id="hook"),
        pytest.param(["--compress", "powersgd:0"], "'powersgd:0' is not one of fp16, bf16, powersgd:RANK", id="rank-0"),
        pytest.param(["--bandwidth", f"{'9' * 400}Gbit"], "is not a bandwidth", id="endless-bandwidth"),
        pytest.param(["--bandwidth", f"0.{'0' * 300}1Kbit"], "is not a bandwidth", id="no-bandwidth"),
        pytest.param(["--world-size", "9" * 400], "must be at most 1,000,000,000,000", id="endless-world"),
        pytest.param(["--latency", f"{'9' * 400}s"], "is not a duration", id="endless-latency"),
        pytest.param(["--compress", "powersgd:4"], "PowerSGD needs the shapes of parameters", id="shapes"),
        pytest.param(["--bucket-cap-mb", "1,-2"], "not a size in MB above 0", id="cap"),
        pytest.param(["--batch-scale", "0"], "'0' is not a factor above 0", id="scale"),
        pytest.param(["--network", "no.json"], "no.json cannot be read", id="network"),
        pytest.param(["--run-network", "no.json"], "no.json cannot be read", id="network-of-the-run"),
    ],
)
def test_mistakes_are_said_in_one_line(options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", RUN, "--no-cache", *options]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "bits"),
    [("10Gbit", 10e9), ("10Gbit/s", 10e9), ("10Gbps", 10e9), ("400Mb/s", 4e8), ("1.5GB", 12e9), ("100MBps", 8e8)],
)
def test_a_small_b_is_a_bit_and_a_large_one_a_byte(text: str, bits: float) -> None:
    assert bytes_per_s(text) == pytest.approx(bits / 8)


def bench(path: Path, ns_per_byte: float, latency_ns: int = 0) -> str:
    row = {"longest_ns": [], "shortest_ns": [], "cpu_ns": [0] * 4}
    sizes = [(size, latency_ns + round(size * ns_per_byte)) for size in (10_000, 1_000_000, 10_000_000)]
    rows = [{**row, "num_bytes": size, "longest_ns": [ns], "shortest_ns": [ns]} for size, ns in sizes]
    path.write_text(json.dumps(netbench(sizes=rows)))
    return str(path)


def test_the_run_s_own_network_and_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The slower the links that the run is said to have had, the less of its step is computation."""
    slow, fast = bench(tmp_path / "slow.json", 8.0), bench(tmp_path / "fast.json", 1.0)

    def asked(*options: str) -> dict[str, Any]:
        assert main(["whatif", RUN, "--no-cache", "--format", "json", *options]) == 0
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        return answer

    same, faster = asked("--run-network", slow), asked("--run-network", slow, "--network", fast)
    assert [answer["network"]["ns_per_byte"] for answer in (same, faster)] == pytest.approx([8, 1], rel=1e-3)
    step, sooner = (answer["outcomes"][0]["prediction"]["step_ns"] for answer in (same, faster))
    assert step == pytest.approx(same["measured_step_ns"])
    assert sooner < step
    assert faster["world"].startswith("network ")


def test_a_network_on_which_all_sizes_take_equally_long_is_declined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flat = bench(tmp_path / "flat.json", 0.0, latency_ns=50_000)
    assert main(["whatif", RUN, "--no-cache", "--network", flat]) == 2
    said = capsys.readouterr().err
    assert "flat.json does not show how times depend on the message size. Measure at least three" in said


def test_a_name_that_is_not_utf_8_is_replaced_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = bench(tmp_path / "a\udcff.json", 1.0)
    assert main(["whatif", RUN, "--no-cache", "--network", network, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["world"].endswith("a?.json")


def test_a_trace_without_buckets_is_declined(capsys: pytest.CaptureFixture[str]) -> None:
    trace = TRACES / "triton.json.gz"
    if not trace.exists():
        pytest.skip(f"{trace} is not there")
    assert main(["whatif", str(trace), "--no-cache"]) == 2
    assert "show no step with gradient all-reduces" in capsys.readouterr().err


def test_what_compression_alone_saves_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", RUN, "--no-cache", "--format", "json"]) == 0
    as_recorded = json.loads(capsys.readouterr().out)
    assert as_recorded["without_world_ns"] is None
    assert main(["whatif", RUN, "--no-cache", "--format", "json", "--compress", "fp16"]) == 0
    compressed = json.loads(capsys.readouterr().out)
    before, after = (answer["outcomes"][0]["prediction"]["step_ns"] for answer in (as_recorded, compressed))
    assert compressed["without_world_ns"] == before > after
    assert main(["whatif", RUN, "--no-cache", "--compress", "fp16"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"With compress fp16 and the recorded buckets a step takes {after / 1e6:.0f} ms instead of" in text


def test_the_label_names_every_option_on_training_and_network() -> None:
    parser = ArgumentParser()
    add_whatif_options(parser)
    groups = {group.title: group for group in parser._action_groups}
    options = [action.dest for name in ("training", "network") for action in groups[name]._group_actions]
    assert set(options) - {"run_network"} == set(_WORLD)


def test_a_step_of_other_work_is_compared_for_the_same_work(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["whatif", RUN, "--no-cache", "--accumulation", "4", "--batch-scale", "0.5"]
    assert main([*asked, "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["work_ratio"] == 2
    assert main(asked) == 0
    text, step_ns = " ".join(capsys.readouterr().out.split()), answer["outcomes"][0]["prediction"]["step_ns"]
    before = f"{answer['without_world_ns'] / 1e6:.0f} ms"
    as_now = f"{step_ns / 2e6:.0f} ms for the current number of samples, instead of {before}."
    assert f"takes {step_ns / 1e6:.0f} ms for 2 times as many samples per rank: {as_now}" in text


@pytest.mark.parametrize("command", ["whatif", "timeline", "tensorboard"])
def test_a_report_has_no_steps(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "report.json"
    assert main(["report", RUN, "--no-cache", "--out", str(written)]) == 0
    capsys.readouterr()
    assert main([command, str(written)]) == 2
    said = f"ddpprof: {written} is a report, and a report does not contain the steps. Give the run instead.\n"
    assert capsys.readouterr().err == said


def test_a_finding_s_change_is_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    """The answer is the finding's own prediction."""
    assert main(["report", RUN, "--no-cache", "--format", "json"]) == 0
    (first, *_) = json.loads(capsys.readouterr().out)["findings"]
    assert main(["whatif", RUN, "--no-cache", "--format", "json", "--finding", "1"]) == 0
    outcomes = json.loads(capsys.readouterr().out)["outcomes"]
    (argument, value), *_ = first["change"]["values"].items()
    assert outcomes[-1]["label"] == f"{argument}={value}"


@pytest.mark.parametrize(("number", "complaint"), [("99", "but no finding 99"), ("0", "")])
def test_findings_that_are_not_there(number: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", RUN, "--no-cache", "--finding", number]) == 2
    assert complaint in capsys.readouterr().err


def test_without_the_search_for_unused_parameters_the_graph_is_as_good_as_static() -> None:
    """Removing `find_unused_parameters` spares the search, and lets DDP rebuild its buckets."""
    finding = Finding("x", "", "", "", 1, change=ddp_change(None, find_unused_parameters=False))
    options = Namespace(finding=1, path=Path("a"), gradient_as_bucket_view=False, static_graph=False)
    _take_change(options, report(findings=(finding,)))
    assert options.static_graph
