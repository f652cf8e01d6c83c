"""A socket in the run directory on which this job takes requests of its own user, and of nobody else."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from ddpprof import own_files
from ddpprof.model.capture import CaptureAnswer, CaptureRequest
from ddpprof.rundir import CONTROL_SOCKET

_MOST_BYTES = 4096
_PATIENCE_S = 5.0
"""seconds for a client to send its request"""
_CREDENTIALS = struct.Struct("3i")


class Control:
    """A thread that listens until it is closed. One request is answered at a time, and others are refused meanwhile."""

    def __init__(self, directory: Path, handle: Callable[[CaptureRequest], Iterator[CaptureAnswer]]) -> None:
        """Begin to listen. `handle` yields the answers to a request. Raises ``OSError``."""
        self._handle = handle
        self._answering = threading.Lock()
        self._path = directory / CONTROL_SOCKET
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        own_files.remove_file(self._path)
        os.fchmod(self._socket.fileno(), 0o600)  # before it has a path, so that it never has another mode there
        with own_files.short_path(self._path) as path:
            self._socket.bind(path)
        self._socket.listen(4)
        self._thread = threading.Thread(target=self._serve, name="ddpprof-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        own_files.remove_file(self._path)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:  # closed
                return
            try:
                threading.Thread(target=self._answer, args=(client,), name="ddpprof-request", daemon=True).start()
            except RuntimeError:  # the interpreter exits, and from Python 3.12 on starts no threads any more
                client.close()

    def _answer(self, client: socket.socket) -> None:
        with client, suppress(OSError):  # the client has gone
            client.settimeout(_PATIENCE_S)
            for answer in self._answers(client):
                client.sendall(msgspec.json.encode(answer) + b"\n")

    def _answers(self, client: socket.socket) -> Iterator[CaptureAnswer]:
        _, user, _ = _CREDENTIALS.unpack(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        with client.makefile("rb") as lines:
            request = lines.readline(_MOST_BYTES)  # before any answer, which an unread request would discard
        if user != os.geteuid():
            yield CaptureAnswer(refused="the job belongs to another user.")
            return
        try:
            asked = msgspec.json.decode(request, type=CaptureRequest)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            yield CaptureAnswer(refused=f"the job does not understand the request: {error}.")
            return
        if not self._answering.acquire(blocking=False):
            yield CaptureAnswer(
                refused="the job is answering another request, or waits for a slow-down that it asked for."
            )
            return
        try:
            yield from self._handle(asked)
        finally:
            self._answering.release()
