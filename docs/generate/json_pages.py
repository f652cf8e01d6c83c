"""Generate the reference of the JSON documents from the schemas that `ddpprof schema` prints."""

from __future__ import annotations

import ast
import html
import inspect
import sys
from functools import cache
from typing import Any

from ddpprof.render.json_documents import DOCUMENTS, schema

_WRITTEN_BY = {
    "report": "ddpprof report RUN --out report.json",
    "comparison": "ddpprof compare A B --out comparison.json",
    "repeated": "ddpprof report FOLDER --out repeated.json",
    "overhead": "ddpprof report EXPERIMENT --out overhead.json",
    "scaling": "ddpprof report EXPERIMENT --out scaling.json",
    "sweep": "ddpprof report EXPERIMENT --out sweep.json",
    "tuning": "ddpprof report EXPERIMENT --out tuning.json",
    "trying": "ddpprof report EXPERIMENT --out trying.json",
    "whatif": "ddpprof whatif RUN --out whatif.json",
    "verdict": "ddpprof diagnose RUN --format json",
    "brief": "ddpprof report RUN --brief",
    "brief-comparison": "ddpprof compare A B --brief",
}
_BEGINNING = """# JSON

Each of these documents has a JSON Schema, printed by `ddpprof schema`. All documents except the verdict have a version
(`format`): fields may be added within a version; the version changes if a field changes its meaning or is removed.

- Times are integers in **ns**, sizes are in **bytes**, and field names contain these units. Absolute times are since
  1970.
- **`null`** means that the value is unknown. It never means zero. The brief documents leave such fields out.
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
        lines += _fields(root, definitions[root])
        below = sorted(one for one in definitions if one != root and one not in shown)
        shown |= {root, *below}
        for one in below:
            if "properties" in definitions[one]:
                lines += ["", f"### {one} {{#{one.lower()}}}", "", *_fields(one, definitions[one])]
            elif "enum" in definitions[one]:
                values = ", ".join(f"`{value}`" for value in definitions[one]["enum"])
                lines += ["", f"### {one} {{#{one.lower()}}}", "", *_said(definitions[one]), f"One of {values}."]
        lines.append("")
    return "\n".join(lines)


def _fields(kind: str, node: dict[str, Any]) -> list[str]:
    said = _docstrings().get(kind, {})
    rows = [f"| `{name}` | {_type(one)} | {_as_cell(said.get(name, ''))} |" for name, one in node["properties"].items()]
    return [*_said(node), "| field | type | |", "|---|---|---|", *rows]


def _said(node: dict[str, Any]) -> list[str]:
    text = _as_cell(node.get("description", ""))
    return [text, ""] if text else []


def _as_cell(docstring: str) -> str:
    text = " ".join(docstring.replace("``", "`").replace("`None`", "`null`").split())
    return html.escape(text, quote=False).replace("|", "\\|")


@cache
def _docstrings() -> dict[str, dict[str, str]]:
    """Return the docstrings of all fields of ddpprof's classes, by class and field; the schema lacks them."""
    found: dict[str, dict[str, str]] = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("ddpprof.") and getattr(module, "__file__", None) is not None:
            for node in ast.parse(inspect.getsource(module)).body:
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, {}).update(_below_fields(node))
    return found


def _below_fields(node: ast.ClassDef) -> dict[str, str]:
    return {
        field.target.id: below.value.value
        for field, below in zip(node.body, node.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


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
