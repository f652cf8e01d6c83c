"""Runs on web servers, over loopback: what they are asked for, and what they answer when they fail."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import Run
from remotes import CONVNET, TRACE, WebHandler, one_line, ranges, web_server

from ddpprof.files import location


@pytest.mark.long
@pytest.mark.parametrize("answer", [None, ranges], ids=["no-ranges", "ranges"])
def test_report_from_a_web_server(
    answer: Callable[[WebHandler], bool] | None,
    ddpprof: Run,
    alone: dict[str, str],
    of_copy: Callable[[str], str],
    tmp_path: Path,
) -> None:
    here = of_copy("convnet")
    with web_server(tmp_path, answer) as address:
        for run in (f"{address}/convnet", f"{address}/convnet/"):
            done = ddpprof("report", run, "--format", "json", "--no-cache", **alone)
            assert done.stdout == here, done.stderr
        url = f"{address.replace('//', '//user:geheim@')}/convnet/{TRACE}?token=geheim"
        done = ddpprof("report", url, "--format", "json", **alone)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["job"]["name"] == TRACE
        assert "geheim" not in done.stdout + done.stderr
        shown = ddpprof("report", url, **alone)
        assert (shown.returncode, "geheim" in shown.stdout + shown.stderr) == (0, False), shown.stderr


@pytest.mark.parametrize("answer", [None, ranges], ids=["no-ranges", "ranges"])
def test_a_large_file_of_a_web_server_comes_whole(answer: Callable[[WebHandler], bool] | None, tmp_path: Path) -> None:
    content = os.urandom(1 << 20) * 20
    (tmp_path / "large").write_bytes(content)
    with web_server(tmp_path, answer) as address, location(f"{address}/large").open() as file:
        assert b"".join(iter(lambda: file.read(1_000_000), b"")) == content


@pytest.mark.long
def test_a_web_server_tells_when_a_file_was_changed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1")
    with web_server(tmp_path, None) as address:
        before = location(f"{address}/file").version()
        os.utime(tmp_path / "file", (0, 0))
        after = location(f"{address}/file").version()
    assert None not in (before, after)
    assert before != after


def test_of_several_attempts_on_a_web_server_the_last_is_shown(
    ddpprof: Run, alone: dict[str, str], tmp_path: Path
) -> None:
    """Its listing does not say how large files are."""
    shutil.copytree(CONVNET, tmp_path / "convnet")
    shutil.copytree(tmp_path / "convnet", tmp_path / "again")
    (tmp_path / "again").rename(tmp_path / "convnet" / "attempt-1")
    with web_server(tmp_path, None) as address:
        done = ddpprof("report", f"{address}/convnet", "--format", "json", **alone)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["attempts"][-1]["is_shown"]


def hang_up(handler: WebHandler) -> bool:
    """In the middle of rank 1's trace."""
    if TRACE not in handler.path:
        return False
    content = Path(handler.translate_path(handler.path)).read_bytes()
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content[: len(content) // 2])
    handler.close_connection = True
    return True


def refuse(handler: WebHandler) -> bool:
    if TRACE not in handler.path:
        return False
    handler.send_error(503)
    return True


@pytest.mark.long
@pytest.mark.parametrize(
    ("answer", "why"),
    [(hang_up, "the connection was lost ("), (refuse, "the server answered 503 Service Unavailable")],
    ids=["hangs-up", "503"],
)
def test_a_trace_that_does_not_come_is_missing_and_the_rest_is_reported(
    answer: Callable[[WebHandler], bool], why: str, ddpprof: Run, alone: dict[str, str], tmp_path: Path
) -> None:
    shutil.copytree(CONVNET, tmp_path / "convnet")
    with web_server(tmp_path, answer) as address:
        done = ddpprof("report", f"{address}/convnet", "--format", "json", **alone)
    assert done.returncode == 0, done.stderr
    (missing,) = json.loads(done.stdout)["missing"]
    assert missing.startswith(f"rank 1: {address}/convnet/{TRACE} cannot be read: {why}")


@pytest.mark.long
def test_what_is_wrong_with_a_web_server_is_said_in_one_line(
    ddpprof: Run, alone: dict[str, str], tmp_path: Path
) -> None:
    shutil.copytree(CONVNET, tmp_path / "convnet")
    with web_server(tmp_path) as address:
        assert "does not exist" in one_line(ddpprof("report", f"{address}/none", **alone))
        said = one_line(ddpprof("report", f"{address}/convnet", "--out", f"{address}/x.json", **alone))
        assert said.startswith(f"ddpprof: cannot write {address}/x.json: the server answered 501 ")
    said = one_line(ddpprof("report", f"{address}/convnet", **alone))
    assert said.startswith(f"ddpprof: {address}/convnet: the server cannot be reached (")
