"""Parse `--vary` and `--set` into variants of the job.

    --batch-size=32,64            option of the script, appended to its arguments
    bucket_cap_mb=5,25            argument of DDP's constructor, replaced when the script calls it; commas within
                                  brackets belong to one value: bucket_cap_mb_list=[1,25],[1,5,25]
    optimize_ddp=…,…              value of torch._dynamo.config.optimize_ddp, for a model compiled with torch.compile
    compile_order=…,…             ddp_first: torch.compile(DDP(model)); model_first: DDP(torch.compile(model))
    sync_batch_norm=True,False    False: SyncBatchNorm layers use the statistics of their own rank, as BatchNorm does
    sparse_embeddings=True,False  True: embeddings compute sparse gradients, as with Embedding(..., sparse=True)
    detect_anomaly=True,False     False: the script cannot turn on autograd's anomaly detection
    comm_hook=True,False          False: DDP averages gradients itself, without the comm hooks that the script registers
    NCCL_MAX_CTAS=4,8             environment variable (upper case)
    OMP_NUM_THREADS=1,2           also replaces the argument of the script's calls to torch.set_num_threads
    model.width=32,64             any other word, appended to the script's arguments

If the command contains a placeholder such as ``{batch-size}``, the value replaces the placeholder instead.
"""

from __future__ import annotations

import ast
import difflib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from math import isfinite
from typing import Any

from ddpprof.errors import DdpprofError
from ddpprof.experiments.plan import Variant
from ddpprof.model.ddp_module import CompileOrder, OptimizeDdp
from ddpprof.redaction import words_without_secrets

DDP_ARGUMENTS = (
    "batched_grad_copy",
    "broadcast_buffers",
    "bucket_cap_mb",
    "bucket_cap_mb_list",
    "find_unused_parameters",
    "forward_sync_buffers",
    "gradient_as_bucket_view",
    "init_sync",
    "skip_all_reduce_unused_params",
    "static_graph",
)
"""arguments of DDP whose values can be given as text; a test compares this list with the installed PyTorch"""


COMPILATIONS: Mapping[str, Sequence[str]] = {
    "compile_order": (CompileOrder.DDP_FIRST, CompileOrder.MODEL_FIRST),
    "optimize_ddp": (OptimizeDdp.DDP_OPTIMIZER, OptimizeDdp.PYTHON_REDUCER, OptimizeDdp.NO_OPTIMIZATION),
}
"""setting of torch.compile → its possible values"""
SWITCHES = ("sync_batch_norm", "sparse_embeddings", "detect_anomaly", "comm_hook")
"""features of the script that ddpprof can turn on or off"""
_COMMA_BETWEEN_VALUES = re.compile(r",(?![^\[]*\])")


class _Place(Enum):
    COMMAND = "command"
    DDP = "ddp"
    COMPILATION = "compilation"
    SWITCH = "switch"
    ENVIRONMENT = "environment"
    ARGUMENT = "argument"


def vary(variant: Variant, choices: Iterable[str], command: Sequence[str]) -> list[Variant]:
    """Return a variant for each combination of values. Each choice is ``name=value,…``. Raises `DdpprofError`."""
    values = [[(name, value) for value in listed] for name, listed in map(_split, choices)]
    return [_changed(variant, combination, command) for combination in itertools.product(*values)]


def with_settings(variant: Variant, settings: Iterable[str], command: Sequence[str]) -> Variant:
    """Return the variant with these settings. They do not become part of its label. Raises `DdpprofError`."""
    for setting in settings:
        name, values = _split(setting)
        variant = _with(variant, name, ",".join(values), command)
    return variant


def shared_by(variant: Variant, setting: str, command: Sequence[str]) -> Variant:
    """Return the variant in which each process gets its share of ``name=total``. Raises `DdpprofError`."""
    name, values = _split(setting)
    total = values[0]
    if len(values) > 1 or not total.isdecimal() or int(total) % variant.nproc:
        raise DdpprofError(
            f"{setting} cannot be divided evenly among {variant.nproc} processes: give a multiple of {variant.nproc}"
        )
    shared = _with(variant, name, str(int(total) // variant.nproc), command)
    return replace(shared, label=f"{setting} in total")


def passed_on(choices: Iterable[str], command: Sequence[str]) -> list[str]:
    """Return the names that are neither known to ddpprof nor options, and are therefore passed on to the script."""
    names = [_split(choice)[0] for choice in choices]
    return [name for name in names if _place(name, command) is _Place.ARGUMENT and not name.startswith("-")]


def _split(choice: str) -> tuple[str, list[str]]:
    name, equals, values = choice.partition("=")
    listed = [value.strip() for value in _COMMA_BETWEEN_VALUES.split(values)]
    if not equals or not name.strip("-") or not all(listed):
        raise DdpprofError(
            f"{choice} has no list of values. Write, for example, --batch-size=32,64 or bucket_cap_mb=5,25"
        )
    return name, listed


def _changed(variant: Variant, combination: Sequence[tuple[str, str]], command: Sequence[str]) -> Variant:
    for name, value in combination:
        variant = _with(variant, name, value, command)
    words = words_without_secrets([f"{name}={value}" for name, value in combination])
    name, value = combination[0]
    return replace(variant, label=" ".join(words), configuration=" ".join(words[1:]), varied=name, size=_size(value))


def _with(variant: Variant, name: str, value: str, command: Sequence[str]) -> Variant:
    match _place(name, command):
        case _Place.COMMAND:
            return replace(variant, places={**variant.places, name.lstrip("-"): value})
        case _Place.DDP:
            return replace(variant, ddp={**variant.ddp, name: _argument(name, value)})
        case _Place.COMPILATION:
            return variant.compiled(name, _compilation(name, value))
        case _Place.SWITCH:
            return replace(variant, switches={**variant.switches, name: _argument(name, value)})
        case _Place.ENVIRONMENT:
            return replace(variant, variables={**variant.variables, name: value})
        case _:
            _refuse_misspelt(name)
            return replace(variant, words=(*variant.words, f"{name}={value}"))


def _place(name: str, command: Sequence[str]) -> _Place:
    if any("{" + name.lstrip("-") + "}" in word for word in command):
        return _Place.COMMAND
    if name in DDP_ARGUMENTS:
        return _Place.DDP
    if name in COMPILATIONS:
        return _Place.COMPILATION
    if name in SWITCHES:
        return _Place.SWITCH
    return _Place.ENVIRONMENT if name.isupper() and name.isidentifier() else _Place.ARGUMENT


def _compilation(name: str, value: str) -> str:
    if value not in COMPILATIONS[name]:
        raise DdpprofError(f"{name}={value} is not valid: give {' or '.join(COMPILATIONS[name])}")
    return value


def _refuse_misspelt(name: str) -> None:
    known = [*DDP_ARGUMENTS, *COMPILATIONS, *SWITCHES]
    meant = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    if meant:
        raise DdpprofError(f"DDP has no argument {name}. Did you mean {meant[0]}? A script option begins with --")


def _argument(name: str, text: str) -> Any:
    """Return the value of an argument of DDP. Raises `DdpprofError` if DDP would refuse it."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    if name == "bucket_cap_mb":
        fits, wanted = value is None or _is_number(value), "a size in MiB, or None"
    elif name == "bucket_cap_mb_list":
        fits = isinstance(value, list | tuple) and all(map(_is_number, value))
        wanted = "a list of sizes in MiB, in brackets"
    else:
        fits, wanted = isinstance(value, bool), "True or False"
    if not fits:
        raise DdpprofError(f"{name}={text} is not valid: give {wanted}")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _size(value: str) -> float | None:
    try:
        size = float(value)
    except ValueError:
        return None
    return size if isfinite(size) and size > 0 else None
