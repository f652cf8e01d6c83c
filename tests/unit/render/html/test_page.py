"""Data and scripts in a page never become markup."""

import base64
import hashlib
import json
import re

import pytest
from pages import unpacked

from ddpprof.render.html import data_element, script_element, script_hash

HOSTILE = ["</script><script>alert(1)</script>", "<!--<script>", "a\u2028b\u2029c", "&lt;", "\u202eabc"]


@pytest.mark.parametrize("text", HOSTILE)
def test_json_holds_nothing_that_html_reads(text: str) -> None:
    element = data_element("name", json.dumps({"name": text}, ensure_ascii=False).encode())
    inside = re.fullmatch(r'<script type="application/json" id="name">(.*)</script>', element)
    assert inside is not None
    assert not set(inside[1]) & set("<>&\u2028\u2029")
    assert json.loads(inside[1]) == {"name": text}


def test_large_data_are_compressed() -> None:
    content = json.dumps(["x" * 100] * 10_000).encode()
    element = data_element("name", content)
    packed = re.fullmatch(r'<script type="application/json" id="name" data-encoding="gzip">(.*)</script>', element)
    assert packed is not None
    assert unpacked(packed[1]) == content
    assert not set(packed[1]) & set("<>&\"'\n")
    assert len(element) < len(content) / 10
    assert element == data_element("name", content)


def test_the_hash_is_of_what_stands_in_the_element() -> None:
    source = "const a = '</script>';"
    inside = script_element(source).removeprefix("<script>").removesuffix("</script>")
    assert "</script" not in inside
    expected = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
    assert script_hash(source) == f"'sha256-{expected}'"
