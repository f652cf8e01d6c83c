"""Render a `Report` for a terminal, and as Markdown, HTML, JSON, a Perfetto trace and TensorBoard events.

Renderers compute no new measures. Means in tables are over the steps in `Report.averaged`.

    sections/       content and order of a report, rendered by terminal, Markdown and HTML pages
    html/           HTML pages, one file each
    tensorboard.py  event files
"""
