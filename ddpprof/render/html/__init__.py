"""Render an HTML page as one file that loads no other files.

The page's Content-Security-Policy allows only the embedded scripts, by their hashes, and blocks all requests. This
protects the reader even if a name is interpreted as markup.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from string import Template

from ddpprof.errors import DdpprofError, how_to_install
from ddpprof.layout import clean
from ddpprof.render.glossary import TERMS, Term
from ddpprof.version import __version__

_FACTORY, _FACTORY_AT_ONCE = "this, () => {", "this, (() => {"
"""code around plotly's source, and its replacement: browsers compile a parenthesized function at once, instead of
parsing the 5 MB twice
"""

_SCRIPTS = ("page.js", "charts.js", "timeline.js", "address.js", "start.js")


@dataclass(frozen=True, slots=True)
class PagePart:
    """A part of the page, listed in the table of contents."""

    name: str
    """name of the anchor, and of the entry in the table of contents"""
    title: str
    html: str


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    head: str
    """HTML between the title and the first part of the page"""
    parts: Sequence[PagePart]
    data: Mapping[str, bytes] = field(default_factory=dict)
    """name by which scripts find the data → JSON data"""


def render_page(page: Page) -> str:
    """Return the page as HTML. Raises `DdpprofError` if plotly is not installed."""
    title = escape(clean(page.title, most=120))
    library, scripts = plotly_source(), list(map(_shipped, _SCRIPTS))
    return Template(_shipped("page.html")).substitute(
        policy=escape(_policy([text_hash(library), *map(script_hash, scripts)])),
        version=__version__,
        title=title,
        css=_shipped("page.css"),
        contents="".join(f'<li><a href="#{part.name}">{part.name.capitalize()}</a></li>' for part in page.parts),
        head=page.head,
        parts="\n".join(map(_section, page.parts)),
        data="\n".join(data_element(f"{name}-data", content) for name, content in page.data.items()),
        scripts="\n".join([_packed_library(), *map(script_element, scripts)]),
    )


def _section(part: PagePart) -> str:
    heading = f'<h2 id="{part.name}-title"><a href="#{part.name}">{escape(part.title)}</a></h2>'
    return f'<section id="{part.name}" aria-labelledby="{part.name}-title">{heading}{part.html}</section>'


def _policy(hashes: Sequence[str]) -> str:
    # plotly styles its charts in place, and saves pictures through blobs.
    return (
        f"default-src 'none'; script-src {' '.join(hashes)}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _shipped(name: str) -> str:
    return files("ddpprof.render.html").joinpath(name).read_text(encoding="utf-8")


@cache
def _packed_library() -> str:
    return packed_script_element("plotly-source", plotly_source())


@cache
def plotly_source() -> str:
    """Return the JavaScript of the chart library. Raises `DdpprofError` if it is not installed."""
    try:
        source = files("plotly.package_data").joinpath("plotly.min.js").read_text(encoding="utf-8").rstrip()
    except ModuleNotFoundError:
        raise DdpprofError(f"an HTML page needs plotly. {how_to_install('plotly')}") from None
    head, found, tail = source.partition(_FACTORY)
    return f"{head}{_FACTORY_AT_ONCE}{tail[:-3]})));" if found and tail.endswith("}));") else source


_LARGE = 20_000
"""JSON of more than this many bytes is compressed"""
_NO_MARKUP = str.maketrans("&<>", ":,.")
"""table that replaces the base-85 characters that have a meaning in HTML; `bytes` in page.js restores them"""
_MARKUP = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}
"""JSON escapes of characters that could end the HTML element or a line"""


def data_element(name: str, content: bytes) -> str:
    """Return a script element with JSON for `readData` in page.js."""
    if len(content) < _LARGE:
        return f'<script type="application/json" id="{name}">{content.decode().translate(_MARKUP)}</script>'
    return f'<script type="application/json" id="{name}" data-encoding="gzip">{packed(content)}</script>'


def packed(content: bytes) -> str:
    """Return compressed content as text for `unpack` in page.js, without characters that are special in HTML."""
    return base64.b85encode(gzip.compress(content, 9, mtime=0)).decode().translate(_NO_MARKUP)


def packed_script_element(name: str, source: str) -> str:
    """Return an element with a compressed script for `loadScript` in page.js."""
    return f'<script type="text/plain" id="{name}" data-encoding="gzip">{packed(source.encode())}</script>'


def script_element(source: str) -> str:
    return f"<script>{_closed(source)}</script>"


def script_hash(source: str) -> str:
    """Return the hash that permits the script of `script_element` in a Content-Security-Policy."""
    return text_hash(_closed(source))


def text_hash(text: str) -> str:
    """Return the hash that permits a script element with this text in a Content-Security-Policy."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _closed(source: str) -> str:
    """Escape text that would close the script element early."""
    return source.replace("</script", r"<\/script").replace("<!--", r"<\!--")


def definitions() -> PagePart:
    return PagePart("definitions", "Definitions", f"<dl>{''.join(map(_term, TERMS))}</dl>")


def term_id(term: Term) -> str:
    return "term-" + "".join(c if c.isalnum() else "-" for c in term.name.lower())


def _term(term: Term) -> str:
    formula = f"<code>{escape(term.formula)}</code>" if term.formula else ""
    found = f"<code>in the JSON report: {escape(term.field)}</code>" if term.field else ""
    return (
        f'<dt id="{term_id(term)}" tabindex="-1">{escape(term.name)}</dt>'
        f"<dd>{escape(term.definition)}{formula}{found}</dd>"
    )
