"""The report as text, in TensorBoard's dialect of Markdown."""

from __future__ import annotations

import re

from ddpprof.render.markdown import render_markdown
from ddpprof.render.sections import sections
from ddpprof.render.tensorboard.event_file import EventFile, summary, text_tensor
from ddpprof.report import Report

TAG = "ddpprof/report"

_ESCAPED = re.compile(r"\\(.)")
_LIST_ITEM = re.compile(r"^ {3}(?=\S)", re.MULTILINE)


def write_report_text(file: EventFile, report: Report) -> None:
    from tensorboard.plugins.text.metadata import create_summary_metadata

    text = tensorboard_markdown(render_markdown(report.job.name, sections(report)))
    file.add(summary(TAG, create_summary_metadata("", ""), tensor=text_tensor(text)))


def tensorboard_markdown(markdown: str) -> str:
    """Convert GitHub's Markdown to the dialect of Python-Markdown.

    The latter does not know all of GitHub's escapes, but every character by its number; list items continue after 4
    blanks.
    """
    numbered = _ESCAPED.sub(lambda match: f"&#{ord(match[1])};", markdown)
    return _LIST_ITEM.sub("    ", numbered)
