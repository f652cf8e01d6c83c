"""What happens inside the current step: forwards, optimizer steps, waiting for data. Collected here, not judged."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpprof.record.data_parallel import DataParallelNotes
from ddpprof.record.device import TrainingDevice, devices_of
from ddpprof.record.feeding import Feeding
from ddpprof.record.live import StepTimes
from ddpprof.record.memory import MemoryNotes
from ddpprof.record.modules import RecordedModule
from ddpprof.record.rpc import RpcNotes
from ddpprof.record.schedule import RECORDING, Mode
from ddpprof.record.surroundings import Surroundings


class StepNotes:
    def __init__(self) -> None:
        self.modules: list[RecordedModule] = []
        self.surroundings = Surroundings()
        self.feeding = Feeding()
        self.data_parallel = DataParallelNotes()
        self.memory = MemoryNotes()
        self.device = TrainingDevice()
        self.rpc = RpcNotes()
        self.recording = False
        self.live = False
        """the inside of every step is noted, whatever its mode"""
        self._forwards: list[list[Any]] = []
        self._optimizers: list[list[int]] = []
        self._optimizer_start_ns = 0
        self._facts_of_released: dict[str, Any] | None = None

    def find(self, ddp: Any) -> RecordedModule | None:
        for module in self.modules:
            if module.ddp is ddp:
                return module
        return None

    def module(self, ddp: DistributedDataParallel) -> RecordedModule:
        """The module's notes, begun if it is new."""
        module = self.find(ddp)
        if module is None:
            module = RecordedModule(ddp, len(self.modules))
            self.modules.append(module)
            self.memory.owns({parameter.device for parameter in ddp.parameters()})
            self.device.found(devices_of(ddp))
        return module

    def data_parallel_module(self, model: torch.nn.DataParallel[Any]) -> None:
        """A forward of it begins."""
        devices = [torch.device("cuda", device) for device in model.device_ids]
        self.memory.owns(devices)
        self.device.found(devices)
        self.data_parallel.forward_begins(model)

    def recording_begins(self, step: int) -> None:
        """With step number `step`."""
        for module in self.modules:
            module.replica.recording_begins(step)

    def recording_ends(self, step: int) -> None:
        """Before step number `step`, on every rank that comes so far."""
        for module in self.modules:
            module.replica.recording_ends(step)

    def begin_step(self, mode: Mode) -> None:
        """Between two steps, when no collective is under way."""
        self.recording = self.live or mode in RECORDING
        for module in self.modules:
            module.begin_step(mode)

    def end_step(self) -> None:
        """Forget the step."""
        self._forwards, self._optimizers = [], []
        self.rpc.end_step()
        self.feeding.end_step()

    def pre_forward_is_over(self, ddp: DistributedDataParallel, start_ns: int, had_rebuilt: bool) -> None:
        """DDP's own work before the module's forward took from `start_ns` to now."""
        module = self.module(ddp)
        end, sync = time.time_ns(), module.buffer_sync_ns
        module.buffer_sync_ns = 0
        rebuild = end - start_ns - sync if not had_rebuilt and ddp._has_rebuilt_buckets else 0
        module.open_forwards.append([module.index, start_ns, end, 0, 0, sync, rebuild, False, False])

    def forward_is_over(self, ddp: DistributedDataParallel, inner_end_ns: int) -> None:
        """The module's forward ended at `inner_end_ns`, DDP's work after it now."""
        module = self.find(ddp)
        if module is None or not module.open_forwards:
            return
        forward = module.open_forwards.pop()
        synchronises = torch.is_grad_enabled() and ddp.require_backward_grad_sync
        forward[3:5] = [inner_end_ns, time.time_ns()]
        forward[7:] = [synchronises, torch.is_grad_enabled()]
        self._forwards.append(forward)
        if synchronises:
            module.synchronising_forward_is_over(inner_end_ns)
        elif torch.is_grad_enabled():
            module.accumulating_forward_is_over()

    def buffers_synchronised(self, ddp: DistributedDataParallel, took_ns: int) -> None:
        self.module(ddp).buffer_sync_ns += took_ns

    def backward_begins(self) -> None:
        for module in self.modules:
            module.backward_begins()

    def backward_is_over(self) -> None:
        for module in self.modules:
            module.backward_is_over()

    def optimizer_begins(self) -> None:
        self._optimizer_start_ns = time.time_ns()

    def optimizer_ends(self) -> None:
        self._optimizers.append([self._optimizer_start_ns, time.time_ns()])

    def closure_begins(self) -> None:
        """The optimizer asks for the loss and its gradients: what follows is not its own work."""
        self.optimizer_ends()

    def closure_ends(self) -> None:
        self.optimizer_begins()

    def fields(self, number: int, mode: Mode) -> dict[str, Any]:
        """The step's line in ``steps.jsonl``, but for its start and end."""
        fields: dict[str, Any] = {"number": number, "mode": mode.value}
        if mode not in RECORDING:
            return fields
        fields["data_ns"] = self.feeding.data_ns
        fields["forwards"] = self._forwards
        fields["optimizers"] = self._optimizers
        passes = (one for module in self.modules for one in module.passes())
        fields["passes"] = sorted(passes, key=lambda one: one[1])
        fields["torch_stats"] = {str(m.index): times for m in self.modules if (times := m.torch_times())}
        fields["memory"] = self.memory.sample()
        return {**fields, **self.rpc.fields()}

    def times(self, number: int, start_ns: int, end_ns: int) -> StepTimes:
        """Of the step that has just ended."""
        return StepTimes(
            number,
            start_ns,
            end_ns,
            forwards=tuple((forward[1], forward[4]) for forward in self._forwards),
            optimizers=tuple((start, end) for start, end in self._optimizers),
            data_ns=self.feeding.data_ns,
            of_launches=self.device.is_accelerator,
        )

    def release_modules(self) -> None:
        """Keep what is known of the modules, not the modules: they may be large, and the user may be done with them."""
        self._facts_of_released = self._facts_of_modules()
        self.modules = []

    def facts(self) -> dict[str, Any]:
        facts = {**self._facts_of_modules(), "memory": self.memory.facts(), **self.surroundings.facts()}
        return {**facts, **self.feeding.facts(), **self.data_parallel.facts()}

    def _facts_of_modules(self) -> dict[str, Any]:
        if self._facts_of_released is not None:
            return self._facts_of_released
        return {
            "modules": [module.facts() for module in self.modules],
            "replicas": [facts for module in self.modules for facts in module.replica_facts()],
        }
