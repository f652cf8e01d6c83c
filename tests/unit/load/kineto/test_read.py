"""Every layout reads the same, every time is exact, and what is not a trace is refused in one line."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddpprof.errors import BadTrace
from ddpprof.load import file_bytes
from ddpprof.load.file_bytes import Limits
from ddpprof.load.kineto import Header, collect, read_trace
from ddpprof.load.kineto.columns import Columns
from ddpprof.load.rank import load_trace

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

pytestmark = pytest.mark.usefixtures("batch_bytes")

EVENTS: list[dict[str, Any]] = [
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
    *(
        {"ph": "X", "cat": "cpu_op", "name": f"aten::op{i % 3}", "pid": 1, "tid": 1, "ts": 10 * i + 0.125, "dur": 5.001,
         "args": {"External id": i, "Input Dims": [[i], []]}}
        for i in range(40)
    ),
    {"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "pid": 1, "tid": 2, "ts": 3.5, "dur": 1,
     "args": {"Input Dims": [[7]], "Input type": ["float"]}},
    {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 999.999},
]  # fmt: skip
KEYS = {
    "schemaVersion": 1,
    "deviceProperties": [],
    "distributedInfo": {
        "backend": "gloo",
        "rank": 1,
        "world_size": 2,
        "pg_config": [{"pg_name": "0", "ranks": [0, 1]}],
    },
    "baseTimeNanoseconds": 1790857026000000000,
    "host_name": "node",
}
HEADER = Header("gloo", 1, 2, "node", 1790857026000000000, False)


def content(columns: Columns) -> list[Any]:
    names = [columns.identities[identity].name for identity in columns.identity]
    numbers = (columns.start_ns, columns.end_ns, columns.lane, columns.correlation)
    return [*zip(names, *(column.tolist() for column in numbers), strict=True), columns.window_end_ns, columns.details]


def reordered(event: dict[str, Any], last: str) -> dict[str, Any]:
    return {**{key: value for key, value in event.items() if key != last}, **{k: event[k] for k in event if k == last}}


def with_ph_in_arguments(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "args": {**event.get("args", {}), "inner": {"ph": "X", "list": [{"ph": 1}]}}}


LAYOUTS: dict[str, str | bytes] = {
    "keys-before": json.dumps({**KEYS, "traceEvents": EVENTS}),
    "keys-after": json.dumps({"traceEvents": EVENTS, **KEYS}),
    "keys-around": json.dumps({**dict(list(KEYS.items())[:2]), "traceEvents": EVENTS, **dict(list(KEYS.items())[2:])}),
    "compact": json.dumps({**KEYS, "traceEvents": EVENTS}, separators=(",", ":")),
    "indented": json.dumps({**KEYS, "traceEvents": EVENTS}, indent=4),
    "one-event-a-line": json.dumps(KEYS)[:-1] + ', "traceEvents": [\n' + ",\n".join(map(json.dumps, EVENTS)) + "\n]}\n",
    "windows-line-ends": json.dumps({**KEYS, "traceEvents": EVENTS}, indent=2).replace("\n", "\r\n"),
    "byte-order-mark": b"\xef\xbb\xbf" + json.dumps({**KEYS, "traceEvents": EVENTS}).encode(),
    "blanks-around": " \n " + json.dumps({**KEYS, "traceEvents": EVENTS}) + " \n ",
    "ph-last": json.dumps({**KEYS, "traceEvents": [reordered(event, "ph") for event in EVENTS]}),
    "ph-in-arguments": json.dumps({**KEYS, "traceEvents": [with_ph_in_arguments(event) for event in EVENTS]}),
    "ph-in-keys-after": json.dumps({"traceEvents": EVENTS, **KEYS, "INFO": [{"ph": 1}] * 40}),
    "ph-in-keys-before": json.dumps({**KEYS, "INFO": [{"ph": 1}] * 40, "traceEvents": EVENTS}),
    "traceEvents-in-a-key": json.dumps({"other": {"traceEvents": [{"ph": "X"}]}, **KEYS, "traceEvents": EVENTS}),
    "traceEvents-in-text": json.dumps({"INFO": '"traceEvents": [{"ph', **KEYS, "traceEvents": EVENTS}),
    "long-keys-after": json.dumps({"traceEvents": EVENTS, **KEYS, "INFO": ["[{]}" * 50] * 20}),
    "gzip": gzip.compress(json.dumps({**KEYS, "traceEvents": EVENTS}).encode()),
    "gzip-of-two-members": gzip.compress(json.dumps({**KEYS, "traceEvents": EVENTS})[:500].encode())
    + gzip.compress(json.dumps({**KEYS, "traceEvents": EVENTS})[500:].encode()),
    "zstd": zstd.compress(json.dumps({**KEYS, "traceEvents": EVENTS}).encode()),
    "zstd-of-two-frames": zstd.compress(json.dumps({**KEYS, "traceEvents": EVENTS})[:500].encode())
    + zstd.compress(json.dumps({**KEYS, "traceEvents": EVENTS})[500:].encode()),
}
EXPECTED = [
    *((f"aten::op{i % 3}", 10_000 * i + 125, 10_000 * i + 5126, 1, 0) for i in range(40)),
    ("gloo:all_reduce", 3500, 4500, 2, 0),
    999_999,
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_reads_the_same(read: Any, layout: str) -> None:
    header, columns = read(LAYOUTS[layout])
    assert header == HEADER
    assert content(columns)[:-1] == EXPECTED
    assert [details.num_bytes for details in columns.details] == [28]


READ_IN_BATCHES = set(LAYOUTS) - {
    "ph-last",
    "ph-in-arguments",
    "ph-in-keys-after",
    "ph-in-keys-before",
    "traceEvents-in-a-key",
}


@pytest.mark.parametrize("layout", sorted(READ_IN_BATCHES))
def test_usual_layouts_are_never_held_whole(read: Any, layout: str) -> None:
    assert content(read(LAYOUTS[layout], whole_bytes=0)[1])[:-1] == EXPECTED


@pytest.mark.parametrize("end", ["]", "]\n", "", ",", ",\n"], ids=repr)
def test_a_bare_list_of_events_is_a_trace(read: Any, end: str) -> None:
    header, columns = read("[\n" + ",\n".join(map(json.dumps, EVENTS)) + end)
    assert (header, content(columns)[:-1]) == (Header(), EXPECTED)


def test_without_isal_the_same_is_read(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_bytes, "_open_gzip", gzip.open)
    assert content(read(LAYOUTS["gzip"])[1])[:-1] == EXPECTED


@pytest.mark.parametrize(
    ("start_us", "start_ns"),
    [
        ("0.001", 1),
        ("4398046511103.999", 4398046511103999),
        ("4458676606874.351", 4458676606874351),
        ("4458676606874.349", 4458676606874349),
        ("8796093022207.999", 8796093022207999),
        ("8796093022208.001", 8796093022208001),
        ("1712195495601442.533", 1712195495601442533),
        ("1682725898094377", 1682725898094377000),
        ("-5.001", -5001),
        ("1.5e3", 1500000),
    ],
)
def test_times_are_exact_to_the_nanosecond(read: Any, start_us: str, start_ns: int) -> None:
    event = '{"ph": "X", "cat": "cpu_op", "name": "a", "ts": %s, "dur": 0.007}'
    _, columns = read('{"traceEvents": [' + ", ".join([event % "1.001", event % start_us]) + "]}")
    assert columns.start_ns.tolist() == [1001, start_ns]
    assert columns.end_ns.tolist() == [1008, start_ns + 7]


def test_every_nanosecond_below_the_limit_of_float_is_exact(read: Any) -> None:
    times = np.random.default_rng(0).integers(2**42 * 1000, 2**43 * 1000, 500).tolist()
    events = ", ".join(
        f'{{"ph": "X", "cat": "cpu_op", "name": "a", "ts": {t // 1000}.{t % 1000:03}, "dur": 1}}' for t in times
    )
    assert read(f'{{"traceEvents": [{events}]}}')[1].start_ns.tolist() == times


def test_a_negative_duration_counts_as_none(read: Any) -> None:
    _, columns = read('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "a", "ts": 5, "dur": -3}]}')
    assert (columns.start_ns.tolist(), columns.end_ns.tolist()) == ([5000], [5000])


def test_ops_inside_ops_are_dropped_on_the_way(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "_MERGE_ROWS", 2)
    inner = [
        {**event, "ts": event["ts"] + 1, "dur": 1, "name": "inner"} for event in EVENTS if event.get("cat") == "cpu_op"
    ]
    assert content(read(json.dumps({"traceEvents": [*EVENTS, *inner]}))[1])[:-1] == [*EXPECTED]


def test_ops_are_kept_only_where_no_device_works(read: Any) -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 1, "args": {"stream": 7, "correlation": 3}}
    _, columns = read(json.dumps({"traceEvents": [*EVENTS, kernel, *EVENTS]}))
    names = [columns.identities[identity].name for identity in columns.identity]
    assert sorted(zip(names, columns.detail.tolist(), strict=True)) == [
        ("gemm", -1),
        ("gloo:all_reduce", 0),
        ("gloo:all_reduce", 1),
    ]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b'"args": {"memory bandwidth (GB/s)": inf, "x": [nan, -inf]}', id="not-a-number"),
        pytest.param(b'"args": {"x": NaN, "y": -Infinity}', id="python-spelling"),
        pytest.param(b'"args": {"path": "C:\\Users\\x"}', id="lone-backslash"),
        pytest.param(b'"args": {"text": "a\tb\x01c"}', id="control-characters"),
        pytest.param(b'"args": {"text": "\xff\xfe"}', id="not-utf-8"),
    ],
)
def test_what_kineto_writes_beyond_json_is_read(read: Any, text: bytes) -> None:
    event = b'{"ph": "X", "cat": "kernel", "name": "a", "ts": 5, "dur": 3, ' + text + b"}"
    _, columns = read(b'{"traceEvents": [' + b", ".join([event] * 30) + b"]}")
    assert columns.start_ns.tolist() == [5000] * 30


def test_a_name_that_is_not_utf_8_is_read(read: Any) -> None:
    _, columns = read(b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "a\xff", "ts": 5, "dur": 3}]}')
    assert [identity.name for identity in columns.identities] == ["a\N{REPLACEMENT CHARACTER}"]


GOOD = json.dumps({**KEYS, "traceEvents": EVENTS}).encode()
ONE = b'{"ph": "X", "cat": "kernel", "name": "a", "ts": 5, "dur": 3}'


def one_with(**changes: Any) -> bytes:
    return json.dumps({"traceEvents": [{**json.loads(ONE), **changes}]}).encode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(b"", "is empty", id="empty"),
        pytest.param(b" \n", "is empty", id="blank"),
        pytest.param(gzip.compress(b""), "is empty", id="empty-gzip"),
        pytest.param(b"hello", "is not JSON", id="text"),
        pytest.param(b"\x89PNG\r\n", "is not JSON", id="binary"),
        pytest.param(b"5", "is not JSON", id="number"),
        pytest.param(b'{"a": 1}', "without traceEvents", id="other-json"),
        pytest.param(b"{}", "without traceEvents", id="empty-object"),
        pytest.param(b'{"a": }', "is not valid JSON", id="broken-json"),
        pytest.param(b'{"traceEvents": 5}', "content of an unexpected type", id="events-are-a-number"),
        pytest.param(b'{"traceEvents": null}', "content of an unexpected type", id="events-are-null"),
        pytest.param(b'{"traceEvents": [5]}', "content of an unexpected type", id="event-is-a-number"),
        pytest.param(b"[5]", "content of an unexpected type", id="list-of-numbers"),
        pytest.param(b'{"traceEvents": []}', "contains no events", id="no-events"),
        pytest.param(b"[]", "contains no events", id="empty-list"),
        pytest.param(one_with(ts="soon"), "content of an unexpected type", id="time-is-text"),
        pytest.param(one_with(dur=[]), "content of an unexpected type", id="duration-is-a-list"),
        pytest.param(one_with(name=5), "content of an unexpected type", id="name-is-a-number"),
        pytest.param(one_with(ts=1e300), "invalid time", id="time-out-of-range"),
        pytest.param(one_with(dur=1e300), "invalid time", id="duration-out-of-range"),
        pytest.param(
            b'{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1e999999999}]}', "out of range", id="time-bomb"
        ),
        pytest.param(GOOD[:-1], "is truncated", id="last-bracket-missing"),
        pytest.param(GOOD[: len(GOOD) // 2], "is truncated", id="half"),
        pytest.param(GOOD[:60], "is truncated", id="cut-in-the-header"),
        pytest.param(GOOD + b"x", "is not valid JSON", id="something-after-the-end"),
        pytest.param(gzip.compress(GOOD)[:-20], "is truncated", id="gzip-cut-off"),
        pytest.param(gzip.compress(GOOD)[:5], "is truncated", id="gzip-header-only"),
        pytest.param(gzip.compress(GOOD)[:200] + b"\0" * 100, "gzip", id="gzip-damaged"),
        pytest.param(zstd.compress(GOOD)[:-20], "is truncated: its zstd data", id="zstd-cut-off"),
        pytest.param(zstd.compress(GOOD)[:4] + b"\xff" * 100, "is damaged .*zstd", id="zstd-damaged"),
        pytest.param(b"[" * 100_000, "content of an unexpected type", id="nested-too-deeply"),
        pytest.param(b'{"a":' * 100_000, "nested too deeply", id="objects-nested-too-deeply"),
        pytest.param(
            b'{"traceEvents": [{"ph": "X", "args": {"a": ' + b"[" * 100_000,
            "nested too deeply",
            id="arguments-nested-too-deeply",
        ),
        pytest.param(b'[{"ph": "B", "name": "x", "ts": 5}]', "no ops, kernels or steps", id="timeline-of-another-tool"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(read: Any, text: bytes, message: str) -> None:
    with pytest.raises(BadTrace, match=message) as caught:
        read(text)
    line = str(caught.value)
    assert "trace.json" in line
    assert "\n" not in line


def test_a_wrong_type_is_named_with_its_place_in_the_file(read: Any) -> None:
    bad = {**EVENTS[1], "ts": "soon"}
    with pytest.raises(BadTrace, match=r"got `str` - at `\$\.traceEvents\[43\]\.ts`"):
        read(json.dumps({"traceEvents": [*EVENTS, bad, *EVENTS]}))


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(BadTrace, match="cannot be read"):
            read_trace(path)


BOMBS = (b"{" + b" " * 10_000_000, b'{"traceEvents": [' + b" " * 10_000_000, GOOD[:-1] + b" " * 10_000_000)


@pytest.mark.parametrize("compress", [gzip.compress, zstd.compress], ids=["gzip", "zstd"])
def test_a_bomb_is_refused_before_it_fills_memory(read: Any, compress: Any) -> None:
    for text in BOMBS:
        with pytest.raises(BadTrace, match=r"too large: .* --max-trace-gb"):
            read(compress(text), inflated_bytes=100_000)


def test_a_bomb_of_events_is_refused_by_its_ratio(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_bytes, "_ALWAYS_ALLOWED", 1_000)
    text = b'{"traceEvents": [' + (ONE + b",") * 10_000 + ONE + b"]}"
    with pytest.raises(BadTrace, match="decompresses to more than 100 times its size"):
        read(gzip.compress(text), inflation=100)
    assert read(gzip.compress(text), inflation=1100)[1].num_events == 10_001


def test_who_says_how_large_a_trace_is_knows_it() -> None:
    chosen = Limits.chosen(trace_gb=100, events=7)
    assert (chosen.inflated_bytes, chosen.events) == (100 * 10**9, 7)
    assert chosen.inflation > 10**9
    assert Limits.chosen(None, None) == Limits()


def test_memory_does_not_grow_with_what_stands_around_the_events(read: Any) -> None:
    for text in (b"{" + b" " * 2_000_000, GOOD[:-1] + b" " * 2_000_000 + b"}"):
        with pytest.raises(BadTrace, match="without a single event"):
            read(gzip.compress(text), keys_bytes=100_000)


def test_names_beyond_those_that_are_told_apart_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "_MOST_NAMES", 3)
    spans = [
        ("user_annotation", "ProfilerStep#3", 0, 99),
        *(("cpu_op", f"op{n}", 10 * n, 10 * n + 5) for n in range(6)),
    ]
    spans.append(("user_annotation", "ProfilerStep#4", 100, 120))
    events = [
        {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": end - start}
        for cat, name, start, end in spans
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = load_trace(path)
    assert [step.number for step in trace.steps] == [3, 4]
    assert sorted({kernel.name for kernel in trace.kernels}) == [
        "(name omitted: too many distinct names)",
        "op0",
        "op1",
    ]
    assert int((trace.compute.end_ns - trace.compute.start_ns).sum()) == 6 * 5000


def test_too_many_events_are_refused(read: Any) -> None:
    with pytest.raises(BadTrace, match=r"more than 30 events.* --max-events"):
        read(GOOD, events=30)


def test_an_odd_layout_is_decoded_whole_only_up_to_a_size(read: Any) -> None:
    with pytest.raises(BadTrace, match="too large to decode as a whole"):
        read(LAYOUTS["traceEvents-in-a-key"], whole_bytes=1000)


def test_without_zstd_its_traces_are_refused_in_one_line(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "backports", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    with pytest.raises(BadTrace, match=r"compressed with zstd.*pip install backports\.zstd"):
        read(LAYOUTS["zstd"])


@pytest.mark.parametrize("raw", [b'{"rank": 1e999}', b'{"rank": "\xff"}', b'{"rank": -1}', b"[1]"])
def test_odd_keys_beside_the_events_are_unknown_and_no_error(read: Any, raw: bytes) -> None:
    header, _ = read(b'{"distributedInfo": ' + raw + b', "traceEvents": [' + ONE + b"]}")
    assert header.rank is None
