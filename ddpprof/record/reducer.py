"""Which parameters does DDP average? Those that need gradients when it builds its reducer, whatever happens later.

A script may freeze or unfreeze parameters once DDP is constructed. The reducer still has the former, and does not know
the latter: their gradients stay on each rank.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ddpprof.errors import DdpprofError

if TYPE_CHECKING:  # this is imported while torch is being imported
    from torch.nn import Parameter
    from torch.nn.parallel import DistributedDataParallel


class ReducerParameters(NamedTuple):
    """The reducer's parameters, in its order."""

    names: list[str]
    """first name of each in the module"""
    parameters: list[Parameter]
    expect_sparse: list[bool]


class _Frozen(NamedTuple):
    """A parameter that needs no gradient when the reducer is built, and that DDP was not told to ignore."""

    name: str
    parameter: weakref.ref[Parameter]
    version: int
    """torch's count of changes to its values"""


class _Noted(NamedTuple):
    of_reducer: ReducerParameters
    frozen: list[_Frozen]


_noted: weakref.WeakKeyDictionary[DistributedDataParallel, _Noted] = weakref.WeakKeyDictionary()


def noting_parameters(build: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``_ddp_init_helper``, with which DDP builds its reducer."""

    def builds(ddp: DistributedDataParallel, parameters: Any, expect_sparse: Any, *args: Any) -> None:
        build(ddp, parameters, expect_sparse, *args)
        with suppress(Exception):  # DDP is asked later, if need be
            _note(ddp, parameters, expect_sparse)

    return builds


def _note(ddp: DistributedDataParallel, parameters: Sequence[Parameter], expect_sparse: Sequence[bool]) -> None:
    ignored = {*ddp.parameters_to_ignore, *ddp._delay_all_reduce_params}
    frozen = [
        _Frozen(name, weakref.ref(one), one._version)
        for name, one in ddp.module.named_parameters()
        if not (one.requires_grad or one.is_inference() or name in ignored)
    ]
    _noted[ddp] = _Noted(_with_names(ddp, parameters, expect_sparse), frozen)


def reducer_parameters(ddp: DistributedDataParallel) -> ReducerParameters:
    """Return the reducer's parameters. Raises `DdpprofError` if nobody noted them, and they have changed since."""
    noted = _noted.get(ddp)
    if noted is not None:
        return noted.of_reducer
    parameters, expect_sparse = ddp._build_params_for_reducer()
    if len(parameters) != len(ddp.reducer.get_backward_stats()):
        raise DdpprofError(
            "the script has frozen or unfrozen parameters since it constructed DDP, so that their gradients cannot be "
            "told apart. Construct DDP after `ddpprof.profile` begins, or use ddpprof trace."
        )
    return _with_names(ddp, parameters, expect_sparse)


def unfrozen_parameters(ddp: DistributedDataParallel) -> tuple[str, ...]:
    """Return the names of parameters that are trained by now, though DDP does not average their gradients."""
    noted = _noted.get(ddp)
    return tuple(one.name for one in noted.frozen if _is_trained(one)) if noted is not None else ()


def _is_trained(one: _Frozen) -> bool:
    parameter = one.parameter()
    return parameter is not None and parameter.requires_grad and parameter._version != one.version


def _with_names(
    ddp: DistributedDataParallel, parameters: Sequence[Parameter], expect_sparse: Sequence[bool]
) -> ReducerParameters:
    names = {parameter: name for name, parameter in reversed(list(ddp.module.named_parameters()))}
    return ReducerParameters([names[one] for one in parameters], list(parameters), list(expect_sparse))
