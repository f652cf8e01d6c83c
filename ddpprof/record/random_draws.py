"""Does a dataset draw random numbers in the workers of its DataLoader? Its code tells, as far as it is Python.

The workers of each pass get their seeds from one number, which the loader draws from its generator. Ranks whose loaders
draw the same number augment their samples alike, unless a ``worker_init_fn`` gives other seeds. What cannot be told for
certain counts as not drawn.
"""

from __future__ import annotations

import dis
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

_OF_TORCH = (
    "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "normal", "bernoulli",
    "multinomial", "poisson",
)  # fmt: skip
_NOT_DRAWING = {"seed", "getstate", "setstate", "get_state", "set_state"}
_IN_PLACE = re.compile(r"(?:uniform|normal|log_normal|bernoulli|random|exponential|cauchy|geometric)_")
"""names of methods with which a tensor fills itself"""
_OWN_GENERATOR = re.compile(r"generator|manual_seed|seed|default_rng|RandomState|Random|Generator|fork_rng")
"""names and keywords of what draws from a generator that a dataset seeds by itself, as by the index of a sample"""
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_DRAWING_CLASS = re.compile(r"^Random|Jitter|Augment|Erasing|MixUp|CutMix")
"""names of transforms of a library that draw, though its code may be hard to follow"""
_LIBRARIES = ("torchvision", "torchaudio", "kornia")
_KEEPS_SEEDS = {
    "torch", "initial_seed", "utils", "data", "get_worker_info", "seed", "np", "numpy", "random", "manual_seed", "int",
    "set_num_threads",
}  # fmt: skip
"""names in a ``worker_init_fn`` that derives all seeds from those of the loader"""
_OF_LOADER = {"initial_seed", "get_worker_info"}
_SEEDING = {"seed", "manual_seed"}
_METHODS = ("__getitem__", "__getitems__", "__iter__", "__call__", "forward")
_MOST_OBJECTS = 200
_MOST_ITEMS = 16
_DEPTH = 4


def draws_in_workers(loader: DataLoader[Any]) -> bool:
    """Return whether the samples depend on the seeds that the loader gives to its workers."""
    if not loader.num_workers:
        return False
    try:
        if loader.worker_init_fn is not None and not _keeps_seeds(loader.worker_init_fn):
            return False
        parts = (*_parts_of(loader.dataset), *_parts_of(loader.collate_fn))
        return any(_is_random_transform(one) or _draws(one) for one in parts)
    except Exception:
        return False


def _keeps_seeds(init: Any) -> bool:
    """Return whether a ``worker_init_fn`` surely uses no other seeds than those that the loader gives."""
    if not isinstance(init, FunctionType) or init.__closure__ or init.__defaults__ or init.__kwdefaults__:
        return False
    names = set(init.__code__.co_names)
    return names <= _KEEPS_SEEDS and not (names & _SEEDING and names.isdisjoint(_OF_LOADER))


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


def _is_random_transform(part: Any) -> bool:
    kind = type(part)
    is_of_library = kind.__module__.partition(".")[0] in _LIBRARIES
    return (
        is_of_library
        and callable(part)
        and not isinstance(part, Dataset)
        and bool(_DRAWING_CLASS.search(kind.__name__))
    )


def _draws(part: Any) -> bool:
    """Return whether the methods of a part, or a function, draw from the generators of torch, NumPy and Python."""
    attributes = getattr(part, "__dict__", None)
    if isinstance(attributes, dict) and any(isinstance(one, _GENERATORS) for one in attributes.values()):
        return False
    code = list(_code_of(part))
    if any(_OWN_GENERATOR.fullmatch(word) for one in code for word in one.words):
        return False
    drawing = _drawing_functions()
    return any(id(one) in drawing for each in code for one in each.reached) or any(
        _IN_PLACE.fullmatch(name) for one in code for name in one.words
    )


def _drawing_functions() -> set[int]:
    """Return the identities of the functions that draw from the generators that a loader seeds in its workers."""
    of_modules = [
        one
        for module, owner in ((random, random.Random), (np.random, np.random.RandomState))
        for name, one in vars(module).items()
        if isinstance(getattr(one, "__self__", None), owner) and name not in _NOT_DRAWING
    ]
    return {id(one) for one in (*of_modules, *(getattr(torch, name) for name in _OF_TORCH))}


@dataclass(slots=True)
class _Code:
    """What the code of a function mentions."""

    words: set[str]
    """names of globals and attributes, and names of arguments in calls"""
    reached: list[Any]
    """objects that it reaches from its globals, or from the class of ``self``"""


def _code_of(part: Any) -> Iterator[_Code]:
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


def _with_called(function: FunctionType, owner: type | None, seen: set[CodeType]) -> Iterator[_Code]:
    """Yield the code of a function, and that of functions of its own module or class that it calls."""
    waiting = [function.__code__]
    while waiting and len(seen) < _MOST_OBJECTS:
        code = waiting.pop()
        if code in seen:
            continue
        seen.add(code)
        keywords = {word for one in code.co_consts if isinstance(one, tuple) for word in one if isinstance(word, str)}
        reached = list(_reached(code, function.__globals__, owner))
        yield _Code({*code.co_names, *keywords}, reached)
        waiting += [one for one in code.co_consts if isinstance(one, CodeType)]
        waiting += [
            one.__code__ for one in reached if isinstance(one, FunctionType) and one.__module__ == function.__module__
        ]


def _reached(code: CodeType, names: dict[str, Any], owner: type | None) -> Iterator[Any]:
    """Yield the objects that code reaches by names with dots, such as ``np.random.rand`` or ``self.noise``."""
    value: Any = None
    for instruction in dis.get_instructions(code):
        kind, word = instruction.opname, instruction.argval
        if kind in ("LOAD_GLOBAL", "LOAD_NAME"):
            value = names.get(word)
        elif kind in ("LOAD_ATTR", "LOAD_METHOD"):
            value = _attribute(value, word)
        elif "LOAD_FAST" in kind or kind == "LOAD_DEREF":  # some instructions also store, or load two
            value = owner if (word[-1] if isinstance(word, tuple) else word) == "self" else None
        elif kind not in ("PUSH_NULL", "CACHE"):
            value = None
        if value is not None:
            yield value


def _attribute(value: Any, name: str) -> Any:
    """Return the attribute of a module or class, and nothing of others, whose attributes may be computed."""
    if isinstance(value, ModuleType):
        return vars(value).get(name)
    return getattr(value, name, None) if isinstance(value, type) else None
