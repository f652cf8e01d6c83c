"""Do all ranks construct DDP with the same model and the same arguments?

Rank 0 describes its model in the job's own store just before DDP compares the ranks' parameters. A rank on which that
comparison fails, or which will reduce other buckets, prints what is different, by name. DDP's error has only a number,
and DDP compares only shapes: parameters in another order, or of another type, pass.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from ddpprof.words import clauses

_MOST_SAID = 5
_MOST_PARAMETERS = 20_000
"""A model of more parameters is not described: that could take megabytes of the store."""
_BY_PLACE = (
    "DDP matches parameters by their place, not by their names, so it gives one the values and gradients of another. "
    "Build the model in the same order, and with the same types, on every rank."
)
_OF_BUCKETS = ("bucket_bytes_cap", "find_unused_parameters", "forward_sync_buffers", "broadcast_buffers")
"""DDP's attributes that decide which collectives a step has, as far as this torch has them"""


class DdpModel(Struct, frozen=True):
    """The model and the arguments that one rank gives to DDP."""

    parameters: dict[str, tuple[tuple[int, ...], str]]
    """name → shape and dtype of each parameter that needs a gradient, in the model's order"""
    arguments: dict[str, bool | int]


class ModelComparison:
    """The comparison of this rank's DDP modules with those of rank 0 of their process groups."""

    def __init__(self) -> None:
        self._ddp: weakref.ref[Any] | None = None
        self._num_compared: Counter[str] = Counter()
        """number of modules so far, by the name of their process group"""

    def constructs(self, ddp: Any) -> None:
        """Note which module DDP constructs."""
        self._ddp = weakref.ref(ddp)

    def before_comparing(self) -> None:
        """Describe rank 0's module to the others. All ranks of its group come here together."""
        ddp = self._module()
        if ddp is not None:
            self._num_compared[ddp.process_group.group_name] += 1
            if ddp.process_group.rank() == 0:
                self._store().set(self._key(ddp), msgspec.json.encode(_describe(ddp)))

    def explain_failure(self) -> None:
        """Print in what this rank's model differs from that of rank 0, after DDP's comparison has failed."""
        ddp, first = self._module(), self._of_rank_0()
        found = list(differing_parameters(_describe(ddp), first)) if first is not None else []
        if found:
            _say(ddp, "its model is not the same as on", f": {clauses(found, _MOST_SAID)}.")

    def compare_what_passed(self) -> None:
        """Warn if this rank will not reduce the same buckets as rank 0, after DDP has found the same shapes."""
        ddp, first = self._module(), self._of_rank_0()
        if first is None:
            return
        mine = _describe(ddp)
        unlike = list(differing_parameters(mine, first)) if mine.parameters.keys() == first.parameters.keys() else []
        if unlike:
            _say(ddp, "its model is not the same as on", f": {clauses(unlike, _MOST_SAID)}. {_BY_PLACE}")
        found = list(differing_arguments(mine, first))
        if found:
            _say(
                ddp, "DDP has other arguments than on", f", which can hang the training: {clauses(found, _MOST_SAID)}."
            )

    def _module(self) -> Any:
        return self._ddp() if self._ddp is not None else None

    def _of_rank_0(self) -> DdpModel | None:
        """Return what rank 0 has said of its module, if this is another rank."""
        ddp = self._module()
        if ddp is None or ddp.process_group.rank() == 0 or not self._store().check([self._key(ddp)]):
            return None
        return msgspec.json.decode(self._store().get(self._key(ddp)), type=DdpModel)

    def _key(self, ddp: Any) -> str:
        group = ddp.process_group.group_name
        return f"ddpprof/model/{group}/{self._num_compared[group]}"

    @staticmethod
    def _store() -> Any:
        import torch.distributed as dist

        return dist.distributed_c10d._get_default_store()


def comparing(comparison: ModelComparison) -> dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Return wrappers of functions that DDP calls while it is constructed, by their names."""

    def build(original: Callable[..., Any]) -> Callable[..., Any]:
        def builds(self: Any, *args: Any, **kwargs: Any) -> Any:
            comparison.constructs(self)
            return original(self, *args, **kwargs)

        return builds

    def verify(original: Callable[..., Any]) -> Callable[..., Any]:
        def verifies(*args: Any, **kwargs: Any) -> Any:
            # Whatever goes wrong here, as in a store that keeps nothing, the training goes on without the comparison.
            with suppress(Exception):
                comparison.before_comparing()
            try:
                result = original(*args, **kwargs)
            except RuntimeError:
                with suppress(Exception):
                    comparison.explain_failure()
                raise
            with suppress(Exception):
                comparison.compare_what_passed()
            return result

        return verifies

    return {"_build_params_for_reducer": build, "_verify_param_shape_across_processes": verify}


def differing_parameters(mine: DdpModel, first: DdpModel) -> Iterator[str]:
    """Give in words what is different in this rank's parameters from those of rank 0."""
    if not mine.parameters or not first.parameters:
        return
    for name, (shape, dtype) in mine.parameters.items():
        if name not in first.parameters:
            yield f"{name} is trained only here"
            continue
        other_shape, other_dtype = first.parameters[name]
        if shape != other_shape:
            yield f"{name} is {_shape(shape)} here and {_shape(other_shape)} there"
        elif dtype != other_dtype:
            yield f"{name} is {dtype} here and {other_dtype} there"
    yield from (f"{name} is not trained here" for name in first.parameters if name not in mine.parameters)
    if mine.parameters.keys() == first.parameters.keys():
        pairs = zip(mine.parameters, first.parameters, strict=True)
        yield from (f"{name} stands here where {other} stands there" for name, other in pairs if name != other)


def differing_arguments(mine: DdpModel, first: DdpModel) -> Iterator[str]:
    """Give in words which arguments of DDP differ from those of rank 0."""
    for name, value in mine.arguments.items():
        other = first.arguments.get(name, value)
        if value != other:
            yield f"{name} is {value} here and {other} there"


def _describe(ddp: Any) -> DdpModel:
    ignored = getattr(ddp, "parameters_to_ignore", ())
    parameters = [(name, one) for name, one in ddp.module.named_parameters() if one.requires_grad]
    return DdpModel(
        {
            name: (tuple(one.shape), str(one.dtype).removeprefix("torch."))
            for name, one in (parameters if len(parameters) <= _MOST_PARAMETERS else ())
            if name not in ignored
        },
        {name: getattr(ddp, name) for name in _OF_BUCKETS if isinstance(getattr(ddp, name, None), int)},
    )


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "a number"


def _say(ddp: Any, begin: str, end: str) -> None:
    import torch.distributed as dist

    first = dist.get_global_rank(ddp.process_group, 0)
    sys.stderr.write(f"ddpprof: rank {dist.get_rank()}: {begin} rank {first}{end}\n")
