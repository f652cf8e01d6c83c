"""What a page draws, and what stands in its tables: the numbers of the JSON report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from experiments import experiment_page, scaling_report
from large_runs import thousand_ranks
from pages import GLOO_2, GLOO_4, Show, body, data_of, plotted
from shared import TRACES

from ddpprof.cli import main
from ddpprof.render.html.report_page import report_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

NCCL = TRACES / "resnet50_a100_rank0of2.json.gz"

RUNS = [
    pytest.param(GLOO_2, id="gloo-2-ranks"),
    pytest.param(GLOO_4, id="gloo-4-ranks", marks=pytest.mark.long),
    pytest.param(NCCL, id="nccl", marks=pytest.mark.long),
]


@pytest.mark.parametrize("path", RUNS)
def test_its_numbers_are_those_of_the_json_report(path: Path, show: Show, tmp_path: Path) -> None:
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    written = tmp_path / "report.html"
    assert main(["report", str(path), "--out", str(written)]) == 0
    assert main(["report", str(path), "--out", str(tmp_path / "report.json")]) == 0
    expected = json.loads((tmp_path / "report.json").read_text())
    page = show(written.read_text(encoding="utf-8"))

    assert data_of(written.read_text(encoding="utf-8"), "report-data") == expected
    for number in page.locator("#timeline [data-choose=step] option").evaluate_all("all => all.map(o => o.value)"):
        page.select_option("#timeline [data-choose=step]", number)
        for rank in expected["ranks"]:
            step = next(one for one in rank["steps"] if one["step"] == int(number))
            check_bars(page, rank["rank"], step["parts"])
            check_timeline(page, rank["rank"], step)


def check_bars(page: Page, rank: int, parts: dict[str, int]) -> None:
    drawn = {t["name"]: dict(zip(t["y"], t["numbers"], strict=True))[f"rank {rank}"] for t in plotted(page, "#step-0")}
    assert drawn == {
        "forward": parts["forward_ns"],
        "backward": parts["backward_ns"],
        "exposed comm": parts["exposed_comm_ns"],
        "optimizer": parts["optimizer_ns"],
        "data, other": parts["data_ns"] + parts["other_ns"],
        "idle": parts["idle_ns"],
    }
    row = next(row for row in body(page, "#step table") if row[0] == str(rank))
    assert [float(cell) for cell in row[1:]] == pytest.approx(
        [ns / 1e6 for ns in (*drawn.values(), sum(drawn.values()))], abs=0.006
    )


PARTS = {
    "forward": "forward", "backward": "backward", "exposed": "exposed_comm", "optimizer": "optimizer", "data": "data",
    "other": "other",
}  # fmt: skip


def check_timeline(page: Page, rank: int, step: dict[str, Any]) -> None:
    """What is drawn in its lanes, whole steps being in view; and the table below."""
    lanes: dict[str, dict[str, int]] = {}
    for trace in plotted(page, "#timeline-plot"):
        for of, lane, busy, _ in trace["numbers"]:
            if of == rank:
                sums = lanes.setdefault(lane, {})
                for kind, ns in busy.items():
                    sums[kind] = sums.get(kind, 0) + ns
    assert lanes.get("exposed", {}).get("exposed", 0) == step["exposed_ns"]
    assert lanes.get("trailing", {}).get("trailing", 0) == (step["trailing_ns"] or 0)
    parts = {kind: step["parts"][f"{field}_ns"] for kind, field in PARTS.items()}
    assert lanes["step"] == {kind: ns for kind, ns in parts.items() if ns}
    shown = page.eval_on_selector_all(
        "#timeline-numbers tbody tr",
        """(rows, rank) => rows.filter(row => row.cells[0].textContent === String(rank))
            .map(row => [...row.cells].map(cell => cell.dataset.ns))""",
        rank,
    )
    fields = ("compute_ns", "comm_ns", "overlap_ns", "exposed_ns", "trailing_ns")
    assert shown == [[None, *(None if step[field] is None else str(step[field]) for field in fields)]]


def test_the_numbers_of_an_experiment_are_drawn(show: Show) -> None:
    made = scaling_report()
    page = show(experiment_page("s", made))
    lost = {trace["name"]: trace["numbers"] for trace in plotted(page, "#charts-1")}
    points = page.evaluate("readData('report-data')")["points"]
    expected = [point["lost"] for point in points if point["lost"] is not None]
    assert lost["DDP's own work"] == [one["wrapper_ns"] for one in expected]
    assert lost["slower compute"] == [one["compute_ns"] for one in expected]


def test_a_thousand_ranks_and_the_choice_among_them(show: Show) -> None:
    page = show(report_page(thousand_ranks()))
    drawn = {label for trace in plotted(page, "#step-0") for label in trace["y"]}
    assert len(drawn) == 16
    assert "rank 700" in drawn
    ranks = page.locator("[data-choose=chosen-ranks]")
    ranks.fill("998-1200, 3")
    ranks.press("Enter")
    assert [row[0] for row in body(page, "#step-1")] == ["3", "998", "999"]
    page.eval_on_selector("[data-kind=ranks]", "map => map.emit('plotly_click', {points: [{x: 700}]})")
    assert [row[0] for row in body(page, "#step-1")] == ["3", "700", "998", "999"]
