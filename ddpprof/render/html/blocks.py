"""Sections and charts as HTML, for pages and for notebooks: `blocks.html` has the markup."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from ddpprof.layout import Bars, Section
from ddpprof.render.glossary import find_term
from ddpprof.render.html.charts import Chart, bars_chart, chart_html
from ddpprof.render.html.page import term_id

Block = Section | Chart


def blocks_html(blocks: Iterable[Block], names: str = "", level: int = 3) -> str:
    """Return sections and charts as HTML. `Lanes` yield nothing: they are for terminals, and a page has its timeline.

    `names`: prefix of ids; empty in a notebook, which gets the titles of charts, and no links and buttons. `level`:
    level of headings.
    """
    return _template().render(blocks=tuple(blocks), names=names, level=level).strip()


@cache
def _template() -> Template:
    markup = files("ddpprof.render.html").joinpath("blocks.html").read_text(encoding="utf-8")
    environment = Environment(
        loader=FunctionLoader(lambda _name: markup), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.globals.update(chart=_chart, column_name=column_name)
    return environment.get_template("blocks.html")


def _chart(chart: Bars | Chart, name: str, level: int) -> Markup:
    made = bars_chart(chart) if isinstance(chart, Bars) else chart
    return Markup(chart_html(made, name, level))  # noqa: S704 (it escapes its texts itself)


def column_name(name: str) -> Markup:
    """Return the name as HTML, linked to its definition."""
    term = find_term(name) or find_term(name.rsplit(" ", 1)[0])
    return escape(name) if term is None else Markup('<a class="term" href="#{}">{}</a>').format(term_id(term), name)
