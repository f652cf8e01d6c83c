"""`ddpprof tensorboard`: convert runs for TensorBoard, and serve them to this machine only."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from ddpprof import rundir
from ddpprof.child_processes import guarded, helper_environment, python_command, start
from ddpprof.cli.reading import add_reading_options, analysed_run
from ddpprof.cli.saying import say
from ddpprof.errors import DdpprofError, how_to_install
from ddpprof.files import Location, RemotePath, local, location
from ddpprof.own_files import make_folder, make_named_folder, scratch_folder, temporary_folder
from ddpprof.signals import handled_signals

if TYPE_CHECKING:
    from ddpprof.pipeline.analysis import TracedRank
    from ddpprof.report import Report
    from ddpprof.report.topics import RankSummary
    from ddpprof.topics.steps.timeline import Drawing

_NOT_FOR_TRACES = re.compile(r"[^A-Za-z0-9-]+")
_NOT_IN_NAMES = re.compile(r"[^\w .+-]+")
_LONGEST_NAME = 100
_ON_PLUGIN = (
    "The PYTORCH_PROFILER page loads Google Charts from www.gstatic.com and stays empty without internet access. All "
    "other pages work offline."
)


def add_tensorboard_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run_tensorboard)
    parser.add_argument("runs", nargs="+", type=location, metavar="RUN", help="runs or traces to show side by side")
    parser.add_argument("--port", type=_port, metavar="N", help="default: 6006, or the next free port")
    parser.add_argument(
        "--logdir",
        type=local,
        metavar="DIR",
        help="folder for TensorBoard's files, which are kept (default: RUN/tensorboard, or a temporary folder if "
        "that is not writable)",
    )
    parser.add_argument("--no-plugin", action="store_true", help="do not copy the traces for torch-tb-profiler")
    add_reading_options(parser)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port. Give 0 to 65535; 0 selects a free port")
    return int(text)


def run_tensorboard(options: argparse.Namespace) -> int:
    with _ended_like_ctrl_c() as ended_by, scratch_folder(for_sockets=True) as scratch:
        try:
            logdir, folders = _write(options, scratch / "runs")
        except KeyboardInterrupt as interrupt:
            if interrupt.args:
                say(f"ddpprof: {interrupt}", file=sys.stderr)
            return 128 + (ended_by or [signal.SIGINT])[0]
        try:
            _serve(logdir, options.port, folders, scratch)
        except KeyboardInterrupt:
            say(flush=True)  # the terminal has written ^C
    return 128 + ended_by[0] if ended_by else 0


@contextmanager
def _ended_like_ctrl_c() -> Iterator[list[int]]:
    """Handle SIGTERM and SIGHUP like Ctrl-C, unless they are ignored (nohup). Yield a list of the signals received."""
    came: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt

    ends = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    with handled_signals(ends, end):
        yield came


def _write(options: argparse.Namespace, scratch: Path) -> tuple[Path, dict[str, Path]]:
    """Write the runs for TensorBoard. Return the log directory and, by name, the folders of runs with plugin traces."""
    with_plugin = not options.no_plugin and _has_plugin()
    names = distinct_names(options.runs)
    logdir: Path = options.logdir or scratch
    with_traces = {}
    for path, name in zip(options.runs, names, strict=True):
        folder = None if options.logdir is not None else _write_beside(path, with_plugin, options)
        if folder is None:
            folder = logdir / name
            _write_to(folder, path, with_plugin, options)
        elif len(options.runs) == 1:
            logdir, name = folder, "."
        else:
            scratch.mkdir(exist_ok=True)
            (scratch / name).symlink_to(folder.absolute(), target_is_directory=True)
        if (folder / rundir.TENSORBOARD_TRACES).is_dir():
            with_traces[name] = folder
    return logdir, with_traces


def _has_plugin() -> bool:
    if importlib.util.find_spec("torch_tb_profiler") is not None:
        return True
    say(
        "ddpprof: torch-tb-profiler is not installed, so its page is left out. "
        f"{how_to_install('torch-tb-profiler', shlex.quote('pandas<4'))}",
        file=sys.stderr,
    )
    return False


def distinct_names(paths: Sequence[Location]) -> list[str]:
    """Return a unique name for each path, made of as few of its last components as possible."""
    parts = [path.resolve().parts[1:] or ("root",) for path in paths]
    names = []
    for number, mine in enumerate(parts):
        others = {other for index, other in enumerate(parts) if index != number}
        length = next((n for n in range(1, len(mine)) if all(o[-n:] != mine[-n:] for o in others)), len(mine))
        name = "-".join(mine[-length:]).removesuffix(".gz").removesuffix(".json")
        names.append(_NOT_IN_NAMES.sub("-", name)[-_LONGEST_NAME:].strip(". ") or "run")  # must not be ".."
    if len(set(names)) == len(names):
        return names
    return [f"{name}-{number}" for number, name in enumerate(names)]


def _write_beside(path: Location, with_plugin: bool, options: argparse.Namespace) -> Path | None:
    """Write the log directory into the run. Return ``None`` if `path` is remote, read-only or not a ddpprof run."""
    if isinstance(path, RemotePath) or not path.is_dir() or not rundir.is_run(path):
        return None
    folder = path / rundir.TENSORBOARD_DIRECTORY
    try:
        make_folder(folder)
        with temporary_folder(folder, rundir.TENSORBOARD_DIRECTORY):  # it may exist and belong to another user
            pass
    except OSError:
        return None
    _write_to(folder, path, with_plugin, options)
    return folder


def _write_to(folder: Path, path: Location, with_plugin: bool, options: argparse.Namespace) -> None:
    """Write the log directory of one run. Raises `DdpprofError`."""
    with analysed_run(path, options) as analysis:
        for_plugin = list(analysis.traced_ranks()) if with_plugin else []
        try:
            missing = write_log_directory(folder, analysis.report, analysis.drawings(), for_plugin)
        except OSError as error:
            raise DdpprofError(
                f"cannot write {folder}: {error.strerror}. Choose another folder with --logdir DIR"
            ) from error
    for text in missing:
        say(f"{path}, PYTORCH_PROFILER: {text}")


def write_log_directory(
    directory: Path, report: Report, drawings: Iterable[Drawing], for_plugin: Sequence[TracedRank] = ()
) -> tuple[str, ...]:
    """Write the log directory. Return messages about data that the profiler plugin cannot show.

    `for_plugin`: the ranks with traces that the plugin shows. Raises ``OSError``, and `DdpprofError` if TensorBoard is
    not installed.
    """
    from ddpprof.render.tensorboard import write_native

    with _replaced(directory) as part:
        write_native(part, report, drawings)
        return _write_plugin_traces(part / rundir.TENSORBOARD_TRACES, for_plugin)


@contextmanager
def _replaced(directory: Path) -> Iterator[Path]:
    """Yield a folder. At the end, its content replaces the content of `directory`.

    Directories are moved as a whole, because the profiler plugin reads a directory as soon as it exists.
    """
    make_named_folder(directory)
    directory = directory.resolve()  # keep a symbolic link, and replace the content of its target
    with temporary_folder(directory, rundir.TENSORBOARD_DIRECTORY) as part:
        yield part
        rundir.remove_tensorboard(directory)
        for made in part.iterdir():
            _move(made, directory / made.name)


def _move(made: Path, target: Path) -> None:
    """Move the directory `made` to `target`. If the target exists, move the files in the directory into it."""
    if target.is_dir() and not target.is_symlink():
        for file in made.iterdir():
            file.rename(target / file.name)
    else:
        made.rename(target)


def _write_plugin_traces(directory: Path, ranks: Sequence[TracedRank]) -> tuple[str, ...]:
    """Write copies of the ranks' traces for the plugin, one per window that the profiler recorded."""
    from ddpprof.load.plugin_trace import write_plugin_trace
    from ddpprof.render.tensorboard_plugin import plugin_views

    if not ranks:
        return ()
    make_folder(directory)
    views = plugin_views((rank.summary, rank.about) for rank in ranks)
    are_several = any(len(rank.files) > 1 for rank in ranks)
    for rank in ranks:
        for number, file in enumerate(rank.files, 1):
            target = directory / _plugin_file(rank.summary, number if are_several else None)
            write_plugin_trace(file, target, views.of_rank[rank.about.rank])
    return views.missing


def _plugin_file(rank: RankSummary, window: int | None) -> str:
    """Return a file name from which the plugin reads the host, the rank and, if it is not ``None``, the window."""
    host = _NOT_FOR_TRACES.sub("-", rank.host or "")[:60].strip("-") or "host"
    number = "" if window is None else f".{window}"
    return f"{host}_{rank.rank:04}{number}.pt.trace.json.gz"


def _serve(logdir: Path, port: int | None, folders: dict[str, Path], scratch: Path) -> None:

    with Server(logdir, port, scratch) as server:
        address = server.address()
        say(f"TensorBoard: {address}", flush=True)
        plugin_runs = {str(Path(name, rundir.TENSORBOARD_TRACES)): folder for name, folder in folders.items()}
        if plugin_runs:
            say(_ON_PLUGIN, flush=True)
        if plugin_runs and not server.wait_for_plugin(plugin_runs):
            why = "".join(f" TensorBoard printed: {line}" for line in server.failures()[-1:])
            say(
                f"ddpprof: the profiler plugin has not read all traces yet; reload its page later.{why}",
                file=sys.stderr,
            )
        say("Press Ctrl-C to stop it.", flush=True)
        server.wait()


_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/")
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LAST_WORDS = 3
_OFTEN_S = 0.2
_GRACE_S = 5.0
"""seconds to wait for TensorBoard's last output after it has ended"""
_PATIENCE_S = 60.0
"""ddpprof stops waiting for the plugin after this many seconds without progress; the plugin looks for new directories
every 10 s
"""


class Server:
    """Context manager for a TensorBoard server. All its processes are ended on exit."""

    def __init__(self, logdir: Path, port: int | None, temporary: Path) -> None:
        """Start TensorBoard. `temporary`: folder for temporary files that TensorBoard does not delete."""
        command = python_command(["-m", __name__, f"--logdir={logdir}", "--host", "127.0.0.1"])
        self._process = start(
            guarded(command if port is None else [*command, "--port", str(port)]),
            {**helper_environment(), "TMPDIR": str(temporary)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C goes to this process only
        )
        self._said: deque[str] = deque(maxlen=200)
        self._address: str | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        # Requests to this machine must not go through a proxy.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def __enter__(self) -> Server:
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with handled_signals(_ENDS, signal.SIG_IGN):  # a second signal must not interrupt this
            self._process.terminate()  # ends the guard, which then ends all other processes
            self._process.wait()
            self._reader.join(_GRACE_S)
            assert self._process.stderr is not None
            self._process.stderr.close()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line.strip())
            if self._address is None and (match := _ADDRESS.search(line)):
                self._address = match[0]

    def address(self) -> str:
        """Wait until TensorBoard responds, and return its address.

        Raises `DdpprofError` if TensorBoard exits instead.
        """
        while self._address is None or self._get("data/environment") is None:
            self._pause()
        return self._address

    def wait_for_plugin(self, runs: Iterable[str]) -> bool:
        """Wait until the profiler plugin has read these runs. Return False if it does not read all of them."""
        wanted, idle_since = set(runs), time.monotonic()
        while True:
            answer = self._get("data/plugin/pytorch_profiler/runs")
            is_loading = answer is not None and answer["loading"]
            if answer is not None and not is_loading and wanted <= set(answer["runs"]):
                return True
            if is_loading:
                idle_since = time.monotonic()
            elif time.monotonic() > idle_since + _PATIENCE_S:
                return False
            self._pause()

    def failures(self) -> list[str]:
        """Return the lines in which TensorBoard or the plugin has reported a failure."""
        return [line for line in self._said if "Failed to " in line]

    def wait(self) -> None:
        """Wait until TensorBoard ends. Raises `DdpprofError` if it ends unexpectedly."""
        while True:
            self._pause()

    def _pause(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_OFTEN_S)
            self._reader.join(_OFTEN_S)
            said = " / ".join([line for line in self._said if line][-_LAST_WORDS:])
            raise DdpprofError(f"TensorBoard ended unexpectedly with exit code {code}: {said or 'it printed nothing'}")

    def _get(self, route: str) -> Any:
        """Request `route`, and return its JSON response, or ``None`` if there is no response."""
        try:
            with self._opener.open(f"{self._address}{route}", timeout=60) as response:
                return json.load(response)
        except (OSError, HTTPException, ValueError):  # URLError is an OSError
            return None


def _run_tensorboard() -> None:
    """Run TensorBoard in this process, as the main program of this module."""
    from absl import app
    from tensorboard import default, main_lib, program

    from ddpprof.monitor.metrics import for_this_machine

    def served(wsgi_app: Any, flags: Any) -> Any:
        return program.WerkzeugServer(for_this_machine(wsgi_app), flags)

    main_lib.global_init()
    board = program.TensorBoard(default.get_plugins(), server_class=program.with_port_scanning(served))
    app.run(board.main, flags_parser=board.configure)


if __name__ == "__main__":
    _run_tensorboard()
