"""Record one DDP module: its settings and parameters, and the gradients and buckets of its backward passes."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ddpprof.model import (
    DETAILED_MODES,
    BackwardPass,
    BucketTimes,
    DataParallelModule,
    DdpModule,
    Parameter,
    StepMode,
)
from ddpprof.model.record import TORCH_TIMES
from ddpprof.record.consistency import ReplicaNotes
from ddpprof.record.ddp_construction import ReducerParameters, reducer_parameters

_FINISHES_PER_PASS = 4
_MOST_ROWS = 4096
"""maximum number of an embedding's rows that are read"""
_LAUNCHES_PER_STEP = 10
"""maximum number of bucket launches that are timed per step, on average; if a module has more buckets, only some light
steps are timed
"""


class ReducerTimer:
    """Records when the buckets of one DDP module are launched and finished in the current backward pass."""

    def __init__(self, bucket_numels: list[int]) -> None:
        self._numels = bucket_numels
        self._next = 0
        self._offset = 0
        self._step = 0
        self._every = -(-len(bucket_numels) // _LAUNCHES_PER_STEP) or 1
        self.recording = False
        self.launched_ns: dict[int, int] = {}
        self.finished_ns: dict[int, int] = {}

    def begin_step(self, light: bool) -> bool:
        """Begin a step. Return True if its buckets are timed."""
        self.recording = light and self._step % self._every == 0
        self._step += light
        self.begin_backward()
        return self.recording

    def begin_backward(self) -> None:
        """Restart at bucket 0, as the reducer does."""
        self._next = 0
        self._offset += _FINISHES_PER_PASS if self.launched_ns else 0
        self.launched_ns = {}
        self.finished_ns = {}

    def times(self) -> tuple[BucketTimes, ...]:
        """Return the launch and finish time of each timed bucket, sorted by index."""
        if not self.recording:
            return ()
        finished = dict(self.finished_ns)
        launched = sorted(self.launched_ns.items())
        return tuple(BucketTimes(index, launched_ns, finished.get(index)) for index, launched_ns in launched)

    def index_of(self, numel: int) -> int | None:
        """Return the index of the bucket that the reducer is launching; ``None`` if no bucket has `numel` elements.

        The reducer launches buckets in index order, and may skip some.
        """
        for index in range(self._next, len(self._numels)):
            if self._numels[index] == numel:
                self._next = index + 1
                return index
        return None

    def launched(self, index: int | None, now_ns: int, future: Callable[[], torch.futures.Future[Any]]) -> None:
        """Record that a bucket's collective was launched at `now_ns`. `future`: returns the collective's future.

        An error in this method ends the timing, but not the backward pass.
        """
        if index is None:
            return
        try:
            self.launched_ns[index] = now_ns
            if (index - self._offset) % len(self._numels) < _FINISHES_PER_PASS:
                finished = self.finished_ns
                future().add_done_callback(lambda _: finished.__setitem__(index, time.time_ns()))
        except Exception:
            self.recording = False


class TimingProcessGroup(dist.ProcessGroup):
    """Replaces the reducer's process group during light recording.

    It forwards every all-reduce to the real group, so results do not change. Its backend name must not be ``gloo`` or
    ``nccl``, because DDP's C++ logger would cast this object to their classes.
    """

    def __init__(self, real: dist.ProcessGroup, times: ReducerTimer) -> None:
        super().__init__(real.rank(), real.size())  # type: ignore[call-arg]  # missing in torch's stub
        self._real_allreduce = real.allreduce
        self._real_broadcast = real.broadcast
        self._times = times

    def getBackendName(self) -> str:  # noqa: N802 (torch's name)
        return "ddpprof"

    def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> Any:  # type: ignore[override]  # as C++ calls it
        now = time.time_ns()
        work = self._real_allreduce(tensors, options)
        self._times.launched(self._times.index_of(tensors[0].numel()), now, work.get_future)
        return work

    def broadcast(self, tensors: list[torch.Tensor], options: Any = None) -> Any:  # type: ignore[override]
        """Forward a broadcast. The reducer broadcasts the new layout when it rebuilds its buckets."""
        return self._real_broadcast(tensors, options)


@dataclass(slots=True)
class PassCounts:
    """Counts backward passes: those whose gradients an optimizer used, and those whose gradients were discarded."""

    num_pending: int = 0
    """number of passes whose gradients have neither been used nor discarded yet"""
    num_used: int = 0
    num_discarded: int = 0

    def gradients_are_used(self) -> None:
        self.num_used += self.num_pending
        self.num_pending = 0

    def gradients_are_gone(self) -> None:
        self.num_discarded += self.num_pending
        self.num_pending = 0


_SETTINGS = {
    "find_unused_parameters": False,
    "gradient_as_bucket_view": False,
    "static_graph": False,
    "batched_grad_copy": False,
    "skip_all_reduce_unused_params": False,
    "require_backward_grad_sync": True,
}
"""attribute of DDP → value that is assumed if this version of PyTorch lacks the attribute"""


def ddp_settings(ddp: DistributedDataParallel) -> dict[str, Any]:
    """Return the constructor arguments that are in effect in `ddp`."""
    settings: dict[str, Any] = {name: getattr(ddp, name, absent) for name, absent in _SETTINGS.items()}
    settings["bucket_cap_mb"] = ddp.bucket_bytes_cap / 2**20
    settings["broadcast_buffers"] = bool(getattr(ddp, "forward_sync_buffers", ddp.broadcast_buffers))
    config = getattr(ddp, "_bucket_config", None)
    if config is not None and config.has_custom_per_bucket_caps:
        settings["has_bucket_cap_mb_list"] = True
        settings["bucket_cap_mb_list"] = [cap / 2**20 for cap in config.per_bucket_bytes_caps]
    return settings


def _indices_in(text: str) -> list[int]:
    return [int(word) for word in text.replace(",", " ").split()]


def bucket_layout(ddp: DistributedDataParallel, of_reducer: ReducerParameters) -> list[list[int]]:
    """Return the parameter indices of each of the reducer's current buckets.

    After the buckets are rebuilt, the indices come from torch's DDP logging data. Before that, or if DDP never rebuilds
    its buckets (``find_unused_parameters``), the assignment is computed as in DDP's constructor.
    """
    logged = ddp._get_ddp_logging_data()
    rebuilt = logged.get("rebuilt_per_bucket_param_indices")
    if rebuilt:
        return [_indices_in(bucket) for bucket in rebuilt.split(",")]
    config = getattr(ddp, "_bucket_config", None)
    if config is not None:
        limits, _ = config.compute_bucket_size_limits(
            static_graph=ddp.static_graph, find_unused_parameters=ddp.find_unused_parameters
        )
    elif ddp.static_graph or not ddp.find_unused_parameters:
        limits = [sys.maxsize]
    else:
        limits = [dist._DEFAULT_FIRST_BUCKET_BYTES, ddp.bucket_bytes_cap]
    parameters = list[torch.Tensor](of_reducer.parameters)
    assignment, _ = dist._compute_bucket_assignment_by_size(parameters, limits, of_reducer.expect_sparse)
    return [list(bucket) for bucket in reversed(assignment)]


def unused_indices(ddp: DistributedDataParallel, num_parameters: int) -> set[int] | None:
    """Return the indices of parameters without a gradient in the last synchronized backward pass.

    Returns ``None`` if torch does not report the order of gradients. It reports this order only for modules on CPU.
    """
    order = ddp._get_ddp_logging_data().get("prev_iteration_grad_ready_order_indices")
    if order is None:
        return None
    if order.count(",") == num_parameters - 1:
        return set()
    return set(range(num_parameters)).difference(_indices_in(order))


def torch_times(ddp: DistributedDataParallel) -> dict[str, int]:
    """Return the times in ns that DDP itself measured in the last synchronized iteration, by name."""
    logged = ddp._get_ddp_logging_data()
    return {name: logged[name] for name in TORCH_TIMES if logged.get(name, 0) > 0}


def _kind_of(parameter: torch.nn.Parameter) -> tuple[str, tuple[int, ...]]:
    return str(parameter.dtype).removeprefix("torch."), tuple(parameter.shape)


def module_facts(
    ddp: DistributedDataParallel,
    of_reducer: ReducerParameters,
    unused: set[int] | None,
    num_searched: int,
    num_lacking: int,
    used_rows: Mapping[int, float],
    passes: PassCounts,
) -> DdpModule:
    """Return a description of one DDP module.

    `unused`: indices of the parameters without a gradient in all `num_searched` examined backward passes.
    `num_lacking`: number of examined passes in which at least one parameter had no gradient.
    `used_rows`: `Parameter.used_rows` of embeddings, by index.
    `passes`: number of backward passes with used gradients, and with discarded gradients.
    """
    batch_norms = [module for module in ddp.module.modules() if isinstance(module, _BatchNorm)]
    of_batch_norms = {id(buffer) for module in batch_norms for buffer in module.buffers(recurse=False)}
    largest = max(ddp.modules_buffers, key=lambda buffer: buffer.nbytes, default=None)
    names = {id(buffer): name for name, buffer in ddp.module.named_buffers()}
    hooks = getattr(ddp, "_comm_hooks", [])
    static = getattr(ddp.reducer, "_ddp_graph_static", None)
    return DdpModule(
        name=type(ddp.module).__name__,
        settings=ddp_settings(ddp),
        comm_hook=getattr(hooks[0][0], "__qualname__", repr(hooks[0][0])) if hooks else None,
        parameters=tuple(
            Parameter(name, parameter.nbytes, *_kind_of(parameter), sparse, used_rows.get(index))
            for index, (name, parameter, sparse) in enumerate(zip(*of_reducer, strict=True))
        ),
        buckets=tuple(map(tuple, bucket_layout(ddp, of_reducer))),
        num_buffers=len(ddp.modules_buffers),
        buffer_bytes=sum(buffer.numel() * buffer.element_size() for buffer in ddp.modules_buffers),
        num_batch_norms=len(batch_norms),
        num_buffers_of_batch_norms=sum(id(buffer) in of_batch_norms for buffer in ddp.modules_buffers),
        largest_buffer=None if largest is None else names.get(id(largest)),
        largest_buffer_bytes=0 if largest is None else largest.nbytes,
        unused=None if unused is None else tuple(of_reducer.names[index] for index in sorted(unused)),
        graph_is_static=bool(static()) if static is not None else None,
        num_searched_passes=num_searched,
        num_lacking_passes=num_lacking,
        num_used_passes=passes.num_used,
        num_discarded_passes=passes.num_discarded,
    )


def data_parallel_facts(model: torch.nn.DataParallel[Any]) -> DataParallelModule:
    """Return a description of one `nn.DataParallel` module."""
    parameters = list(model.module.parameters())
    return DataParallelModule(
        name=type(model.module).__name__,
        device_ids=tuple(int(device) for device in model.device_ids),
        num_parameters=len(parameters),
        parameter_bytes=sum(parameter.numel() * parameter.element_size() for parameter in parameters),
    )


_TORCH_SAMPLES_EVERY = 100
"""by default, DDP measures its own times in every iteration whose number is a multiple of this"""
_NEVER = 1 << 30


@dataclass(frozen=True, slots=True)
class OpenForward:
    """A forward pass that has not ended yet."""

    start_ns: int
    inner_start_ns: int
    """end of DDP's own work before it calls the module's forward pass"""
    buffer_sync_ns: int
    rebuild_ns: int


class RecordedModule:
    """Records the forward passes and backward passes of one DDP module."""

    def __init__(self, ddp: DistributedDataParallel, index: int) -> None:
        self.ddp = ddp
        self.index = index
        self.open_forwards: list[OpenForward] = []
        self.buffer_sync_ns = 0
        self.synchronized = False
        """True if a forward pass ran outside ``no_sync()`` in the current step; a backward pass then reduces gradients
        """
        self.times: ReducerTimer | None = None
        self._passes: list[BackwardPass] = []
        self._of_reducer = reducer_parameters(ddp)
        self._origin_ns = 0
        self._adds_up = False
        self._stats: list[int] | None = None
        """statistics that the reducer had when the current pass began; ``None`` in steps that are not recorded"""
        self._accumulated = _Accumulated(self._of_reducer.parameters)
        if ddp.device_type != "cpu":
            self._accumulated.note(self._searches())
        self._unused: set[int] | None = None
        self._num_searched = self._num_lacking = 0
        self._embeddings = _embeddings_of(ddp, self._of_reducer.parameters)
        self._used_rows: dict[int, float] = {}
        self._counts = PassCounts()
        self.replica = ReplicaNotes(self._of_reducer.parameters)
        self._gradient: tuple[int, int] | None = None
        self._num_backwards: int | None = None
        """number of backward passes since the last forward pass; ``None`` if the last forward pass ran under
        ``no_sync()``
        """
        self.num_unreduced = 0
        self._call = 0
        self._group: TimingProcessGroup | None = None
        self._group_installed = False
        self._samples_every = (_TORCH_SAMPLES_EVERY, id(ddp.reducer))

    @property
    def num_parameters(self) -> int:
        return len(self._of_reducer.names)

    def synchronizing_forward_is_over(self, end_ns: int) -> None:
        """Record the end of a forward pass outside ``no_sync()``, and close the previous backward pass, if any.

        The reducer's times are relative to `end_ns`. If several forward passes share one backward pass, the times are
        relative to the end of the last forward pass.
        """
        self._close_pass()
        self.synchronized = True
        self._origin_ns = end_ns
        self._accumulated.begin_backward()
        self._adds_up = any(parameter.grad is not None for parameter in self._of_reducer.parameters[:1])
        if not self._adds_up:
            self._counts.gradients_are_gone()
        self._num_backwards = 0
        if self.times is not None:
            self.times.begin_backward()

    def accumulating_forward_is_over(self) -> None:
        """Record the end of a forward pass under ``no_sync()``."""
        self._num_backwards = None

    def backward_begins(self) -> None:
        """Record the start of a backward pass, which does not necessarily go through this module."""
        self._gradient = _state_of_gradient(self._of_reducer.parameters)

    def backward_is_over(self, call: int) -> None:
        """Record the end of a backward pass.

        The reducer averages gradients in only one backward pass per forward pass. Further passes only accumulate
        locally.
        """
        if self._num_backwards is None or _state_of_gradient(self._of_reducer.parameters) == self._gradient:
            return
        self._call = call
        self._num_backwards += 1
        self.num_unreduced += self._num_backwards > 1
        self._counts.num_pending += self._num_backwards == 1

    def begin_step(self, mode: StepMode) -> None:
        """Begin a step. Call this between steps, when no collective is in flight."""
        recorded, light = mode in DETAILED_MODES, mode is StepMode.LIGHT
        self.synchronized = False
        self.open_forwards.clear()
        self._passes, self._call = [], 0
        if not recorded:
            self._counts.num_pending = 0  # no events come in these steps
        self._stats = self.ddp.reducer.get_backward_stats() if recorded else None
        if self.ddp.device_type != "cpu":
            self._accumulated.note(recorded and self._searches())
            self._let_torch_sample(_TORCH_SAMPLES_EVERY if mode is StepMode.DONE else _NEVER)
            return
        if light and self.times is None and self._layout_is_final():
            self.times = ReducerTimer(list(self.bucket_numels()))
        timed = self.times is not None and self.times.begin_step(light)
        self._time_all_reduces(timed and not getattr(self.ddp, "_comm_hooks", None))
        self._let_torch_sample(1 if mode is StepMode.PROFILED else _TORCH_SAMPLES_EVERY)

    def bucket_numels(self) -> tuple[int, ...]:
        """Return the number of elements of each bucket, in bucket order."""
        parameters = self._of_reducer.parameters
        layout = bucket_layout(self.ddp, self._of_reducer)
        return tuple(sum(parameters[i].numel() for i in bucket) for bucket in layout)

    def _layout_is_final(self) -> bool:
        """Return True if DDP will not rebuild its buckets again.

        DDP rebuilds them at its second forward pass, unless it searches for unused parameters.
        """
        searches = self.ddp.find_unused_parameters and not self.ddp.static_graph
        return searches or bool(getattr(self.ddp, "_has_rebuilt_buckets", True))

    def _time_all_reduces(self, on: bool) -> None:
        """Install the timing process group in the reducer, or restore the real process group."""
        if on == self._group_installed or not hasattr(self.ddp.reducer, "_update_process_group"):
            return
        if on and self._group is None:
            assert self.times is not None
            assert self.ddp.process_group is not None
            self._group = TimingProcessGroup(self.ddp.process_group, self.times)
        group = self._group if on else self.ddp.process_group
        assert group is not None
        self.ddp.reducer._update_process_group(group)
        self._group_installed = on

    def _let_torch_sample(self, every: int) -> None:
        """Make DDP measure its times once in `every` iterations. On an accelerator, this waits for the device."""
        wanted = (every, id(self.ddp.reducer))  # `ddp_variants` replaces the reducer
        if wanted != self._samples_every:
            self.ddp._set_ddp_runtime_logging_sample_rate(every)
            self._samples_every = wanted

    def passes(self) -> list[BackwardPass]:
        """Close the current backward pass, and return all backward passes of the step."""
        self._close_pass()
        return self._passes

    def _close_pass(self) -> None:
        """Record the synchronized backward pass that has ended, if gradients were computed since the previous pass."""
        before = self._stats
        if before is None or not self.synchronized:
            return
        self._stats = self.ddp.reducer.get_backward_stats()
        if self._stats == before:
            return
        origin = self._origin_ns
        ready = tuple(origin + now if now != was else None for now, was in zip(self._stats, before, strict=True))
        buckets = () if self.times is None else self.times.times()
        self._passes.append(BackwardPass(self.index, origin, ready, buckets, self._adds_up, self._call))
        self._look_for_unused()

    def torch_times(self) -> dict[str, int]:
        """Return the times in ns that DDP itself measured in the previous iteration, by name."""
        return torch_times(self.ddp) if self._samples_every[0] == 1 else {}

    def _look_for_unused(self) -> None:
        """Record which parameters received no gradient in the backward pass that has ended.

        Unless DDP searches for unused parameters, torch raises an error if a gradient is missing. Torch logs the order
        of gradients in each iteration on CPU, but only in a few iterations on an accelerator.
        """
        num_parameters = len(self._of_reducer.names)
        unused: set[int] | None = None
        if not self._searches():
            unused = set()
        elif self.ddp.device_type == "cpu":
            unused = unused_indices(self.ddp, num_parameters)
        elif self._accumulated.is_noted:
            unused = self._accumulated.lacking()
        if unused is None:
            return
        self._unused = unused if self._unused is None else self._unused & unused
        self._num_searched += 1
        self._num_lacking += bool(unused)

    def _searches(self) -> bool:
        """Return True if DDP allows parameters without a gradient."""
        return bool(self.ddp.find_unused_parameters or self.ddp.static_graph)

    def note_unreduced(self, complaint: str) -> None:
        """Record the parameters without a gradient. DDP's error message `complaint` lists their indices."""
        listed = re.search(r"did not receive grad for rank \d+:((?: \d+)+)", complaint)
        if listed:
            self._unused = {int(word) for word in listed.group(1).split()}
            self._num_searched = self._num_lacking = 1

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        """Record that gradients are used, if the optimizer has the module's first parameter and its gradient exists."""
        self._note_used_rows()
        first = next(iter(self._of_reducer.parameters), None)
        if first is None or first.grad is None or not self._counts.num_pending:
            return
        if any(one is first for group in optimizer.param_groups for one in group["params"]):
            self._counts.gradients_are_used()

    def _note_used_rows(self) -> None:
        """Record, once, how many rows of each embedding have a gradient. Call this before the optimizer's step.

        On an accelerator, reading gradients would make the host wait.
        """
        if self._used_rows:
            return
        for index, parameter in self._embeddings.items():
            gradient = parameter.grad
            if gradient is not None and not gradient.is_sparse:
                self._used_rows[index] = float(_some_rows(gradient).any(dim=1).float().mean())

    def describe(self) -> DdpModule:
        unused = None if self._unused is None else self._unused - self._accumulated.ever
        facts = self.ddp, self._of_reducer, unused, self._num_searched, self._num_lacking
        return module_facts(*facts, self._used_rows, self._counts)


def _embeddings_of(ddp: DistributedDataParallel, parameters: Sequence[nn.Parameter]) -> dict[int, nn.Parameter]:
    """Return the weights of embeddings on CPU, by index in `parameters`."""
    if ddp.device_type != "cpu":
        return {}
    weights = {id(one.weight) for one in ddp.module.modules() if isinstance(one, nn.Embedding | nn.EmbeddingBag)}
    return {index: one for index, one in enumerate(parameters) if id(one) in weights}


def _some_rows(matrix: Tensor) -> Tensor:
    """Return all rows or, for a large matrix, some random rows. This does not change the script's random numbers."""
    if len(matrix) <= _MOST_ROWS:
        return matrix
    return matrix[torch.randint(len(matrix), (_MOST_ROWS,), generator=torch.Generator().manual_seed(0))]


def _state_of_gradient(parameters: Sequence[nn.Parameter]) -> tuple[int, int] | None:
    """Return a value that changes whenever a backward pass adds to the first parameter's gradient."""
    gradient = parameters[0].grad if parameters else None
    return None if gradient is None or gradient.is_sparse else (gradient.data_ptr(), gradient._version)


class _Accumulated:
    """Records which parameters receive a gradient in each backward pass.

    This is used on accelerators, where DDP's logger keeps the order of gradients only for the first ten iterations and
    every hundredth iteration, and never for modules on several devices.

    The initial skipped steps are included. Light recording alone is not enough: it covers only every second step, so if
    a model alternates between two branches, it could always miss the same branch.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._handles: list[Any] = []
        self._seen: set[int] = set()
        self.ever: set[int] = set()
        """indices of the parameters that have received a gradient in at least one recorded backward pass"""

    @property
    def is_noted(self) -> bool:
        return bool(self._handles)

    def note(self, on: bool) -> None:
        """Turn recording on or off. Call this between two steps."""
        if on == self.is_noted:
            return
        for handle in self._handles:
            handle.remove()
        self._handles = (
            [one.register_post_accumulate_grad_hook(self._noting(index)) for index, one in enumerate(self._parameters)]
            if on
            else []
        )

    def _noting(self, index: int) -> Callable[[Tensor], None]:
        seen, ever = self._seen, self.ever  # the hook must not refer to the parameters, which refer to it

        def note(_parameter: Tensor) -> None:
            seen.add(index)
            ever.add(index)

        return note

    def begin_backward(self) -> None:
        self._seen.clear()

    def lacking(self) -> set[int]:
        """Return the indices of parameters that have received no gradient since `begin_backward`."""
        return set(range(len(self._parameters))) - self._seen
