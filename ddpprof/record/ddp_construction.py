"""Hooks into the construction of DDP modules. This module is imported while torch is being imported.

- The reducer's parameters are stored. DDP averages the parameters that require gradients at construction, even if they
  are frozen later.
- The model of each rank is compared with the model of rank 0. Differences are printed by parameter name.
- DDP is modified in trials of `ddpprof overhead`, `scale`, `sweep`, `tune` and `try`.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Struct

from ddpprof.errors import CannotRecord, DdpprofError
from ddpprof.record.compilation import num_compiled
from ddpprof.record.settings import Settings
from ddpprof.words import clauses

if TYPE_CHECKING:
    from torch.nn import Parameter
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.weak import TensorWeakRef


class ReducerParameters(NamedTuple):
    """The reducer's parameters, in the order that the reducer uses."""

    names: list[str]
    """name of each parameter in the module; if a parameter has several names, the first of them"""
    parameters: list[Parameter]
    expect_sparse: list[bool]


class _Frozen(Struct):
    """A parameter that is frozen when the reducer is built, and is not in DDP's ``parameters_to_ignore``."""

    name: str
    parameter: TensorWeakRef
    version: int | None = None
    """value of PyTorch's version counter (``Tensor._version``) when the parameter was first seen to require a
    gradient
    """

    def is_trained(self) -> bool:
        """Return True if the values have changed since the parameter was first seen to require a gradient."""
        parameter: Parameter | None = self.parameter()
        if parameter is None or not parameter.requires_grad:
            return False
        if self.version is None:
            self.version = parameter._version
        return parameter._version != self.version


class _Noted(Struct, frozen=True):
    """Weak references to the parameters with which a DDP module was constructed."""

    names: list[str]
    parameters: list[TensorWeakRef]
    expect_sparse: list[bool]
    frozen: list[_Frozen]


_noted: weakref.WeakKeyDictionary[DistributedDataParallel, _Noted] = weakref.WeakKeyDictionary()


def noting_parameters(build: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``_ddp_init_helper``, which builds DDP's reducer, to store the reducer's parameters."""

    def builds(ddp: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        build(ddp, *args, **kwargs)
        with suppress(Exception):  # `reducer_parameters` can query DDP instead
            _note(ddp, *args[:2])

    return builds


def _note(ddp: DistributedDataParallel, parameters: Sequence[Parameter], expect_sparse: Sequence[bool]) -> None:
    from torch.utils.weak import TensorWeakRef  # ordinary weak references are not reliable for tensors

    frozen = [
        _Frozen(name, TensorWeakRef(one))
        for name, one in ddp.module.named_parameters()
        if not (one.requires_grad or one.is_inference() or name in ddp.parameters_to_ignore)
    ]
    names = _names(ddp, parameters)
    _noted[ddp] = _Noted(names, [TensorWeakRef(one) for one in parameters], list(expect_sparse), frozen)


def reducer_parameters(ddp: DistributedDataParallel) -> ReducerParameters:
    """Return the reducer's parameters.

    Raises `DdpprofError` if they were not stored at construction and have changed since.
    """
    noted = _noted.get(ddp)
    if noted is not None:
        parameters = [one for reference in noted.parameters if (one := reference()) is not None]
        return ReducerParameters(noted.names, parameters, noted.expect_sparse)
    parameters, expect_sparse = ddp._build_params_for_reducer()
    if len(parameters) != len(ddp.reducer.get_backward_stats()):
        raise DdpprofError(
            "the script has frozen or unfrozen parameters since it constructed DDP, so ddpprof cannot match gradients "
            "to parameters. Construct DDP after `ddpprof.profile` begins, or use ddpprof trace."
        )
    return ReducerParameters(_names(ddp, parameters), parameters, expect_sparse)


def unfrozen_parameters(ddp: DistributedDataParallel) -> tuple[str, ...]:
    """Return the names of parameters that are being trained although no DDP module averages their gradients.

    A parameter counts as trained only if its values have changed between two calls.
    """
    noted = _noted.get(ddp)
    trained = [one for one in noted.frozen if one.is_trained()] if noted is not None else []
    if not trained:
        return ()
    averaged = {id(reference()) for other in list(_noted.values()) for reference in other.parameters}
    return tuple(one.name for one in trained if id(one.parameter()) not in averaged)


def ddp_modules() -> list[DistributedDataParallel]:
    """Return the DDP modules that still exist."""
    return list(_noted)


def known_to_ddp(modules: Iterable[DistributedDataParallel], *, with_frozen: bool = False) -> set[int]:
    """Return the IDs of the parameters that the reducers of these modules average.

    `with_frozen`: include parameters that were frozen when DDP was constructed, and parameters that DDP ignores.
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


_MOST_SAID = 5
_MOST_PARAMETERS = 20_000
"""models with more parameters than this are not compared, because their descriptions could take megabytes in
the store
"""
_BY_PLACE = (
    "DDP matches parameters by position, not by name, so parameters receive the values and gradients of other "
    "parameters. On every rank, build the model in the same order and with the same types."
)
_OF_BUCKETS = ("bucket_bytes_cap", "find_unused_parameters", "forward_sync_buffers", "broadcast_buffers")
"""attributes of DDP that determine the collectives in a step; some of them do not exist in every version of PyTorch"""


class DdpModel(Struct, frozen=True):
    """The model and the arguments that one rank passes to DDP."""

    parameters: dict[str, tuple[tuple[int, ...], str]]
    """name → shape and dtype of each parameter that requires a gradient, in the model's order"""
    arguments: dict[str, bool | int]


class ModelComparison:
    """Compares this rank's DDP modules with the modules of rank 0 of their process groups."""

    def __init__(self) -> None:
        self._ddp: weakref.ref[Any] | None = None
        self._num_compared: Counter[str] = Counter()
        """name of a process group → number of DDP modules that have been compared in this group so far"""

    def constructs(self, ddp: Any) -> None:
        """Record which DDP module is about to be constructed."""
        self._ddp = weakref.ref(ddp)

    def before_comparing(self) -> None:
        """Send a description of rank 0's module to the other ranks. Every rank of the process group calls this."""
        ddp = self._module()
        if ddp is not None:
            self._num_compared[ddp.process_group.group_name] += 1
            if ddp.process_group.rank() == 0:
                self._store().set(self._key(ddp), msgspec.json.encode(_describe_model(ddp)))

    def explain_failure(self) -> None:
        """Print how this rank's model differs from rank 0's model, after DDP's own comparison has failed."""
        ddp, first = self._module(), self._of_rank_0()
        found = list(differing_parameters(_describe_model(ddp), first)) if first is not None else []
        if found:
            _say_difference(ddp, "its model differs from the model of", f": {clauses(found, _MOST_SAID)}.")

    def compare_what_passed(self) -> None:
        """Warn if this rank's buckets will differ from rank 0's buckets although DDP's own comparison has passed."""
        ddp, first = self._module(), self._of_rank_0()
        if first is None:
            return
        mine = _describe_model(ddp)
        unlike = list(differing_parameters(mine, first)) if mine.parameters.keys() == first.parameters.keys() else []
        if unlike:
            _say_difference(ddp, "its model differs from the model of", f": {clauses(unlike, _MOST_SAID)}. {_BY_PLACE}")
        found = list(differing_arguments(mine, first))
        if found:
            _say_difference(
                ddp,
                "DDP's arguments differ from the arguments on",
                f", which can make training hang: {clauses(found, _MOST_SAID)}.",
            )

    def _module(self) -> Any:
        return self._ddp() if self._ddp is not None else None

    def _of_rank_0(self) -> DdpModel | None:
        """Return rank 0's description of its module; ``None`` on rank 0 itself."""
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
    """Return wrappers for functions that DDP calls during construction, by function name."""

    def build(original: Callable[..., Any]) -> Callable[..., Any]:
        def builds(self: Any, *args: Any, **kwargs: Any) -> Any:
            comparison.constructs(self)
            return original(self, *args, **kwargs)

        return builds

    def verify(original: Callable[..., Any]) -> Callable[..., Any]:
        def verifies(*args: Any, **kwargs: Any) -> Any:
            # On any error, such as a store that keeps no values, training continues without the comparison.
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
    """Yield a description of each difference between this rank's parameters and rank 0's."""
    if not mine.parameters or not first.parameters:
        return
    for name, (shape, dtype) in mine.parameters.items():
        if name not in first.parameters:
            yield f"only this rank trains {name}"
            continue
        other_shape, other_dtype = first.parameters[name]
        if shape != other_shape:
            yield f"{name} is {_shape(shape)} instead of {_shape(other_shape)}"
        elif dtype != other_dtype:
            yield f"{name} is {dtype} instead of {other_dtype}"
    yield from (f"this rank does not train {name}" for name in first.parameters if name not in mine.parameters)
    if mine.parameters.keys() == first.parameters.keys():
        pairs = zip(mine.parameters, first.parameters, strict=True)
        yield from (f"{name} is where the first rank has {other}" for name, other in pairs if name != other)


def differing_arguments(mine: DdpModel, first: DdpModel) -> Iterator[str]:
    """Yield a description of each DDP argument that differs from rank 0's."""
    for name, value in mine.arguments.items():
        other = first.arguments.get(name, value)
        if value != other:
            yield f"{name} is {value} instead of {other}"


def _describe_model(ddp: Any) -> DdpModel:
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
    return "×".join(map(str, shape)) or "a scalar"


def _say_difference(ddp: Any, begin: str, end: str) -> None:
    import torch.distributed as dist

    first = dist.get_global_rank(ddp.process_group, 0)
    sys.stderr.write(f"ddpprof: rank {dist.get_rank()}: {begin} rank {first}{end}\n")


_NOT_WITHOUT_DDP = ("mixed_precision", "delay_all_reduce_named_params")
"""arguments of DDP that change the computation itself; training without DDP would then not be comparable"""

_AWAY = "_ddpprof_takes_ddp_away"
"""name of the attribute that marks a DDP module whose reducer is disabled"""


def modify_ddp(distributed: ModuleType, settings: Settings) -> None:
    """Modify DDP as `settings` requires. Call this before any other function wraps DDP's methods.

    `distributed`: ``torch.nn.parallel.distributed``. Raises `CannotRecord`.
    """
    if settings.num_threads:
        _fix_threads(sys.modules["torch"], settings.num_threads)
    if not settings.switches.get("detect_anomaly", True):
        _never_detect_anomalies(sys.modules["torch"])
    changes_ddp = settings.ddp or settings.comm_hook or settings.without_ddp or settings.ddp_blocks
    if not (changes_ddp or settings.loader or settings.passes_per_reduction or settings.switches):
        return
    ddp = distributed.DistributedDataParallel
    known = inspect.signature(ddp.__init__).parameters
    unknown = [name for name in settings.ddp if name not in known]
    if unknown:
        raise CannotRecord(f"DistributedDataParallel in this torch version has no argument {unknown[0]}")
    ddp.__init__ = functools.wraps(ddp.__init__)(_constructor(ddp.__init__, settings))
    if not settings.switches.get("comm_hook", True):
        for register in (ddp.register_comm_hook, ddp._register_builtin_comm_hook):
            setattr(ddp, register.__name__, functools.wraps(register)(_registers_nothing))
    if settings.comm_hook is not None:
        ddp.__init__ = functools.wraps(ddp.__init__)(_constructor_with_hook(ddp.__init__, settings.comm_hook))
    if settings.passes_per_reduction:
        ddp.forward = functools.wraps(ddp.forward)(_forward_in_turn(ddp.forward, settings.passes_per_reduction))
    if settings.without_ddp or settings.ddp_blocks:
        ddp.forward = functools.wraps(ddp.forward)(_forward_without_ddp(ddp.forward, distributed))
    if settings.without_ddp:
        ddp._ddp_init_helper = functools.wraps(ddp._ddp_init_helper)(_init_helper(ddp._ddp_init_helper))


def switch_ddp(ddp: Any, on: bool) -> None:
    """Disable DDP for its module, or enable DDP again with a new reducer, as when a module is unpickled.

    Call this between two steps. Raises `CannotRecord`.
    """
    if on != getattr(ddp, _AWAY, False):
        return
    if num_compiled():
        raise CannotRecord(
            "DDP cannot be disabled in code that torch.compile has compiled. Use: ddpprof overhead --apart"
        )
    setattr(ddp, _AWAY, not on)
    if not on:
        ddp.reducer._remove_autograd_hooks()
        return
    parameters, expect_sparse = (
        ddp._build_params_for_reducer()
    )  # torch crashes with parameters that have been frozen since
    names = ddp._build_debug_param_to_name_mapping(parameters)
    del ddp.reducer  # two reducers would need twice the memory
    ddp._ddp_init_helper(parameters, expect_sparse, names, ddp.static_graph)
    ddp._has_rebuilt_buckets = False
    if ddp.static_graph:
        ddp.reducer._set_static_graph()
        ddp.logger._set_static_graph()
    hooks, ddp._comm_hooks = ddp._comm_hooks, []
    for hook, state in hooks:
        ddp.register_comm_hook(state, hook)


def _constructor(original: Callable[..., None], settings: Settings) -> Callable[..., None]:
    signature, replaced = inspect.signature(original), settings.ddp
    takes_ddp_away = settings.without_ddp or settings.ddp_blocks > 0

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs)
        given.arguments.update(replaced)
        if "bucket_cap_mb" in replaced and "bucket_cap_mb_list" not in replaced:
            given.arguments.pop("bucket_cap_mb_list", None)  # would override bucket_cap_mb
        for name in _NOT_WITHOUT_DDP if takes_ddp_away else ():
            if given.arguments.get(name) is not None:
                raise RuntimeError(f"ddpprof cannot disable DDP because the script passes {name} to it")
        if not settings.switches.get("sync_batch_norm", True):
            _use_own_statistics(given.arguments["module"])
        if settings.switches.get("sparse_embeddings"):
            _use_sparse_gradients(given.arguments["module"])
        original(*given.args, **given.kwargs)
        if settings.loader:
            _change_loaders(settings.loader)
        if settings.ddp_blocks and self._use_python_reducer:
            raise RuntimeError(
                "ddpprof cannot turn DDP off for blocks of steps if the DDP module is compiled. "
                "Use: ddpprof overhead --apart"
            )
        if settings.without_ddp:
            for hook in getattr(self, "_accum_grad_hooks", []):
                hook.remove()

    return init


def _fix_threads(torch: Any, number: int) -> None:
    """Make the script's calls to `torch.set_num_threads`, which override OMP_NUM_THREADS, set `number` threads."""
    set_num_threads = torch.set_num_threads

    @functools.wraps(set_num_threads)
    def fixed(num_threads: int) -> None:
        is_of_torch = sys._getframe(1).f_globals.get("__name__", "").startswith("torch.")  # a DataLoader's worker
        set_num_threads(num_threads if is_of_torch else number)

    torch.set_num_threads = fixed


def _never_detect_anomalies(torch: Any) -> None:
    """Make ``set_detect_anomaly(True)`` and ``detect_anomaly()`` have no effect."""
    set_anomaly_enabled = torch.set_anomaly_enabled

    def disabled(_mode: bool, check_nan: bool = True) -> None:
        set_anomaly_enabled(False, check_nan)

    torch.set_anomaly_enabled = disabled


def _use_own_statistics(model: Any) -> None:
    """Make SyncBatchNorm layers compute statistics per rank, as BatchNorm does.

    The layers keep their parameters, because an optimizer may already hold them.
    """
    from torch import nn

    class BatchNorm(nn.modules.batchnorm._BatchNorm):
        def _check_input_dim(self, input: Any) -> None:  # noqa: A002 (torch's name)
            pass

    for layer in model.modules():
        if isinstance(layer, nn.SyncBatchNorm):
            layer.__class__ = BatchNorm  # type: ignore[assignment]


def _use_sparse_gradients(model: Any) -> None:
    """Make the embeddings compute sparse gradients. DDP checks at construction which embeddings do this."""
    from torch import nn

    for layer in model.modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            layer.sparse = True


def _registers_nothing(*_: Any, **__: Any) -> None:
    """Replace the methods that register comm hooks; do nothing."""


def _constructor_with_hook(original: Callable[..., None], name: str) -> Callable[..., None]:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        original(self, *args, **kwargs)
        self.register_comm_hook(self.process_group, getattr(default_hooks, name))

    return init


def _forward_in_turn(original: Callable[..., Any], num_passes: int) -> Callable[..., Any]:
    """Wrap ``forward`` so that only every `num_passes`-th backward pass of a module reduces gradients."""
    begun: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if self.training and sys.modules["torch"].is_grad_enabled():
            begun[self] = begun.get(self, 0) + 1
            self.require_backward_grad_sync = begun[self] % num_passes == 0
        return original(self, *inputs, **kwargs)

    return forward


def _change_loaders(arguments: Mapping[str, Any]) -> None:
    """Apply `arguments` to each loader before its first pass. Scripts may construct loaders before DDP modules."""
    from torch.utils.data import DataLoader

    begin = DataLoader.__iter__
    if getattr(begin, _CHANGES, False):
        return

    @functools.wraps(begin)
    def changed(self: DataLoader[Any]) -> Any:
        if self._iterator is None:
            for name, value in arguments.items():
                object.__setattr__(self, name, value)  # the loader's own `__setattr__` refuses changes
            if self.num_workers > 0 and self.prefetch_factor is None:
                object.__setattr__(self, "prefetch_factor", 2)  # torch's default
        return begin(self)

    setattr(changed, _CHANGES, True)
    DataLoader.__iter__ = changed  # type: ignore[method-assign]


_CHANGES = "_ddpprof_changes_the_loader"


def _init_helper(original: Callable[..., Any]) -> Callable[..., Any]:
    def init_helper(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.reducer._remove_autograd_hooks()
        setattr(self, _AWAY, True)

    return init_helper


def _forward_without_ddp(original: Callable[..., Any], distributed: ModuleType) -> Callable[..., Any]:
    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if not getattr(self, _AWAY, False):
            return original(self, *inputs, **kwargs)
        if self.device_ids and (inputs or kwargs):
            device = distributed.torch.device(self.device_type, self.device_ids[0])
            moved, named = distributed._to_kwargs(inputs, kwargs, device, self.use_side_stream_for_tensor_copies)
            inputs, kwargs = moved[0], named[0]
        return self.module(*inputs, **kwargs)

    return forward
