"""`ddpprof top` beside a training that runs: as text, and on a terminal with its keys."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path

import pytest
from jobs import DDPPROF, Run, environment
from processes import started, wait_until

pytestmark = [pytest.mark.long, pytest.mark.e2e]

TRAIN = """
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.set_num_threads(1)
model = DDP(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4000):
    optimizer.zero_grad()
    time.sleep(0.08 if dist.get_rank() == 1 else 0.03)
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
"""
"""Rank 1 needs 50 ms longer in each step."""


def num_steps(path: Path) -> int:
    content = path.read_bytes() if path.exists() else b""
    return int(struct.unpack("<qq", content)[0]) if len(content) == 16 else 0


@pytest.fixture
def job(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A training of two ranks that has noted some steps; it goes on until the test ends."""
    (tmp_path / "train.py").write_text(TRAIN)
    command = [*DDPPROF, "trace", "--quiet", "--no-profiler", "--out", "run", "--nproc-per-node", "2", "train.py"]
    with started(*command, cwd=tmp_path) as process:
        wait_until(lambda: num_steps(tmp_path / "run" / "rank-0.last_step") > 40, "took 40 steps")
        yield process
        process.send_signal(signal.SIGTERM)  # ends the ranks, too
        process.communicate(timeout=600)


@pytest.mark.usefixtures("job")
def test_it_shows_what_a_running_job_does(ddpprof: Run) -> None:
    done = ddpprof("top", "run", "--once")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^run · 2 ranks on \S+ · step \d+ · [\d.]+ steps/s · running ", done.stdout, re.MULTILINE)
    rows = [line.split() for line in done.stdout.splitlines() if re.match(r" *[01] ", line)]
    assert [row[0] for row in rows] == ["1", "0"], "sorted by own time"
    assert all(row[-1] in ("training", "waits") for row in rows)
    assert all(int(row[1]) > 40 for row in rows)
    assert "rank 1 is the slowest: " in done.stdout
    assert "\x1b" not in done.stdout


def test_a_stopped_rank_gives_no_sign(job: subprocess.Popen[str], ddpprof: Run, tmp_path: Path) -> None:
    facts = (tmp_path / "run" / "rank-1.pulse").read_bytes()
    (pid,) = map(int, re.findall(rb'"pid":(\d+)', facts[:4096]))
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: "no update for " in ddpprof("top", "run", "--once").stdout, "said so")
        shown = ddpprof("top", "run", "--once").stdout
    finally:
        os.kill(pid, signal.SIGCONT)
    assert re.search(r"^ *1 .* no update for \d+", shown, re.MULTILINE)
    assert not re.search(r"^ *0 .* no update for \d+", shown, re.MULTILINE)


class Terminal:
    """`ddpprof top` on a terminal of 24 lines."""

    def __init__(self, folder: Path) -> None:
        self._ours, self._theirs = pty.openpty()
        ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        self.before = termios.tcgetattr(self._theirs)
        env = {**environment(), "TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            env.pop(name, None)
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), self._theirs)
        self.process = subprocess.Popen(
            [*DDPPROF, "top", "run", "--every", "0.2"], cwd=folder, env=env, start_new_session=True, **streams
        )
        self.written = b""

    def read_until(self, pattern: bytes) -> None:
        until, since = time.monotonic() + 60, len(self.written)
        while not re.search(pattern, self.written[since:]):
            assert time.monotonic() < until, (pattern, self.written)
            if select.select([self._ours], [], [], 0.1)[0]:
                self.written += os.read(self._ours, 65536)

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def end(self) -> int:
        """Wait for the end, and return the exit code; the terminal must be as it was."""
        until = time.monotonic() + 30
        while self.process.poll() is None:
            assert time.monotonic() < until, self.written
            if select.select([self._ours], [], [], 0.1)[0]:
                self.written += os.read(self._ours, 65536)
        while select.select([self._ours], [], [], 0.1)[0]:
            self.written += os.read(self._ours, 65536)
        assert termios.tcgetattr(self._theirs) == self.before
        assert self.written.rindex(b"\x1b[?1049l") > self.written.rindex(b"\x1b[?1049h"), "back on the usual screen"
        assert self.written.rindex(b"\x1b[?25h") > self.written.rindex(b"\x1b[?25l"), "with a cursor"
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@pytest.mark.usefixtures("job")
def test_keys_and_every_end_leave_the_terminal_as_it_was(tmp_path: Path) -> None:
    for ends, code in ((lambda one: one.press("q"), 0), (_ctrl_c, 130), (lambda one: one.process.terminate(), 143)):
        terminal = Terminal(tmp_path)
        try:
            terminal.read_until(rb"now by own time")
            terminal.press("r")
            terminal.read_until(rb"now by rank")
            terminal.press("p")
            terminal.read_until(rb"PAUSED")
            ends(terminal)
            assert terminal.end() == code
        finally:
            terminal.close()


def _ctrl_c(terminal: Terminal) -> None:
    os.kill(terminal.process.pid, signal.SIGINT)
