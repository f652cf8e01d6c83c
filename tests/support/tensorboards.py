"""`ddpprof tensorboard` as it serves."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from jobs import DDPPROF, environment
from shared import TRACES

from ddpprof.load.run import load_run
from ddpprof.render.json import render_json
from ddpprof.report.build import build_report

ROOT = Path(__file__).parents[2]
GLOO_2 = ROOT / "sample_traces" / "convnet-gloo-2ranks"
NCCL = TRACES / "resnet50_a100_rank0of2.json.gz"


class Server:
    """A command that serves, and what it answers."""

    def __init__(self, process: subprocess.Popen[str], said: list[str], errors: IO[bytes]) -> None:
        self.process, self.said, self._errors = process, said, errors
        self.address = next(
            line.removeprefix("TensorBoard: ").strip() for line in said if line.startswith("TensorBoard")
        )

    def get(self, route: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.address}data/{route}?{query}", timeout=60) as answer:
            return json.load(answer)

    def errors(self) -> str:
        """Return what the command has written to stderr."""
        return os.pread(self._errors.fileno(), 1 << 20, 0).decode()

    def plugin(self, view: str, run: str, worker: str = "All") -> Any:
        return self.get(f"plugin/pytorch_profiler/{view}", run=f"{run}/traces", worker=worker, span="default")


@contextmanager
def serving(folder: Path, *arguments: str | Path) -> Iterator[Server]:
    """Serve a folder; at the end stop the command by SIGTERM, if it has not ended."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [*DDPPROF, "tensorboard", *map(str, arguments), "--port", "0"],
            cwd=folder, env=environment(TMPDIR=str(folder)), text=True, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("Press Ctrl-C"):
                break
        try:
            yield Server(process, said, errors)
        finally:
            process.terminate()
            process.communicate(timeout=30)


def read(path: Path) -> tuple[Any, Any]:
    """Tables and JSON report."""
    run = load_run(path)
    return run, json.loads(render_json(build_report(run)))
