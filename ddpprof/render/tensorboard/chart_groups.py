"""Groups of lines that TensorBoard's custom scalars draw into one chart."""

from __future__ import annotations

from collections.abc import Mapping

from ddpprof.render.tensorboard.event_file import EventFile, summary, text_tensor
from ddpprof.render.tensorboard.scalars import EXPOSED, LAUNCHES, OVERLAP, OWN_WORK, PART, STEP

CHARTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "ddp": {
        "step": (STEP,),
        "communication": ("ddp/comm_ms", EXPOSED, "ddp/trailing_ms"),
        "overlap": (OVERLAP,),
        "cost of DDP": (OWN_WORK, EXPOSED),
    },
    "parts of a step": {"all": (f"{PART}.*", f"{LAUNCHES}.*")},
}
"""category → chart → regular expressions for tags"""


def write_layout(file: EventFile) -> None:
    from tensorboard.plugins.custom_scalar.layout_pb2 import Category, Chart, Layout, MultilineChartContent
    from tensorboard.plugins.custom_scalar.metadata import CONFIG_SUMMARY_TAG, create_summary_metadata

    categories = [
        Category(
            title=category,
            chart=[Chart(title=title, multiline=MultilineChartContent(tag=tags)) for title, tags in charts.items()],
        )
        for category, charts in CHARTS.items()
    ]
    layout = text_tensor(Layout(category=categories).SerializeToString())
    file.add(summary(CONFIG_SUMMARY_TAG, create_summary_metadata(), tensor=layout))
