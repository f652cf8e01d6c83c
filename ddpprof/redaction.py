"""Remove passwords, keys and tokens from commands, URLs, headers and variables in stored and displayed text.

If a name contains one of `_SECRET_WORDS`, in upper or lower case, its value is hidden. Every regular expression here
takes linear time, because its input comes from the job and may be long.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"

_SECRET_WORDS = re.compile("token|secret|passw|passphrase|pwd|key|credential|auth")
_ORDINARY_WORDS = re.compile("tokeni[sz]|key(?:point|word|board|frame)|monkey|author(?!i[sz])")
"""words in training scripts that contain one of `_SECRET_WORDS` but do not name a secret"""
_COUNT_OF_TOKENS = re.compile(r"tokens")
_NUMBER = re.compile(r"[\d_.,]+(?:e\d+)?")

_NAMED = re.compile(
    r"(?<![\w.-])(?P<name>[\w.-]++)(?P<joint>['\"]?(?:[ \t]{0,4}[=:][ \t]{0,4}|,?[ \t]{1,4})['\"]?)"
    r"(?:(?:bearer|basic|token|digest) )?(?=(?P<ahead>[^\s'\"]{1,20}))",
    re.IGNORECASE,
)
"""pattern for a name followed by its value: ``name=value``, ``"name": "value"``, ``--name value``, ``['--name',
'value']``
"""
_VALUE = re.compile(r"[^\s'\"]++")
_QUOTED_VALUE = re.compile(r"[^'\"\n]++")
_KEY = re.compile("keys?", re.IGNORECASE)
_MENTIONED = re.compile("keys?|auth|.*(?:error|exception|warning)", re.IGNORECASE)
"""names that may precede a colon in an ordinary sentence, such as ``KeyError: 'weight'`` and ``missing key: weight``"""
_BEARER = re.compile(r"\b(bearer)[ \t]{1,4}[\w.~+/=-]{8,}+", re.IGNORECASE)
_BASIC = re.compile(r"\b([Bb]asic|BASIC)[ \t]{1,4}(?=[a-z]{0,20}[A-Z0-9+/=])[\w+/]{6,}+=*")
_KNOWN_TOKEN = re.compile(r"\b(?:sk-|hf_|gh[pousr]_|github_pat_|glpat-|xox[abp]-|AKIA)[\w-]{12,}+")
_WORD = re.compile(r"[^\s'\"]++")
_PORT = re.compile(r"\d+/")
_TOKEN_AS_USER = re.compile(r"[\w.~%+-]{16,}")
_END_OF_PATH = re.compile("[?#]")


def without_secrets(text: str) -> str:
    """Return the text without tokens, values with names that suggest a secret, and parts of URLs that may be secret.

    The credentials, query and fragment of a URL may be secret.
    """
    text = _WORD.sub(lambda word: _url_without_secrets(word[0]), text)
    text = _without_named_secrets(_KNOWN_TOKEN.sub(HIDDEN, text))
    return _BASIC.sub(rf"\1 {HIDDEN}", _BEARER.sub(rf"\1 {HIDDEN}", text))


def is_secret(name: str, value: str) -> bool:
    """Return True if an environment variable is named like a key, token or password, or contains a secret."""
    return _names_secret(name, value) or without_secrets(value) != value


def words_without_secrets(words: Sequence[str]) -> list[str]:
    """Return the command line without the values of options and variables named like a key, token or password."""
    shown: list[str] = []
    option = ""
    for word in words:
        name, joint, value = word.partition("=")
        if option and not word.startswith("--") and _names_secret(option, word):
            shown.append(HIDDEN)
        elif value and _names_secret(name, value):
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(without_secrets(word))
        option = word if word.startswith("-") and not joint else ""
    return shown


def _names_secret(name: str, value: str) -> bool:
    lowered = _ORDINARY_WORDS.sub("", name.lower())
    if _NUMBER.fullmatch(value):  # as in --max-tokens 512
        lowered = _COUNT_OF_TOKENS.sub("", lowered)
    return _SECRET_WORDS.search(lowered) is not None


def _without_named_secrets(text: str) -> str:
    kept, at = [], 0
    while found := _NAMED.search(text, at):
        kept.append(text[at : found.end()])
        at = found.end()
        if _hides_value(found["name"], found["joint"], found["ahead"]):
            value = _QUOTED_VALUE if found["joint"][-1] in "'\"" else _VALUE
            at = value.match(text, at).end()  # type: ignore[union-attr] # the lookahead of `_NAMED` matched it
            kept.append(HIDDEN)
    return "".join([*kept, text[at:]])


def _hides_value(name: str, joint: str, value: str) -> bool:
    if not _names_secret(name, value):
        return False
    if "=" in joint:
        return _KEY.fullmatch(name) is None or _NUMBER.fullmatch(value) is None
    if ":" in joint:
        last = name.rpartition(".")[2]  # as in ``key.weight: copying a parameter``
        return joint[0] in "'\"" or (_MENTIONED.fullmatch(last) is None and _names_secret(last, value))
    return name.startswith("-") and not value.startswith("-")


def _url_without_secrets(word: str) -> str:
    """Return a word without the secret parts of the URL that it may contain.

    A password may contain ``@``, ``/`` and ``?``. A port is not a password.
    """
    scheme, mark, rest = word.partition("://")
    if not mark:
        return word
    user, at, host = rest.rpartition("@")
    name, colon, password = user.partition(":")
    if at and "/" not in name:
        if colon and not _PORT.match(password):
            rest = f"{name}@{host}"
        elif not colon and _TOKEN_AS_USER.fullmatch(name):
            rest = f"{HIDDEN}@{host}"
    return f"{scheme}{mark}{_END_OF_PATH.split(rest, maxsplit=1)[0]}"
