"""How much of a concurrent computation do collectives cost? On CPU, the backend's threads and the network need cores.

Every rank multiplies matrices, first alone, and then while a few collectives are always in flight.

    taken    = (time with collectives - products in that time × time of one alone) / number of collectives
    lasted   = time with collectives / number of collectives
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

_ROUNDS = 5
_UNDER_WAY = 4
"""more than a backend handles at once, as in a backward pass"""
_FEWEST, _MOST = 2, 64
"""number of collectives in a round"""
_LEAST_NS = 100_000_000
"""least computation without collectives in a round"""
_ROWS, _WIDTH = 128, 512
"""size of the matrices, whose product takes some milliseconds on one core"""

Start = Callable[[], Any]
"""function that starts a collective, and returns its work"""


def measure_topics(
    start: Start, alone_ns: float, may_take_ns: float, from_all: Callable[[Any], list[Any]]
) -> tuple[list[int], list[int]]:
    """Return, per round, the cost of a collective on the rank that loses most, and how long it lasts, ns.

    `start` starts a collective that takes `alone_ns`; `from_all` gathers each rank's value, in order.
    """
    number = int(min(max(may_take_ns / _ROUNDS / alone_ns, _FEWEST), _MOST))
    rounds = [from_all(_round(start, number, from_all)) for _ in range(_ROUNDS)]
    taken = [max(0, *(taken for taken, _ in ranks)) for ranks in rounds]
    return taken, [max(lasted for _, lasted in ranks) for ranks in rounds]


def _round(start: Start, number: int, from_all: Callable[[Any], list[Any]]) -> tuple[int, int]:
    """Return the computing time that a collective cost this rank, and how long it lasted, ns."""
    rows, matrix = torch.randn(_ROWS, _WIDTH), torch.randn(_WIDTH, _WIDTH)
    from_all(None)
    begin_ns, products = time.perf_counter_ns(), 0
    while (passed_ns := time.perf_counter_ns() - begin_ns) < _LEAST_NS:
        torch.mm(rows, matrix)
        products += 1
    product_ns = passed_ns / products
    from_all(None)
    begin_ns, products, left = time.perf_counter_ns(), 0, number
    works: list[Any] = []
    while left or works:
        works = _under_way(works)
        while left and len(works) < _UNDER_WAY:
            works.append(start())
            left -= 1
        torch.mm(rows, matrix)
        products += 1
    passed_ns = time.perf_counter_ns() - begin_ns
    return round((passed_ns - products * product_ns) / number), passed_ns // number


def _under_way(works: Sequence[Any]) -> list[Any]:
    """Return the unfinished works, after waiting for the others so that their errors are raised."""
    for work in works:
        if work.is_completed():
            work.wait()
    return [work for work in works if not work.is_completed()]
