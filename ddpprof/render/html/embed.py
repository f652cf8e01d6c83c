"""How do data and scripts get into a page without becoming markup?

JSON is put into ``<script type="application/json">``, which no browser runs. Large data and the chart library are
gzipped, and written in base 85, which takes 25 % more room than the bytes; base 64 takes 33 %.
"""

from __future__ import annotations

import base64
import gzip
import hashlib

_LARGE = 20_000
"""bytes of JSON above which it is compressed, although it is then unreadable in the file"""
_NO_MARKUP = str.maketrans("&<>", ":,.")
"""characters of Python's base 85 that mean something in HTML, and those that stand for them in `bytes` of page.js"""
_MARKUP = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}
"""JSON escapes for characters that could end the element or a line"""


def data_element(name: str, content: bytes) -> str:
    """Return an element with JSON for `readData` in page.js."""
    if len(content) < _LARGE:
        return f'<script type="application/json" id="{name}">{content.decode().translate(_MARKUP)}</script>'
    return f'<script type="application/json" id="{name}" data-encoding="gzip">{packed(content)}</script>'


def packed(content: bytes) -> str:
    """Return content as text for `unpack` in page.js, without characters that HTML reads."""
    return base64.b85encode(gzip.compress(content, 9, mtime=0)).decode().translate(_NO_MARKUP)


def packed_script_element(name: str, source: str) -> str:
    """Return an element with a script for `loadScript` in page.js. No browser runs it by itself."""
    return f'<script type="text/plain" id="{name}" data-encoding="gzip">{packed(source.encode())}</script>'


def script_element(source: str) -> str:
    return f"<script>{_closed(source)}</script>"


def script_hash(source: str) -> str:
    """Return the hash by which a Content-Security-Policy permits the script of `script_element` and no other."""
    return text_hash(_closed(source))


def text_hash(text: str) -> str:
    """Return the hash by which it permits a script element with this text."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _closed(source: str) -> str:
    """Escape what would end the element early; it can only occur in strings and regular expressions."""
    return source.replace("</script", r"<\/script").replace("<!--", r"<\!--")
