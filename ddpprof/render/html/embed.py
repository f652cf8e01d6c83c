"""How do data and scripts get into a page without becoming markup?

JSON is put into ``<script type="application/json">``, which no browser runs; large data are gzipped, in base64.
"""

from __future__ import annotations

import base64
import gzip
import hashlib

_LARGE = 400_000
"""bytes of JSON above which it is compressed, although it is then unreadable in the file"""
_MARKUP = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}
"""JSON escapes for characters that could end the element or a line"""


def data_element(name: str, content: bytes) -> str:
    """Return an element with JSON for `readData` in page.js."""
    if len(content) < _LARGE:
        return f'<script type="application/json" id="{name}">{content.decode().translate(_MARKUP)}</script>'
    packed = base64.b64encode(gzip.compress(content, 6, mtime=0)).decode()
    return f'<script type="application/json" id="{name}" data-encoding="gzip">{packed}</script>'


def script_element(source: str) -> str:
    return f"<script>{_closed(source)}</script>"


def script_hash(source: str) -> str:
    """Return the hash by which a Content-Security-Policy permits this script and no other."""
    digest = hashlib.sha256(_closed(source).encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _closed(source: str) -> str:
    """Escape what would end the element early; it can only occur in strings and regular expressions."""
    return source.replace("</script", r"<\/script").replace("<!--", r"<\!--")
