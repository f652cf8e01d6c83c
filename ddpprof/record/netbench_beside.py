"""What do collectives take of a computation beside them? On CPU: the backend's threads, and the network, need cores.

A rank multiplies matrices, first alone and then while a few collectives are always under way; all ranks at once.

    taken    = (time beside - products done beside × time of one alone) / number of collectives
    lasted   = time beside / number of collectives
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

_ROUNDS = 5
_UNDER_WAY = 4
"""more than a backend works on at once, as in a backward pass"""
_FEWEST, _MOST = 2, 64
"""collectives of a round"""
_LEAST_NS = 100_000_000
"""of computation alone in a round"""
_ROWS, _WIDTH = 128, 512
"""of the matrices: one product takes some milliseconds on one core"""

_Start = Callable[[], Any]


def measure_beside(
    start: _Start, alone_ns: float, may_take_ns: float, from_all: Callable[[Any], list[Any]]
) -> tuple[list[int], list[int]]:
    """Per round, what one collective takes, on the rank that loses most, and how long it lasts.

    `start` gives the work of a collective that takes `alone_ns`; `from_all` gathers what each rank gives, in order.
    """
    number = int(min(max(may_take_ns / _ROUNDS / alone_ns, _FEWEST), _MOST))
    rounds = [from_all(_round(start, number, from_all)) for _ in range(_ROUNDS)]
    taken = [max(0, *(taken for taken, _ in ranks)) for ranks in rounds]
    return taken, [max(lasted for _, lasted in ranks) for ranks in rounds]


def _round(start: _Start, number: int, from_all: Callable[[Any], list[Any]]) -> tuple[int, int]:
    """What was taken of this rank, and how long it lasted, per collective."""
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
    """Those that have ended are waited for, so that their errors are raised."""
    for work in works:
        if work.is_completed():
            work.wait()
    return [work for work in works if not work.is_completed()]
