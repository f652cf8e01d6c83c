"""Questions to a server that answers as NCCL's RAS does, or does not answer."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from ras_answers import ONE_BEHIND, json_answer

from ddpprof.monitor.ras import ADDRESS_VARIABLE, PATIENCE_S, address_of, ask, behind, read_answer

Answer = Callable[[socket.socket, str], None]


@contextmanager
def server(answer: Answer) -> Iterator[str]:
    """Start a server that calls `answer` with the first connection and what it was asked. Yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with listening.accept()[0] as client:
                asked = b""
                while not asked.endswith(b"VERBOSE STATUS\n"):
                    asked += client.recv(4096)
                answer(client, asked.decode())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"localhost:{listening.getsockname()[1]}"
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize("said", [json_answer(101, 100, 101, 101), ONE_BEHIND], ids=["json", "text"])
def test_an_answer_in_parts(said: str) -> None:
    requests = []

    def answer(client: socket.socket, asked: str) -> None:
        requests.append(asked.splitlines())
        for begin in range(0, len(said), 50):
            client.sendall(said[begin : begin + 50].encode())

    with server(answer) as address:
        found = read_answer(ask(address) or "", 4)
    assert found is not None
    assert behind(found) == 1
    assert requests == [["CLIENT PROTOCOL 2", "TIMEOUT 1", "SET FORMAT json", "VERBOSE STATUS"]]


def test_a_server_that_never_answers() -> None:
    gone = threading.Event()
    with server(lambda _client, _asked: gone.wait(30) and None) as address:
        began = time.monotonic()
        assert ask(address) is None
        took_s = time.monotonic() - began
        gone.set()
    assert took_s == pytest.approx(PATIENCE_S, abs=0.5)


def test_a_server_that_answers_for_ever() -> None:
    def answer(client: socket.socket, _asked: str) -> None:
        try:
            while True:
                client.sendall(b"Rank\n")
                time.sleep(0.05)
        except OSError:
            pass

    with server(answer) as address:
        began = time.monotonic()
        assert ask(address, 0.5) is None
        assert time.monotonic() - began < PATIENCE_S


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    assert ask(f"127.0.0.1:{port}") is None


def test_the_address_is_that_of_the_rank() -> None:
    sleep = [sys.executable, "-c", "input()"]
    with subprocess.Popen(sleep, env={ADDRESS_VARIABLE: "127.0.0.1:7777"}, stdin=subprocess.PIPE) as process:
        time.sleep(0.2)
        assert address_of(process.pid) == "127.0.0.1:7777"
        process.kill()
