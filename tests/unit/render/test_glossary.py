"""Terms: found by any of their names, and true of the JSON report."""

from typing import Any

import pytest

from ddpprof.render.glossary import TERMS, Term, find_term, similar_terms
from ddpprof.render.json_documents import schema
from ddpprof.report import Report

SCHEMA = schema(Report)


def resolved(node: dict[str, Any]) -> list[dict[str, Any]]:
    """What a node of the schema may be."""
    if "$ref" in node:
        return resolved(SCHEMA["$defs"][node["$ref"].rpartition("/")[2]])
    return [one for choice in node["anyOf"] for one in resolved(choice)] if "anyOf" in node else [node]


@pytest.mark.parametrize("term", [term for term in TERMS if term.field], ids=lambda term: term.name)
def test_the_report_has_the_fields_that_terms_name(term: Term) -> None:
    nodes = resolved(SCHEMA)
    for part in term.field.split("."):
        name, is_list = part.removesuffix("[]"), part.endswith("[]")
        nodes = [
            one for node in nodes if name in node.get("properties", {}) for one in resolved(node["properties"][name])
        ]
        if is_list:
            nodes = [one for node in nodes if "items" in node for one in resolved(node["items"])]
        assert nodes, f"{term.field}: there is no {part}"


def test_every_name_stands_for_one_term() -> None:
    names = [name.lower() for term in TERMS for name in (term.name, *term.aliases)]
    assert len(names) == len(set(names))
    for term in TERMS:
        assert all(find_term(name) is term for name in (term.name, *term.aliases))


@pytest.mark.parametrize("words", ["Exposed Comm", "exposed-communication", " EXPOSED ", "exposed_comm"])
def test_a_term_is_found_however_it_is_written(words: str) -> None:
    assert find_term(words).name == "exposed"


def test_what_is_no_term() -> None:
    assert find_term("nonsense") is None
    assert "trailing" in similar_terms("trailling")
    assert similar_terms("qqqqqq") == ()
    assert similar_terms("horror") == ()


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("buffers", "buffers"),
        ("BatchNorm", "buffers"),
        ("replay", "replay"),
        ("profiled", "profiled step"),
        ("measured", "gain"),
        ("bucket_cap_mb", "bucket"),
        ("bucket_cap_mb_list", "bucket"),
    ],
)
def test_words_of_the_first_screen_are_terms(words: str, name: str) -> None:
    assert find_term(words).name == name
