"""Mistakes, and questions about words, need little of ddpprof: what is imported decides how long they take."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from jobs import environment

pytestmark = pytest.mark.e2e

SCRIPT = """
import contextlib, io, json, os, sys
from ddpprof.cli import main
for words in json.load(sys.stdin):
    if not os.fork():  # each begins with what the first line imports
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), \\
                contextlib.suppress(SystemExit):
            main(words)
        print(json.dumps([words, [one for one in HEAVY if one in sys.modules]]), flush=True)
        os._exit(0)
    os.wait()
"""
HEAVY = ["torch", "pandas", "plotly", "ddpprof.report.build", "ddpprof.pipeline.analysis"]
LIGHT = [
    ["--help"],
    ["explain"],
    ["explain", "exposed"],
    ["explain", "nosuch"],
    ["nosuch"],
    ["train.py"],
    ["trace", "--stepz"],
    ["trace", "--nproc", "zero", "train.py"],
    ["trace", "nosuch.py"],
    ["sweep", "--vary", "bucket_cap", "train.py"],
    ["tune", "--nproc", "zero", "train.py"],
    ["overhead", "nosuch.py"],
    ["compare", "a", "b", "--fail-on", "stepp"],
    ["compare", "a", "b"],
    ["report", "nosuch"],
    ["report", ".", "--out", "x.pdf"],
    ["whatif", "nosuch"],
    ["timeline", "nosuch"],
    ["top", "nosuch"],
    ["doctor", "--only", "nosuch"],
]


def test_little_is_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"HEAVY = {HEAVY}{SCRIPT}"],
        input=json.dumps(LIGHT),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[words, []] for words in LIGHT]
