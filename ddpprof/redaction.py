"""Removal of secrets from what is kept and shown: passwords and signatures in URLs, keys and tokens in commands."""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"

_PASSWORD = re.compile(r"(://[^/@:\s'\"]*):(?!\d+(?:[/\s]|$))[^\s'\"]*@")
"""password up to the last @, since passwords contain @ and / too; a port is not a password"""
_TOKEN_AS_USER = re.compile(r"(?<=://)[\w.~%+-]{16,}@")
_QUERY = re.compile(r"([a-z][\w+.-]*://[^\s?#'\"]*)[?#][^\s'\"]*", re.IGNORECASE)
_KNOWN_TOKEN = re.compile(r"\b(?:sk-|hf_|gh[pousr]_|github_pat_|glpat-|xox[abp]-|AKIA)[\w-]{12,}")
_OF_A_HEADER = re.compile(r"\b(bearer)\s+[\w.~+/=-]{8,}", re.IGNORECASE)

_KIND_OF_SECRET = "(?:.*[-_.])?(?:access|api|auth|private|secret)?"  # noqa: S105 (a pattern)
_SECRET_NAME = rf"{_KIND_OF_SECRET}(?:key|token|password|passwd|passphrase|pwd|secret|credentials?)"
_OPTION = re.compile(rf"--?{_SECRET_NAME}", re.IGNORECASE)
_VARIABLE = re.compile(_SECRET_NAME, re.IGNORECASE)
_ASSIGNMENT = re.compile(rf"((?:--?)?{_SECRET_NAME})=.+", re.IGNORECASE | re.DOTALL)


def without_secrets(text: str) -> str:
    """Return the text without passwords, queries and fragments of URLs, tokens of known services, and bearer tokens."""
    text = _PASSWORD.sub(r"\1@", text)
    text = _QUERY.sub(r"\1", _TOKEN_AS_USER.sub(f"{HIDDEN}@", text))
    return _OF_A_HEADER.sub(rf"\1 {HIDDEN}", _KNOWN_TOKEN.sub(HIDDEN, text))


def is_secret(name: str, value: str) -> bool:
    """Return whether an environment variable has the name of a key, token or password, or holds a secret."""
    return _VARIABLE.fullmatch(name) is not None or without_secrets(value) != value


def words_without_secrets(words: Sequence[str]) -> list[str]:
    """Return the command line without the values of options and variables named like keys, tokens or passwords."""
    shown: list[str] = []
    is_secret = False
    for word in words:
        if is_secret and not word.startswith("--"):
            shown.append(HIDDEN)
        else:
            assigned = _ASSIGNMENT.fullmatch(word)
            shown.append(f"{assigned.group(1)}={HIDDEN}" if assigned else without_secrets(word))
        is_secret = _OPTION.fullmatch(word) is not None
    return shown
