"""Terms: found by any of their names, and true of the JSON report."""

from typing import Any

import pytest

from ddpprof.render.glossary import TERMS, Term, find_finding, find_term, findings, similar_terms
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


@pytest.mark.parametrize("words", ["buffers-broadcast", "Buffers broadcast"])
def test_a_finding_is_explained_by_its_row_in_the_documentation(words: str) -> None:
    term = find_finding(words)
    assert term is not None
    assert term.definition.startswith("A finding. Reported if DDP broadcasts buffers, such as running statistics, ")
    assert "`forward_sync_buffers=False`" in term.change
    assert "buffers-broadcast" in similar_terms("bufers-broadcast")


def test_each_finding_has_a_condition_and_a_change_without_links() -> None:
    assert len(findings()) > 60
    assert all(term.change and "](" not in term.change + term.definition for term in findings().values())
    assert all(find_finding(name) is not None for name in findings())
    assert findings()["same-samples"].definition == (
        "A finding about correctness. Reported if ranks train on the same samples."
    )


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
