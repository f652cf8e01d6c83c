"""Turn links between files of the repository into links between pages of the site."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

ANALYSES = Path(__file__).parents[2] / "analyses"
PICTURES = tuple(sorted((Path(__file__).parents[2] / "sample_traces" / "pictures").glob("*.*g")))
STUDIES = tuple(sorted(path.parent.name for path in ANALYSES.glob("*/README.md")))

_LINK = re.compile(r"(?P<text>!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_PAGES = {
    "CHANGELOG.md": "background/changelog.md",
    "CONTRIBUTING.md": "background/contributing.md",
    "SECURITY.md": "background/security.md",
    "README.md": "index.md",
    "analyses/README.md": "studies/index.md",
    **{f"analyses/{name}/README.md": f"studies/{name}.md" for name in STUDIES},
    **{f"analyses/{name}/result.png": f"studies/{name}.png" for name in STUDIES},
    **{f"sample_traces/pictures/{path.name}": f"pictures/{path.name}" for path in PICTURES},
}


def page_of(path: str) -> str | None:
    """Return the page or picture of the site that shows a file of the repository, or ``None``."""
    return path.removeprefix("docs/") if path.startswith("docs/") else _PAGES.get(path)


def relinked(markdown: str, path: str) -> str:
    """Return the text of the file at `path` with the site's links. A link that leads to no page becomes plain text."""
    here = page_of(path)
    assert here is not None, path

    def link(match: re.Match[str]) -> str:
        target, hash_, anchor = match["target"].partition("#")
        if "://" in target or not target:
            return match[0]
        page = page_of(posixpath.normpath(posixpath.join(posixpath.dirname(path), target)))
        if page is None:
            return match["text"].strip("![]")
        return f"{match['text']}({posixpath.relpath(page, posixpath.dirname(here) or '.')}{hash_}{anchor})"

    pieces, end = [], 0
    for code in _CODE.finditer(markdown):
        pieces += [_LINK.sub(link, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*pieces, _LINK.sub(link, markdown[end:])])
