"""Repair of Kineto's output that is not valid JSON."""

from __future__ import annotations

import re

_NOT_A_NUMBER = re.compile(rb"(?<=[:,\[])(\s*)[-+]?(?:nan|inf(?:inity)?)(?=\s*[,}\]])", re.IGNORECASE)
_BACKSLASH = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_CONTROL_TO_BLANK = bytes(32 if byte < 32 else byte for byte in range(256))


def repair_json(text: bytes) -> bytes:
    """Replace ``nan`` and ``inf`` by ``null``; escape lone backslashes; replace control characters and bad UTF-8."""
    repaired = _NOT_A_NUMBER.sub(rb"\1null", text)
    repaired = _BACKSLASH.sub(lambda match: match[0] if len(match[0]) > 1 else rb"\\", repaired)
    # Between tokens a control character is a blank already, so only the insides of strings change.
    return repaired.translate(_CONTROL_TO_BLANK).decode("utf-8", "replace").encode()
