"""The floor: one process that inflates and decodes a trace in typed batches of 1 MB and keeps nothing."""

import json
import sys
import time

import msgspec
from isal import igzip


class Arguments(msgspec.Struct, gc=False):
    stream: int | None = None
    correlation: int | None = None
    op: int | None = msgspec.field(default=None, name="External id")
    collective: str | None = msgspec.field(default=None, name="Collective name")


class Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str = 0
    tid: int | str = 0
    args: Arguments | None = None


def decode(path: str) -> int:
    decoder = msgspec.json.Decoder(list[Event])
    num_events = 0
    with igzip.open(path, "rb") as file:
        text = file.read(1_000_000)
        text = text[text.index(b"[", text.index(b'"traceEvents"')) + 1 :]
        while chunk := file.read(1_000_000):
            cut = text.rfind(b"{", 0, text.rfind(b'"ph"'))
            num_events += len(decoder.decode(b"[" + text[:cut] + b"{}]"))
            text = text[cut:] + chunk
    return num_events


if __name__ == "__main__":
    began = time.perf_counter()
    num_events = decode(sys.argv[1])
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "num_events": num_events}))
