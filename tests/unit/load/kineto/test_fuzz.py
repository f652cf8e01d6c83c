"""A damaged trace is read or refused; nothing else may happen."""

import gzip
import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ddpprof.errors import BadTrace
from ddpprof.load.rank import load_trace

KERNEL = {"Collective name": "allreduce", "In msg nelems": 9, "dtype": "Float", "stream": 7, "correlation": 1, "Seq": 3}
EVENTS = [
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "tid": 1, "ts": 1.5, "dur": 90.25},
    {
        "ph": "X",
        "cat": "cpu_op",
        "name": "c10d::allreduce_",
        "tid": 1,
        "ts": 2,
        "dur": 1,
        "args": {"Input Dims": [[2]]},
    },
    {"ph": "X", "cat": "cuda_runtime", "name": "launch", "tid": 1, "ts": 3, "dur": 1, "args": {"correlation": 1}},
    {"ph": "X", "cat": "kernel", "name": "ncclKernel_AllReduce", "tid": 7, "ts": 4, "dur": 1, "args": KERNEL},
]
TEXT = json.dumps({"distributedInfo": {"rank": 0, "world_size": 2}, "traceEvents": EVENTS, "host_name": "a"}).encode()
PIECE = st.one_of(
    st.binary(max_size=3),
    st.sampled_from(
        [b"{", b"}", b"[", b"]", b",", b'"', b"\\", b'"ph"', b"null", b"1e999", b"-1", b"9" * 30, b"\\ud800"]
    ),
)


@settings(max_examples=400)
@given(st.integers(0, len(TEXT)), st.integers(0, 12), PIECE, st.booleans())
def test_a_damaged_trace_is_read_or_refused(place: int, removed: int, put: bytes, compressed: bool) -> None:
    text = TEXT[:place] + put + TEXT[place + removed :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        path.write_bytes(gzip.compress(text) if compressed else text)
        try:
            load_trace(path)
        except BadTrace as error:
            assert "\n" not in str(error)  # noqa: PT017 -- most damaged traces are read, so nothing need be raised
