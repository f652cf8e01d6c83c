"""How do data and scripts get into a page without becoming markup?

JSON stands in ``<script type="application/json">``, which no browser runs; large data are gzipped, in base64.
"""

from __future__ import annotations

import base64
import gzip
import hashlib

_LARGE = 400_000
"""bytes of JSON from which on compressing is worth that it cannot be read in the file"""
_MARKUP = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}
"""What could end the element or a line, as JSON can write it, too."""


def data_element(name: str, content: bytes) -> str:
    """JSON, for `readData` of page.js."""
    if len(content) < _LARGE:
        return f'<script type="application/json" id="{name}">{content.decode().translate(_MARKUP)}</script>'
    packed = base64.b64encode(gzip.compress(content, 6, mtime=0)).decode()
    return f'<script type="application/json" id="{name}" data-encoding="gzip">{packed}</script>'


def script_element(source: str) -> str:
    return f"<script>{_closed(source)}</script>"


def script_hash(source: str) -> str:
    """By which a Content-Security-Policy lets this script run, and no other."""
    digest = hashlib.sha256(_closed(source).encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _closed(source: str) -> str:
    """What would end the element early can stand in strings and regular expressions only."""
    return source.replace("</script", r"<\/script").replace("<!--", r"<\!--")
