"""One DDP module under observation: its parameters' ready times, its buckets' times, its unused parameters."""

from __future__ import annotations

import re
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from ddpprof.record import facts
from ddpprof.record.buckets import BucketTimes, TimingProcessGroup

_TORCH_SAMPLES_EVERY = 100
"""DDP's default: its own times are taken in one iteration of a hundred."""


class RecordedModule:
    def __init__(self, ddp: DistributedDataParallel, index: int) -> None:
        self.ddp = ddp
        self.index = index
        self.open_forwards: list[list[Any]] = []
        self.buffer_sync_ns = 0
        self.synchronised = False
        self.times: BucketTimes | None = None
        self._of_reducer = facts.reducer_parameters(ddp)
        self._backward_start_ns = 0
        self._unused: set[int] | None = None
        self._group: TimingProcessGroup | None = None
        self._group_installed = False
        self._sampling = False

    def begin_backward(self, start_ns: int) -> None:
        self.synchronised = True
        self._backward_start_ns = start_ns
        if self.times is not None:
            self.times.begin_backward()

    def begin_step(self, light: bool, profiled: bool) -> None:
        """Between steps, when no collective is under way."""
        self.synchronised = False
        self.open_forwards.clear()
        if self.ddp.device_type != "cpu":
            return
        if light and self.times is None and self._layout_is_final():
            parameters = self._of_reducer.parameters
            layout = facts.bucket_layout(self.ddp, parameters)
            self.times = BucketTimes([sum(parameters[i].numel() for i in bucket) for bucket in layout])
        timed = self.times is not None and self.times.begin_step(light)
        self._time_all_reduces(timed and not getattr(self.ddp, "_comm_hooks", None))
        self._let_torch_sample(profiled)

    def _layout_is_final(self) -> bool:
        """DDP rebuilds its buckets at its second forward, unless it must search for unused parameters every time."""
        searches = self.ddp.find_unused_parameters and not self.ddp.static_graph
        return searches or bool(getattr(self.ddp, "_has_rebuilt_buckets", True))

    def _time_all_reduces(self, on: bool) -> None:
        """Put the timing process group into the reducer, or the real one back."""
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

    def _let_torch_sample(self, on: bool) -> None:
        """DDP's own times in every profiled step. On an accelerator that would make the host wait, so not there."""
        if on != self._sampling:
            self.ddp._set_ddp_runtime_logging_sample_rate(1 if on else _TORCH_SAMPLES_EVERY)
            self._sampling = on

    def ready_ns(self) -> list[int | None]:
        """When each gradient was accumulated, since 1970. The reducer counts from the end of the forward."""
        stats = self.ddp.reducer.get_backward_stats()
        start = self._backward_start_ns
        return [start + offset if offset > 0 else None for offset in stats]

    def bucket_rows(self) -> list[list[int | None]]:
        times = self.times
        if times is None or not times.recording:
            return []
        finished = dict(times.finished_ns)
        return [[self.index, i, launched, finished.get(i)] for i, launched in sorted(times.launched_ns.items())]

    def torch_times(self) -> dict[str, int]:
        """DDP's own times of the iteration before the current one."""
        return facts.torch_times(self.ddp) if self._sampling else {}

    def look_for_unused(self) -> None:
        if self.synchronised:
            unused = set(facts.unused_indices(self.ddp, len(self._of_reducer.names)))
            self._unused = unused if self._unused is None else self._unused & unused

    def note_unreduced(self, complaint: str) -> None:
        """DDP is about to raise because gradients are missing; it says which, but only by index."""
        listed = re.search(r"did not receive grad for rank \d+:((?: \d+)+)", complaint)
        if listed:
            self._unused = {int(word) for word in listed.group(1).split()}

    def facts(self) -> dict[str, Any]:
        return facts.module_facts(self.ddp, self._of_reducer, self._unused)
