"""How ranks agree on a capture, and who may ask for one."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch.distributed as dist

from ddpprof.cli.capture import ask
from ddpprof.errors import DdpprofError
from ddpprof.model.json_files import CaptureAnswer, CaptureRequest
from ddpprof.own_files import short_path
from ddpprof.record import captures
from ddpprof.record.captures import Board, Captures, Control, FolderBoard, Neighbours, StoreBoard, is_slower
from ddpprof.record.job import JobRank
from ddpprof.record.settings import Settings
from ddpprof.rundir import CONTROL_SOCKET

REQUEST = CaptureRequest(steps=2)


class Over:
    """Stands for the window of a capture that is over."""

    def close_in_background(self) -> None:
        pass


def folder_board(directory: Path, rank: int) -> Board:
    return FolderBoard(directory, rank)


@pytest.fixture
def store_board() -> Callable[[Path, int], Board]:
    store = dist.HashStore()
    return lambda _directory, rank: StoreBoard(store, rank)


@pytest.fixture(params=["folder", "store"])
def board(request: pytest.FixtureRequest, store_board: Callable[[Path, int], Board]) -> Callable[[Path, int], Board]:
    return folder_board if request.param == "folder" else store_board


def test_a_board_keeps_notes_and_lists(board: Callable[[Path, int], Board], tmp_path: Path) -> None:
    zero, one = board(tmp_path, 0), board(tmp_path, 1)
    assert (zero.read("start-1"), zero.num_signed("ready-1")) == (None, 0)
    one.post("start-1", "7")
    zero.sign("ready-1")
    zero.sign("ready-1")  # as after an error of the board
    one.sign("ready-1")
    one.sign("ready-10")
    assert (zero.read("start-1"), zero.num_signed("ready-1")) == ("7", 2)


@pytest.fixture
def ranks(board: Callable[[Path, int], Board], tmp_path: Path) -> Iterator[list[Captures]]:
    """Two ranks that have found their board."""
    made = [Captures(job_of(tmp_path, rank, board(tmp_path, rank)), Settings(str(tmp_path))) for rank in (0, 1)]
    for one in made:
        one.round()
    yield made
    for one in made:
        one.close()


@pytest.fixture(autouse=True)
def known_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ranks find the board that stands where their store would be."""
    monkeypatch.setattr(captures, "Neighbours", lambda _, store, *__: SimpleNamespace(board=lambda: store))


def job_of(directory: Path, rank: int, board: Board) -> JobRank:
    """Return one of two ranks, which have found their board."""
    job = JobRank(Settings(str(directory)))
    job.rank, job.world_size, job.leads = rank, 2, rank == 0
    fakes: Any = job
    fakes.files = SimpleNamespace(directory=directory)
    fakes._agreement = SimpleNamespace(store=board)
    fakes.prepare_capture = lambda *_: None
    return job


def asked(ranks: list[Captures], number: int = 1) -> None:
    found = ranks[0]._board
    assert found is not None
    found.post(f"request-{number}", msgspec.json.encode(REQUEST).decode())


def test_all_begin_with_the_step_after_the_one_in_which_all_were_ready(ranks: list[Captures]) -> None:
    asked(ranks)
    zero, one = ranks
    one.round()
    assert one.request is None, "rank 0 has not made the folder"
    zero.round()
    assert not zero.begins_with(10), "rank 1 is not ready"
    one.round()
    assert one.request == REQUEST
    assert not one.begins_with(11)
    assert not zero.begins_with(11)
    assert one.begins_with(12)
    assert zero.begins_with(12)


def test_a_rank_that_is_a_step_behind_begins_with_the_same_step(ranks: list[Captures]) -> None:
    asked(ranks)
    zero, one = ranks
    for rank in (zero, one):
        rank.round()
    assert not zero.begins_with(20)
    assert [one.begins_with(step) for step in (20, 21)] == [False, True]
    assert zero.begins_with(21)


def test_there_may_be_any_number(ranks: list[Captures]) -> None:
    for number in (1, 2, 3):
        asked(ranks, number)
        for rank in ranks:
            rank.round()
        for rank in ranks:
            rank.begins_with(10 * number)
        for rank in ranks:
            assert rank.begins_with(10 * number + 1)
            assert rank.folder.name == f"capture-{number}"
            rank.is_over(Over())  # type: ignore[arg-type]
            rank.round()
            assert rank.request is None


def test_nobody_begins_if_a_rank_does_not_answer(ranks: list[Captures], monkeypatch: pytest.MonkeyPatch) -> None:
    asked(ranks)
    zero, one = ranks
    zero.round()
    monkeypatch.setattr(captures, "_ANSWER_S", -1.0)
    assert not zero.begins_with(10)
    assert not zero.begins_with(11)
    assert zero.request is None
    one.round()
    assert not one.begins_with(12)
    assert one.request is None


def test_a_request_that_waited_for_a_slow_down_comes_after_captures_of_that_time(
    ranks: list[Captures], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ranks[0]

    def another_is_captured(_factor: float) -> Iterator[CaptureAnswer]:
        first._number += 1
        yield CaptureAnswer(armed=True)

    monkeypatch.setattr(first, "_await_slow_down", another_is_captured)
    assert first._board is not None
    first._board.post("start-2", "5")
    answers = first._handle(CaptureRequest(steps=2, slower_than=2.0))
    assert [next(answers).armed for _ in range(2)] == [True, True]
    assert next(answers) == CaptureAnswer(number=2, first_step=5)
    assert first._board.read("request-2") is not None


MS = 1_000_000


@pytest.mark.parametrize(
    ("lengths_ms", "slower"),
    [
        pytest.param([300] * 50 + [400] * 4, True, id="most-of-five-long-steps"),
        pytest.param([300] * 50 + [400] * 2, False, id="two-of-five-long-steps"),
        pytest.param([5] * 1000 + [9] * 5, False, id="five-short-steps-are-no-second"),
        pytest.param([5] * 1000 + [9] * 80, True, id="most-of-a-second"),
        pytest.param([5] * 100 + [9] * 80, False, id="the-job-has-only-begun"),
        pytest.param([300] * 4, False, id="too-few"),
        pytest.param([], False, id="none"),
    ],
)
def test_a_slow_down_shows_in_the_last_steps_of_a_second(lengths_ms: list[int], slower: bool) -> None:
    assert is_slower(np.array(lengths_ms, np.int64) * MS, 1.2) is slower


def test_neighbours_see_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = dist.HashStore(), tmp_path / "other"
    other.mkdir()
    zero = Neighbours(tmp_path, store, 0, 2)
    assert zero.board() is None
    apart = Neighbours(other, store, 1, 2)
    monkeypatch.setattr(captures.time, "monotonic", lambda: 1e12)
    assert [type(one.board()) for one in (zero, apart)] == [StoreBoard, StoreBoard]
    store = dist.HashStore()
    together = [Neighbours(tmp_path, store, rank, 2) for rank in range(2)]
    assert [type(one.board()) for one in together] == [FolderBoard, FolderBoard]


@pytest.fixture
def control(tmp_path: Path) -> Iterator[list[CaptureRequest]]:
    """A job that answers every request, in a folder whose path is too long for a socket."""
    got: list[CaptureRequest] = []
    directory = tmp_path / ("long" * 30)
    directory.mkdir()

    def handle(request: CaptureRequest) -> Iterator[CaptureAnswer]:
        got.append(request)
        yield CaptureAnswer(number=1, first_step=7)
        yield CaptureAnswer(number=1, first_step=7, folder="capture-1")

    listening = Control(directory, handle)
    yield got
    listening.close()
    assert not (directory / CONTROL_SOCKET).exists()


def folder_of(tmp_path: Path) -> Path:
    return tmp_path / ("long" * 30)


def test_a_request_is_answered(control: list[CaptureRequest], tmp_path: Path) -> None:
    for _ in range(2):
        answers = list(ask(folder_of(tmp_path), REQUEST))
        assert [answer.folder for answer in answers] == [None, "capture-1"]
    assert control == [REQUEST, REQUEST]


def test_other_threads_create_files_as_ever_while_the_job_begins_to_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "umask", lambda _mask: pytest.fail("the mask belongs to the whole process"))
    Control(tmp_path, lambda _request: iter(())).close()


def test_only_the_user_of_the_job_may_ask(
    control: list[CaptureRequest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder_of(tmp_path) / CONTROL_SOCKET
    assert path.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr("ddpprof.record.captures.os.geteuid", lambda: 12345)
    with pytest.raises(DdpprofError, match="the job belongs to another user"):
        list(ask(folder_of(tmp_path), REQUEST))
    assert control == []


@pytest.mark.parametrize("sent", [b"nonsense\n", b'{"steps": 0}\n', b'{"steps": 5000}\n', b"\xff\n", b"x" * 9000])
def test_what_is_no_request_is_refused_and_the_next_one_answered(
    sent: bytes, control: list[CaptureRequest], tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as client, short_path(folder_of(tmp_path) / CONTROL_SOCKET) as path:
        client.connect(path)
        client.sendall(sent)
        answer = msgspec.json.decode(client.makefile("rb").readline(), type=CaptureAnswer)
    assert answer.refused is not None
    assert answer.refused.startswith("the request is not valid")
    assert len(list(ask(folder_of(tmp_path), REQUEST))) == 2
    assert control == [REQUEST]


def test_a_client_that_says_nothing_does_not_keep_others_from_asking(
    control: list[CaptureRequest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpprof.record.captures._REQUEST_S", 600.0)
    with socket.socket(socket.AF_UNIX) as silent, short_path(folder_of(tmp_path) / CONTROL_SOCKET) as path:
        silent.connect(path)
        assert len(list(ask(folder_of(tmp_path), REQUEST))) == 2


def test_others_are_refused_while_a_request_is_answered(tmp_path: Path) -> None:
    goes_on = threading.Event()

    def handle(_request: CaptureRequest) -> Iterator[CaptureAnswer]:
        yield CaptureAnswer(armed=True)
        goes_on.wait(10)
        yield CaptureAnswer(folder="capture-1")

    listening = Control(tmp_path, handle)
    first = ask(tmp_path, REQUEST)
    assert next(first).armed
    with pytest.raises(DdpprofError, match="handling another request"):
        list(ask(tmp_path, REQUEST))
    goes_on.set()
    assert [answer.folder for answer in first] == ["capture-1"]
    listening.close()


def test_a_job_that_is_gone_takes_no_requests(tmp_path: Path) -> None:
    (tmp_path / CONTROL_SOCKET).touch()
    with pytest.raises(DdpprofError, match="no job accepts requests"):
        list(ask(tmp_path, REQUEST))


@contextmanager
def stranger(directory: Path, answers: Callable[[socket.socket], object]) -> Iterator[None]:
    """Something else that listens where a job would, and lets `answers` talk to who asks."""
    with socket.socket(socket.AF_UNIX) as listening, short_path(directory / CONTROL_SOCKET) as path:
        listening.bind(path)
        listening.listen()

        def talk() -> None:
            with suppress(OSError), listening.accept()[0] as client:
                client.recv(4096)
                answers(client)

        thread = threading.Thread(target=talk, daemon=True)
        thread.start()
        yield
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    "sent", [b"nonsense\n", b"\xff\n", b"[" * 10_000 + b"\n", b'{"number": "x"}\n', b"null\n", b"{}{}\n"]
)
def test_an_answer_that_is_none_is_one_error(sent: bytes, tmp_path: Path) -> None:
    with stranger(tmp_path, lambda client: client.sendall(sent)), pytest.raises(DdpprofError, match="cannot read"):
        list(ask(tmp_path, REQUEST))


def test_an_answer_without_end_is_one_error(tmp_path: Path) -> None:
    def without_end(client: socket.socket) -> None:
        while True:
            client.sendall(b"x" * 65_536)

    with stranger(tmp_path, without_end), pytest.raises(DdpprofError, match="exceeds the size limit"):
        list(ask(tmp_path, REQUEST))


def test_silence_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpprof.cli.capture.FIRST_ANSWER_S", 0.2)
    over = threading.Event()
    with stranger(tmp_path, lambda _client: over.wait(60)):
        with pytest.raises(DdpprofError, match=r"has not answered for 0\.2 s"):
            list(ask(tmp_path, REQUEST))
        over.set()


def test_silence_after_an_answer_lasts_as_long_as_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpprof.cli.capture.LATER_ANSWERS_S", 0.05)
    looks = iter([False, False, True])
    monkeypatch.setattr("ddpprof.cli.capture._is_over", lambda _directory: next(looks))
    over = threading.Event()

    def one_answer(client: socket.socket) -> None:
        client.sendall(b'{"armed": true}\n')
        over.wait(60)

    with stranger(tmp_path, one_answer):
        assert list(ask(tmp_path, REQUEST)) == [CaptureAnswer(armed=True)]
        over.set()


def test_answers_end_if_the_job_dies_before_it_has_read_the_request(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening, short_path(tmp_path / CONTROL_SOCKET) as path:
        listening.bind(path)
        listening.listen()

        def die() -> None:
            job, _ = listening.accept()
            job.recv(1, socket.MSG_PEEK)
            job.close()

        dies = threading.Thread(target=die)
        dies.start()
        assert list(ask(tmp_path, REQUEST)) == []
        dies.join()


def test_the_thread_that_listens_ends(tmp_path: Path) -> None:
    def handle(_request: CaptureRequest) -> Iterator[CaptureAnswer]:
        yield from ()

    listening: Any = Control(tmp_path, handle)
    listening.close()
    listening._thread.join(5)
    assert not listening._thread.is_alive()
