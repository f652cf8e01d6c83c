"""The reference of the JSON documents, from the schemas that `ddpprof schema` prints."""

from __future__ import annotations

import html
from typing import Any

from ddpprof.render.json import DOCUMENTS, schema

_WRITTEN_BY = {
    "report": "ddpprof report RUN --out report.json",
    "comparison": "ddpprof compare A B --out comparison.json",
    "repeated": "ddpprof report FOLDER --out repeated.json",
    "overhead": "ddpprof report EXPERIMENT --out overhead.json",
    "scaling": "ddpprof report EXPERIMENT --out scaling.json",
    "sweep": "ddpprof report EXPERIMENT --out sweep.json",
    "tuning": "ddpprof report EXPERIMENT --out tuning.json",
    "whatif": "ddpprof whatif RUN --out whatif.json",
}
_BEGINNING = """# JSON

Each of these documents has a version (`format`) and a JSON Schema, which `ddpprof schema` prints. Within a version fields
may be added; a field that changes its meaning or goes away makes a new version.

- Times are integers in **ns**, sizes in **bytes**, and the names of fields say so. Times of day are since 1970.
- **`null`** means that the run cannot tell. It never stands for zero.
- Shares and ratios are numbers, not percentages.

```sh
ddpprof schema report > report.schema.json
```

The tables below list the fields of each document, and of every object in them.
"""


def json_page() -> str:
    lines = [_BEGINNING]
    shown: set[str] = set()
    for name, kind in DOCUMENTS.items():
        tree = schema(kind)
        definitions = tree["$defs"]
        root = tree["$ref"].rpartition("/")[2]
        lines += [f"## {name}", "", f"Written by `{_WRITTEN_BY[name]}`.", ""]
        lines += _fields(definitions[root])
        below = sorted(one for one in definitions if one != root and one not in shown)
        shown |= {root, *below}
        for one in below:
            if "properties" in definitions[one]:
                lines += ["", f"### {one} {{#{one.lower()}}}", "", *_fields(definitions[one])]
            elif "enum" in definitions[one]:
                values = ", ".join(f"`{value}`" for value in definitions[one]["enum"])
                lines += ["", f"### {one} {{#{one.lower()}}}", "", *_said(definitions[one]), f"One of {values}."]
        lines.append("")
    return "\n".join(lines)


def _fields(node: dict[str, Any]) -> list[str]:
    rows = [f"| `{name}` | {_type(one)} | {_text(one)} |" for name, one in node["properties"].items()]
    return [*_said(node), "| field | type | |", "|---|---|---|", *rows]


def _said(node: dict[str, Any]) -> list[str]:
    text = _text(node)
    return [text, ""] if text else []


def _text(node: dict[str, Any]) -> str:
    text = " ".join(node.get("description", "").replace("``", "`").split())
    return html.escape(text, quote=False).replace("|", "\\|")


def _type(node: dict[str, Any]) -> str:
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in node:
        return " or ".join(_type(one) for one in node["anyOf"])
    if "enum" in node:
        return ", ".join(f"`{one}`" for one in node["enum"])
    kind = node.get("type", "any")
    if kind == "array":
        items = node.get("items") or {}
        return f"list of {_type(items)}" if items else "list"
    if kind == "object" and "additionalProperties" in node:
        inner = node["additionalProperties"]
        return f"object of {_type(inner)}" if isinstance(inner, dict) and inner else "object"
    return str(kind)
