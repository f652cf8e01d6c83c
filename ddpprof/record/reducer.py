"""DDP averages the parameters that need gradients when it builds its reducer, whatever happens to them later.

A script may freeze or unfreeze parameters once DDP is constructed. The reducer still has the former, and does not know
the latter: their gradients stay on each rank.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ddpprof.errors import DdpprofError

if TYPE_CHECKING:  # this is imported while torch is being imported
    from torch.nn import Parameter
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.weak import TensorWeakRef


class ReducerParameters(NamedTuple):
    """The reducer's parameters, in its order."""

    names: list[str]
    """first name of each in the module"""
    parameters: list[Parameter]
    expect_sparse: list[bool]


@dataclass(slots=True)
class _Frozen:
    """A parameter that needs no gradient when the reducer is built, and that DDP was not told to ignore."""

    name: str
    parameter: TensorWeakRef
    version: int | None = None
    """torch's count of changes to its values when it was first seen to need a gradient"""

    def is_trained(self) -> bool:
        """Return whether its values have changed since it was first seen to need a gradient."""
        parameter: Parameter | None = self.parameter()
        if parameter is None or not parameter.requires_grad:
            return False
        if self.version is None:
            self.version = parameter._version
        return parameter._version != self.version


class _Noted(NamedTuple):
    """The parameters with which a DDP module was constructed, none of which this keeps alive."""

    names: list[str]
    parameters: list[TensorWeakRef]
    expect_sparse: list[bool]
    frozen: list[_Frozen]


_noted: weakref.WeakKeyDictionary[DistributedDataParallel, _Noted] = weakref.WeakKeyDictionary()


def noting_parameters(build: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``_ddp_init_helper``, with which DDP builds its reducer."""

    def builds(ddp: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        build(ddp, *args, **kwargs)
        with suppress(Exception):  # DDP is asked later, if need be
            _note(ddp, *args[:2])

    return builds


def _note(ddp: DistributedDataParallel, parameters: Sequence[Parameter], expect_sparse: Sequence[bool]) -> None:
    from torch.utils.weak import TensorWeakRef  # an ordinary reference may outlive the tensor behind its object

    frozen = [
        _Frozen(name, TensorWeakRef(one))
        for name, one in ddp.module.named_parameters()
        if not (one.requires_grad or one.is_inference() or name in ddp.parameters_to_ignore)
    ]
    names = _names(ddp, parameters)
    _noted[ddp] = _Noted(names, [TensorWeakRef(one) for one in parameters], list(expect_sparse), frozen)


def reducer_parameters(ddp: DistributedDataParallel) -> ReducerParameters:
    """Return the reducer's parameters. Raises `DdpprofError` if nobody noted them, and they have changed since."""
    noted = _noted.get(ddp)
    if noted is not None:
        parameters = [one for reference in noted.parameters if (one := reference()) is not None]
        return ReducerParameters(noted.names, parameters, noted.expect_sparse)
    parameters, expect_sparse = ddp._build_params_for_reducer()
    if len(parameters) != len(ddp.reducer.get_backward_stats()):
        raise DdpprofError(
            "the script has frozen or unfrozen parameters since it constructed DDP, so that their gradients cannot be "
            "told apart. Construct DDP after `ddpprof.profile` begins, or use ddpprof trace."
        )
    return ReducerParameters(_names(ddp, parameters), parameters, expect_sparse)


def unfrozen_parameters(ddp: DistributedDataParallel) -> tuple[str, ...]:
    """Return the names of parameters that have been trained by now, though no DDP module averages their gradients.

    A parameter is only known to be trained once its values change between two calls.
    """
    noted = _noted.get(ddp)
    trained = [one for one in noted.frozen if one.is_trained()] if noted is not None else []
    if not trained:
        return ()
    averaged = {id(reference()) for other in list(_noted.values()) for reference in other.parameters}
    return tuple(one.name for one in trained if id(one.parameter()) not in averaged)


def ddp_modules() -> list[DistributedDataParallel]:
    """Return the DDP modules that were constructed, as long as the script keeps them."""
    return list(_noted)


def known_to_ddp(modules: Iterable[DistributedDataParallel], *, with_frozen: bool = False) -> set[int]:
    """Return the identities of the parameters that the reducers of these modules average.

    `with_frozen`: with those that were frozen when DDP was constructed, and those that it was told to ignore.
    """
    known = set[int]()
    for ddp in modules:
        noted = _noted.get(ddp)
        if with_frozen:
            known.update(id(one) for one in ddp.module.parameters())
        if noted is not None:
            known.update(id(one) for reference in noted.parameters if (one := reference()) is not None)
    return known


def _names(ddp: DistributedDataParallel, parameters: Sequence[Parameter]) -> list[str]:
    names = {parameter: name for name, parameter in reversed(list(ddp.module.named_parameters()))}
    return [names[one] for one in parameters]
