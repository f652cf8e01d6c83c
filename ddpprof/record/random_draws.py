"""Does a dataset draw random numbers in the workers of its DataLoader? Its code tells, as far as it is Python.

The workers of each pass get their seeds from one number, which the loader draws from its generator. Ranks whose loaders
draw the same number augment their samples alike, unless a ``worker_init_fn`` adds the rank to the seed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch.utils.data import DataLoader

_DRAWING = re.compile(
    r"rand(?:n|int|perm|range)?(?:_like)?|random(?:_sample|_)?|uniform_?|(?:standard_)?normal_?|bernoulli_?|"
    r"multinomial|choices?|shuffle|permutation|beta|dropout"
)
"""names of functions that draw: those of torch, NumPy and Python"""
_OWN_GENERATOR = re.compile(r"manual_seed|seed|default_rng|RandomState|Random|Generator|fork_rng")
"""names of functions with which a dataset seeds by itself, as by the index of a sample"""
_DRAWING_CLASS = re.compile(r"^Random|Jitter|Augment|Erasing|MixUp|CutMix")
"""names of transforms that draw, such as torchvision's, whose own code may be hard to follow"""
_OF_RANK = re.compile(r"rank", re.IGNORECASE)
_METHODS = ("__getitem__", "__getitems__", "__iter__", "__call__", "forward")
_MOST_OBJECTS = 200
_MOST_ITEMS = 16
_DEPTH = 4


def draws_in_workers(loader: DataLoader[Any]) -> bool:
    """Return whether the samples depend on the seeds that the loader gives to its workers."""
    if not loader.num_workers:
        return False
    try:
        init = loader.worker_init_fn
        if init is not None and _mentions_rank(init):
            return False
        parts = (*_parts_of(loader.dataset), *_parts_of(loader.collate_fn))
        return any(_DRAWING_CLASS.search(type(one).__name__) or _draws(one) for one in parts)
    except Exception:
        return False


def _parts_of(root: Any) -> Iterator[Any]:
    """Yield an object, and those in its attributes that may transform samples."""
    waiting, seen = [(root, _DEPTH)], set[int]()
    while waiting and len(seen) < _MOST_OBJECTS:
        part, depth = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, list | tuple):
            waiting += [(one, depth) for one in part[:_MOST_ITEMS]]
            continue
        yield part
        attributes = getattr(part, "__dict__", None)
        if depth and isinstance(attributes, dict) and not isinstance(part, type):
            waiting += [(one, depth - 1) for one in attributes.values() if _may_transform(one)]


def _may_transform(value: Any) -> bool:
    return callable(value) or isinstance(value, list | tuple) or hasattr(type(value), "__getitem__")


def _draws(part: Any) -> bool:
    names = {name for code in _code_of(part) for name in code.co_names}
    return any(map(_DRAWING.fullmatch, names)) and not any(map(_OWN_GENERATOR.fullmatch, names))


def _mentions_rank(function: Any) -> bool:
    """Return whether a function, or what `functools.partial` gives to it, has a rank in a name or a string."""
    words = [*(getattr(function, "keywords", None) or ())]
    for code in _code_of(function):
        words += [*code.co_names, *code.co_varnames, *code.co_freevars]
        words += [one for one in code.co_consts if isinstance(one, str)]
    return any(map(_OF_RANK.search, words))


def _code_of(part: Any) -> Iterator[CodeType]:
    """Yield the code of a function, or of the methods by which an object makes samples, and of what that calls."""
    function = getattr(part, "func", part)  # of `functools.partial`
    plain, seen = getattr(function, "__func__", function), set[CodeType]()
    if isinstance(plain, FunctionType):
        yield from _with_called(plain, None, seen)
        return
    for name in _METHODS:
        method = getattr(type(function), name, None)
        if isinstance(method, FunctionType):
            yield from _with_called(method, type(function), seen)


def _with_called(function: FunctionType, owner: type | None, seen: set[CodeType]) -> Iterator[CodeType]:
    """Yield the code of a function, and that of functions of its own module or class that it calls."""
    waiting = [function.__code__]
    while waiting and len(seen) < _MOST_OBJECTS:
        code = waiting.pop()
        if code in seen:
            continue
        seen.add(code)
        yield code
        waiting += [one for one in code.co_consts if isinstance(one, CodeType)]
        called = (function.__globals__.get(name) or getattr(owner, name, None) for name in code.co_names)
        waiting += [
            one.__code__ for one in called if isinstance(one, FunctionType) and one.__module__ == function.__module__
        ]
