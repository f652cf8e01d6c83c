"""Events inside the current step: forwards, optimizer steps, waits for data. They are collected here, not judged."""

from __future__ import annotations

import time
import weakref
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpprof.model import DETAILED_MODES, DataParallelModule, Forward, RecordedStep, StepMode
from ddpprof.record.ddp_facts import data_parallel_facts
from ddpprof.record.device import TrainingDevice, devices_of
from ddpprof.record.environment import JobEnvironment
from ddpprof.record.feeding import Feeding
from ddpprof.record.memory import MemoryNotes
from ddpprof.record.modules import OpenForward, RecordedModule
from ddpprof.record.random_states import random_states
from ddpprof.record.reducer import unfrozen_parameters
from ddpprof.record.rpc import RpcNotes
from ddpprof.record.unaveraged import Unaveraged


class StepNotes:
    def __init__(self) -> None:
        self.modules: list[RecordedModule] = []
        self.environment = JobEnvironment()
        self.feeding = Feeding()
        self.memory = MemoryNotes()
        self.device = TrainingDevice()
        self.rpc = RpcNotes()
        self.unaveraged = Unaveraged(self.device)
        self.recording = False
        self._random_states: dict[str, int] = {}
        self._forwards: list[Forward] = []
        self._optimizers: list[tuple[int, int]] = []
        self._optimizer_start_ns = 0
        self._seen: list[weakref.ref[Any]] = []
        self._num_calls = 0
        """number of calls of ``backward`` in the step"""
        self._began_evaluation = False
        self._unfrozen: dict[str, None] = {}
        self._facts_of_released: dict[str, Any] | None = None
        self._data_parallel: dict[int, DataParallelModule] = {}
        self._data_parallel_device = "cpu"
        self.optimizer: weakref.ref[Any] | None = None
        """the optimizer that took the last of the first steps"""

    def find(self, ddp: Any) -> RecordedModule | None:
        for module in self.modules:
            if module.ddp is ddp:
                return module
        return None

    def module(self, ddp: DistributedDataParallel) -> RecordedModule:
        """Return the module's notes, created if it is new."""
        module = self.find(ddp)
        if module is None:
            module = RecordedModule(ddp, len(self.modules))
            self.modules.append(module)
            if all(seen() is not ddp for seen in self._seen):
                self._seen.append(weakref.ref(ddp))
                self.environment.averages_in(ddp.process_group)
            self.memory.owns({parameter.device for parameter in ddp.parameters()})
            self.device.found(devices_of(ddp))
        return module

    def bucket_numels(self) -> tuple[tuple[int, ...], ...]:
        """Return the number of elements of each bucket of each module, in their order."""
        return tuple(module.bucket_numels() for module in self.modules)

    def reopen(self) -> None:
        """Note modules again that `release_modules` has released. Call this between steps."""
        self.forget_modules()
        for ddp in self._living():
            self.module(ddp)

    def data_parallel_module(self, model: torch.nn.DataParallel[Any]) -> None:
        """Note that a forward of a `DataParallel` begins."""
        devices = [torch.device("cuda", device) for device in model.device_ids]
        self.memory.owns(devices)
        self.device.found(devices)
        if id(model) not in self._data_parallel:
            self._data_parallel[id(model)] = data_parallel_facts(model)
            self._data_parallel_device = model.src_device_obj.type if devices else "cpu"

    def recording_begins(self, step: int) -> None:
        """Note that recording begins with step number `step`."""
        for module in self.modules:
            module.replica.recording_begins(step)
        self.unaveraged.first_look(step)
        self.unfrozen()  # those that are trained are known from the next time on

    def recording_ends(self, step: int) -> None:
        """Note that recording ends before step number `step`, on every rank that comes this far."""
        for module in self.modules:
            module.replica.recording_ends(step)

    def begin_step(self, mode: StepMode) -> None:
        """Begin a step. Call this between two steps, when no collective is in flight."""
        self.recording = mode in DETAILED_MODES
        self._random_states = random_states(self.device.accelerators) if self.recording else {}
        if self.feeding.began_pass:
            self._random_states.pop("cpu", None)  # a loader has drawn from it, for its workers
            self.feeding.began_pass = False
        for module in self.modules:
            module.begin_step(mode)

    def end_step(self) -> None:
        """Forget the step."""
        self._forwards, self._optimizers, self._num_calls, self._began_evaluation = [], [], 0, False
        self.rpc.end_step()
        self.feeding.end_step()

    def loader_begins(self, loader: Any) -> bool:
        """Note that a pass over `loader` begins. Return whether it is for an evaluation, which may do without DDP."""
        self.feeding.loader_begins(loader)
        evaluates = not torch.is_grad_enabled() or self.is_evaluating()
        self._began_evaluation |= evaluates and self.recording
        return evaluates

    def is_evaluating(self) -> bool:
        """Return whether all DDP modules are in evaluation mode. Any thread may call this."""
        ddps = self._living()
        return bool(ddps) and not any(ddp.module.training for ddp in ddps)

    def learning_rate(self) -> float | None:
        """Return that of the first parameters. Any thread may call this."""
        optimizer = None if self.optimizer is None else self.optimizer()
        groups = [] if optimizer is None else optimizer.param_groups
        rate = groups[0].get("lr") if groups else None
        return float(rate) if isinstance(rate, int | float) else None

    def _living(self) -> list[DistributedDataParallel]:
        return [ddp for seen in list(self._seen) if (ddp := seen()) is not None]

    def pre_forward_is_over(self, ddp: DistributedDataParallel, start_ns: int, had_rebuilt: bool) -> None:
        """Note DDP's own work before the module's forward, from `start_ns` to now."""
        module = self.module(ddp)
        end, sync = time.time_ns(), module.buffer_sync_ns
        module.buffer_sync_ns = 0
        rebuild = end - start_ns - sync if not had_rebuilt and ddp._has_rebuilt_buckets else 0
        module.open_forwards.append(OpenForward(start_ns, end, sync, rebuild))

    def forward_is_over(self, ddp: DistributedDataParallel, inner_end_ns: int) -> None:
        """Note a forward whose module ended at `inner_end_ns`, and whose DDP work after it ends now."""
        module = self.find(ddp)
        if module is None or not module.open_forwards:
            return
        begun = module.open_forwards.pop()
        synchronises = torch.is_grad_enabled() and ddp.require_backward_grad_sync
        forward = Forward(
            module=module.index,
            start_ns=begun.start_ns,
            inner_start_ns=begun.inner_start_ns,
            inner_end_ns=inner_end_ns,
            end_ns=time.time_ns(),
            buffer_sync_ns=begun.buffer_sync_ns,
            rebuild_ns=begun.rebuild_ns,
            synchronises=synchronises,
            has_gradients=torch.is_grad_enabled(),
        )
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
        self._num_calls += 1
        for module in self.modules:
            module.backward_is_over(self._num_calls)

    def optimizer_begins(self) -> None:
        self._optimizer_start_ns = time.time_ns()

    def optimizer_ends(self) -> None:
        self._optimizers.append((self._optimizer_start_ns, time.time_ns()))

    def recorded_step(self, number: int, mode: StepMode, start_ns: int) -> RecordedStep:
        """Return the step that is about to end, with an end of 0."""
        if mode not in DETAILED_MODES:
            return RecordedStep(number=number, mode=mode, start_ns=start_ns, end_ns=0)
        passes = (one for module in self.modules for one in module.passes())
        return RecordedStep(
            number=number,
            mode=mode,
            start_ns=start_ns,
            end_ns=0,
            data_ns=self.feeding.data_ns,
            forwards=tuple(self._forwards),
            began_evaluation=self._began_evaluation,
            optimizers=tuple(self._optimizers),
            passes=tuple(sorted(passes, key=lambda one: one.origin_ns)),
            torch_stats={module.index: times for module in self.modules if (times := module.torch_times())},
            memory=self.memory.sample(),
            rpc=self.rpc.calls(),
            rpc_left_out=self.rpc.num_left_out,
            random_states=self._random_states,
        )

    def release_modules(self) -> None:
        """Keep the facts of the modules but release the modules, which may be large and no longer in use."""
        self._facts_of_released = self._facts_of_modules()
        self.modules = []

    def forget_modules(self) -> None:
        """Release the modules without their facts, which may be what cannot be noted."""
        self.modules, self._facts_of_released = [], None

    def facts(self) -> dict[str, Any]:
        """Return fields of the `Record`."""
        of_modules = {**self._facts_of_modules(), "unfrozen": self.unfrozen()}
        facts = {**of_modules, "devices": self.memory.devices(), **self.environment.facts()}
        facts |= self.feeding.facts() | self.unaveraged.facts()
        if self._data_parallel:
            facts |= {"data_parallel": tuple(self._data_parallel.values()), "device": self._data_parallel_device}
        return facts

    def unfrozen(self) -> tuple[str, ...]:
        """Return all parameters found so far to be trained though DDP does not average them. Any thread may call this.

        Modules are looked at as long as the script keeps them.
        """
        for ddp in self._living():
            self._unfrozen.update(dict.fromkeys(unfrozen_parameters(ddp)))
        return tuple(self._unfrozen)

    def _facts_of_modules(self) -> dict[str, Any]:
        if self._facts_of_released is not None:
            return self._facts_of_released
        replicas = (module.compared_replica() for module in self.modules)
        return {
            "modules": tuple(module.describe() for module in self.modules),
            "replicas": tuple(replica for replica in replicas if replica is not None),
        }
