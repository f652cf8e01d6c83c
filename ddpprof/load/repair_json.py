"""What Kineto writes and no JSON decoder takes: ``nan``, ``inf``, control characters, lone backslashes, bad UTF-8."""

from __future__ import annotations

import re

_NOT_A_NUMBER = re.compile(rb"(?<=[:,\[])(\s*)[-+]?(?:nan|inf(?:inity)?)(?=\s*[,}\]])", re.IGNORECASE)
_BACKSLASH = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_CONTROL_TO_BLANK = bytes(32 if byte < 32 else byte for byte in range(256))


def mend(text: bytes) -> bytes:
    """The text with such numbers as ``null`` and such characters escaped, replaced or blank."""
    mended = _NOT_A_NUMBER.sub(rb"\1null", text)
    mended = _BACKSLASH.sub(lambda match: match[0] if len(match[0]) > 1 else rb"\\", mended)
    # Between tokens a control character is a blank already, so only the insides of strings change.
    return mended.translate(_CONTROL_TO_BLANK).decode("utf-8", "replace").encode()
