"""One DDP module under observation: its backward passes, with ready times of parameters and times of buckets."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel

from ddpprof.model import DETAILED_MODES, BackwardPass, DdpModule, Replica, StepMode
from ddpprof.record.buckets import ReducerTimer, TimingProcessGroup
from ddpprof.record.ddp_facts import bucket_layout, module_facts, torch_times, unused_indices
from ddpprof.record.reducer import reducer_parameters
from ddpprof.record.replicas import ReplicaNotes

_TORCH_SAMPLES_EVERY = 100
"""DDP's default, by which it takes its own times in every hundredth iteration"""
_NEVER = 1 << 30


@dataclass(frozen=True, slots=True)
class OpenForward:
    """A forward that has not ended yet."""

    start_ns: int
    inner_start_ns: int
    """end of DDP's own work before the module's forward"""
    buffer_sync_ns: int
    rebuild_ns: int


class RecordedModule:
    def __init__(self, ddp: DistributedDataParallel, index: int) -> None:
        self.ddp = ddp
        self.index = index
        self.open_forwards: list[OpenForward] = []
        self.buffer_sync_ns = 0
        self.synchronised = False
        """True if a forward of the current step was to be followed by a synchronised backward pass"""
        self.times: ReducerTimer | None = None
        self._passes: list[BackwardPass] = []
        self._of_reducer = reducer_parameters(ddp)
        self._origin_ns = 0
        self._adds_up = False
        self._stats: list[int] | None = None
        """reducer's statistics when the current pass began; ``None`` in steps that are not recorded"""
        self._accumulated = _Accumulated(self._of_reducer.parameters)
        if ddp.device_type != "cpu":
            self._accumulated.note(self._searches())
        self._unused: set[int] | None = None
        self._num_searched = self._num_lacking = 0
        self.replica = ReplicaNotes(self._of_reducer.parameters)
        self._gradient: tuple[int, int] | None = None
        self._num_backwards: int | None = None
        """number since the last forward; ``None`` if its backward pass is not to be reduced"""
        self._num_unreduced = 0
        self._call = 0
        self._group: TimingProcessGroup | None = None
        self._group_installed = False
        self._samples_every = (_TORCH_SAMPLES_EVERY, id(ddp.reducer))

    @property
    def num_parameters(self) -> int:
        return len(self._of_reducer.names)

    def synchronising_forward_is_over(self, end_ns: int) -> None:
        """Close the previous pass, if any. The reducer's times count from `end_ns`.

        Several forwards may share one backward pass, whose times then count from the last of them.
        """
        self._close_pass()
        self.synchronised = True
        self._origin_ns = end_ns
        self._accumulated.begin_backward()
        self._adds_up = any(parameter.grad is not None for parameter in self._of_reducer.parameters[:1])
        self._num_backwards = 0
        if self.times is not None:
            self.times.begin_backward()

    def accumulating_forward_is_over(self) -> None:
        """Note that a forward under ``no_sync()`` is over."""
        self._num_backwards = None

    def backward_begins(self) -> None:
        """Note a call of ``backward``, which need not reach this module."""
        self._gradient = _state_of_gradient(self._of_reducer.parameters)

    def backward_is_over(self, call: int) -> None:
        """Note the end of a backward pass. The reducer handles one per forward; more only add to local gradients.

        `call`: number of the call of ``backward`` in the step.
        """
        if self._num_backwards is None or _state_of_gradient(self._of_reducer.parameters) == self._gradient:
            return
        self._call = call
        self._num_backwards += 1
        self._num_unreduced += self._num_backwards > 1

    def begin_step(self, mode: StepMode) -> None:
        """Begin a step. Call this between steps, when no collective is in flight."""
        recorded, light = mode in DETAILED_MODES, mode is StepMode.LIGHT
        self.synchronised = False
        self.open_forwards.clear()
        self._passes, self._call = [], 0
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
        """Return the number of elements of each bucket, in the order of the buckets."""
        parameters = self._of_reducer.parameters
        layout = bucket_layout(self.ddp, self._of_reducer)
        return tuple(sum(parameters[i].numel() for i in bucket) for bucket in layout)

    def _layout_is_final(self) -> bool:
        """Return whether DDP keeps its buckets: it rebuilds them at its second forward, unless it always searches."""
        searches = self.ddp.find_unused_parameters and not self.ddp.static_graph
        return searches or bool(getattr(self.ddp, "_has_rebuilt_buckets", True))

    def _time_all_reduces(self, on: bool) -> None:
        """Put the timing process group into the reducer, or restore the real one."""
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
        """Set how often DDP takes its own times: in every profiled step; never on an accelerator, which it awaits."""
        wanted = (every, id(self.ddp.reducer))  # `ddp_variants` replaces the reducer
        if wanted != self._samples_every:
            self.ddp._set_ddp_runtime_logging_sample_rate(every)
            self._samples_every = wanted

    def passes(self) -> list[BackwardPass]:
        """Close the current pass, and return all passes of the step."""
        self._close_pass()
        return self._passes

    def _close_pass(self) -> None:
        """Note the synchronised backward pass that is over, if gradients came since the last one."""
        before = self._stats
        if before is None or not self.synchronised:
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
        """Return DDP's own times of the iteration before the current one."""
        return torch_times(self.ddp) if self._samples_every[0] == 1 else {}

    def _look_for_unused(self) -> None:
        """Note which parameters got no gradient in the pass that is over.

        Without the search for unused parameters, torch refuses a pass that lacks a gradient. Torch knows the order of
        gradients in each iteration on CPU, but only in few on an accelerator.
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
        """Return whether torch permits parameters without gradient."""
        return bool(self.ddp.find_unused_parameters or self.ddp.static_graph)

    def note_unreduced(self, complaint: str) -> None:
        """Note the missing gradients for which DDP is about to raise; it only gives their indices."""
        listed = re.search(r"did not receive grad for rank \d+:((?: \d+)+)", complaint)
        if listed:
            self._unused = {int(word) for word in listed.group(1).split()}
            self._num_searched = self._num_lacking = 1

    def describe(self) -> DdpModule:
        unused = None if self._unused is None else self._unused - self._accumulated.ever
        return module_facts(self.ddp, self._of_reducer, unused, self._num_searched, self._num_lacking)

    def compared_replica(self) -> Replica | None:
        """Return the replica's values; ``None`` if there is nothing to compare with other ranks."""
        return self.replica.compared(self.index, self._num_unreduced)


def _state_of_gradient(parameters: Sequence[Parameter]) -> tuple[int, int] | None:
    """Return a value that changes whenever a backward pass adds to the first parameter's gradient."""
    gradient = parameters[0].grad if parameters else None
    return None if gradient is None or gradient.is_sparse else (gradient.data_ptr(), gradient._version)


class _Accumulated:
    """Parameters that got a gradient in a backward pass, in the steps recorded in detail and the initial skipped ones.

    This is noted on accelerators, where DDP's logger keeps the order of gradients only for its first ten iterations and
    every hundredth one, and never for modules on several devices.

    Only half of the first steps are recorded lightly, and may never show branches that alternate between steps.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._parameters = parameters
        self._handles: list[Any] = []
        self._seen: set[int] = set()
        self.ever: set[int] = set()
        """indices of parameters that got a gradient in any noted pass"""

    @property
    def is_noted(self) -> bool:
        return bool(self._handles)

    def note(self, on: bool) -> None:
        """Turn noting on or off. Call this between two steps."""
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
        seen, ever = self._seen, self.ever  # the parameter keeps the hook, so the hook must not keep the parameters

        def note(_parameter: Tensor) -> None:
            seen.add(index)
            ever.add(index)

        return note

    def begin_backward(self) -> None:
        self._seen.clear()

    def lacking(self) -> set[int]:
        """Return the indices of parameters without gradient since `begin_backward`."""
        return set(range(len(self._parameters))) - self._seen
