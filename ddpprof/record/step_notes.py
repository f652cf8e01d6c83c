"""Record facts about the job and the current step: forward passes, optimizer steps, losses, RPC calls."""

from __future__ import annotations

import os
import sys
import time
import traceback
import weakref
from collections import deque
from contextlib import suppress
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from msgspec import structs
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _find_tensors

from ddpprof.linux_files import cpu_quota, own_cores, threads_per_core
from ddpprof.model import DETAILED_MODES, DataParallelModule, Forward, RecordedStep, RpcCall, StepMode
from ddpprof.model.backends import standard_name
from ddpprof.model.ddp_module import CompileOrder
from ddpprof.model.links import LinkFacts
from ddpprof.record import consistency
from ddpprof.record.compilation import (
    CompilationCounter,
    compilation,
    count_graphs,
    is_at_limit,
    num_compiled,
    order_of,
)
from ddpprof.record.consistency import Unaveraged
from ddpprof.record.data_loading import Feeding, random_states
from ddpprof.record.ddp_construction import unfrozen_parameters
from ddpprof.record.ddp_module import OpenForward, RecordedModule, data_parallel_facts
from ddpprof.record.events import Listener
from ddpprof.record.link_facts import TrafficCounter, link_facts
from ddpprof.record.machine import MemoryNotes, PeakNotes, TrainingDevice, devices_of
from ddpprof.record.script_lines import CodeSampler, HostReads

_MOST_CALLS = 2000
"""maximum number of RPC calls that are recorded per step; further calls are only counted"""
_MOST_THINGS = 1000
"""maximum number of objects in a call that are searched for tensors"""
_PROXIED = ("_local_invoke", "_local_invoke_async_execution")
"""PyTorch's functions that run ``rref.rpc_sync().method()``; their second argument is the name of the method"""


class RpcNotes(Listener):
    """Records ``torch.distributed.rpc`` calls in the current step: callee, function, duration, and bytes of tensors.

    The profiler's trace does not contain these calls, because it drops ranges that begin and end in different threads.
    """

    def __init__(self) -> None:
        self._calls: list[RpcCall] = []
        self.num_left_out = 0
        """number of calls that were not recorded because the step had too many"""

    def end_step(self) -> None:
        """Discard the calls of the step, including calls that have not finished."""
        self._calls, self.num_left_out = [], 0

    def calls(self) -> tuple[RpcCall, ...]:
        """Return all calls of the step, including calls that have not finished."""
        return tuple(self._calls)

    def rpc_sent(self, began_ns: int, future: Any, to: Any, func: Any, rpc_type: Any, args: Any, kwargs: Any) -> None:
        if len(self._calls) >= _MOST_CALLS:
            self.num_left_out += 1
            return
        num_bytes = tensor_bytes((args, kwargs))
        call = RpcCall(_worker(to), _function_name(func, args), rpc_type.value, began_ns, None, num_bytes, None)
        calls, place = self._calls, len(self._calls)
        calls.append(call)

        def answered(done: Any) -> None:
            end_ns = time.time_ns()
            try:
                reply_bytes = tensor_bytes(done.value())
            except Exception:
                reply_bytes = None  # the call failed, which the script handles
            calls[place] = structs.replace(call, end_ns=end_ns, reply_bytes=reply_bytes)

        future.add_done_callback(answered)


def _worker(to: Any) -> str:
    """Return the name of an RPC worker. `to`: the worker's name, ID or ``WorkerInfo``."""
    if isinstance(to, str):
        return to
    return str(to.name) if hasattr(to, "name") else f"worker {to}"


def _function_name(func: Any, args: Any) -> str:
    name = getattr(func, "__qualname__", None) or getattr(func, "__name__", None) or type(func).__name__
    return str(args[1]) if name in _PROXIED and args and len(args) > 1 else str(name)


def tensor_bytes(thing: Any) -> int:
    """Return the total bytes of all tensors in tuples, lists and dictionaries."""
    total, todo, num_seen = 0, [thing], 0
    while todo and num_seen < _MOST_THINGS:
        one = todo.pop()
        num_seen += 1
        if isinstance(one, torch.Tensor):
            total += one.numel() * one.element_size()
        elif isinstance(one, dict):
            todo.extend(one.values())
        elif isinstance(one, list | tuple):
            todo.extend(one)
    return total


_MOST_OUTPUTS = 20
"""maximum number of output tensors of a forward pass that are checked for use in a backward pass"""
_MAX_CHECKPOINTS_KEPT = 64
_FRAMEWORK_BY_MODULE = {
    "transformers.trainer": "transformers",
    "lightning.pytorch": "lightning",
    "pytorch_lightning": "lightning",
    "lightning.fabric": "fabric",
    "lightning_fabric": "fabric",
    "accelerate.accelerator": "accelerate",
}
"""module → framework. If several of these modules are imported, the first entry counts, because Transformers uses
Accelerate, and Lightning uses Fabric
"""


class JobEnvironment(Listener):
    """Records where training runs, which framework runs it, and the checkpoints that it saves."""

    def __init__(self) -> None:
        self._framework: str | None = None
        self._checkpoints: list[str] = []
        self._of_ddp: dict[str, Any] = {"device": "cpu", "backend": "", "timeout_s": None, "joins": False}
        self._groups: set[tuple[int, ...]] = set()
        """ranks of each process group that averages gradients"""
        self._world_size = 0
        self._links: LinkFacts | None = None
        self._traffic: TrafficCounter | None = None
        self._compiled_code: CompilationCounter | None = None
        self._compile_order: CompileOrder | None = None
        self._detects_anomalies = False

    def look_for_anomaly_detection(self) -> None:
        self._detects_anomalies |= torch.is_anomaly_enabled()

    def _debugging(self) -> tuple[str, ...]:
        """Return the settings for debugging that are in effect, as in `Record.debugging`."""
        blocks = self._of_ddp["device"] == "cuda" and os.environ.get("CUDA_LAUNCH_BLOCKING", "0") != "0"
        active = {
            "detect_anomaly": self._detects_anomalies,
            "TORCH_DISTRIBUTED_DEBUG=DETAIL": dist.get_debug_level() is dist.DebugLevel.DETAIL,
            "CUDA_LAUNCH_BLOCKING=1": blocks,
        }
        return tuple(name for name, is_active in active.items() if is_active)

    def look_who_calls(self) -> None:
        """Record which framework, if any, constructs or calls DDP modules."""
        self._framework = self._framework or framework_at_work()

    def describe(self, ddp: DistributedDataParallel) -> None:
        self.look_who_calls()
        with suppress(Exception):  # torch's compiler has no stable interface
            self._compile_order = order_of(ddp)
            if self._compile_order is not None:
                count_graphs()
        self._of_ddp = {
            "device": ddp.device_type,
            "backend": backend_for(ddp.process_group, ddp.device_type),
            "timeout_s": _timeout_s(ddp.process_group, ddp.device_type),
            "joins": bool(getattr(getattr(ddp, "_join_config", None), "enable", False)),
        }

    def describe_group(self, group: dist.ProcessGroup) -> None:
        """Record the job's process group, for a job that fails before its DDP module is called."""
        self.look_who_calls()
        self._of_ddp["backend"] = standard_name(str(dist.get_backend(group)))

    def averages_in(self, group: dist.ProcessGroup) -> None:
        """Record the process group of a DDP module."""
        self._groups.add(tuple(dist.get_process_group_ranks(group)))
        self._world_size = dist.get_world_size()

    def _together(self) -> tuple[int, ...] | None:
        """Return the ranks of all modules' process groups, sorted; ``None`` if all ranks of the job are in them."""
        ranks = set[int]().union(*self._groups)
        return None if not ranks or len(ranks) == self._world_size else tuple(sorted(ranks))

    def save_begins(self, target: Any) -> None:
        if isinstance(target, str | os.PathLike) and len(self._checkpoints) < _MAX_CHECKPOINTS_KEPT:
            path = os.path.abspath(os.fspath(target))
            if path not in self._checkpoints:
                self._checkpoints.append(path)

    def recording_begins(self, step: int) -> None:
        """Count compilations from the beginning of `step` on and, if there is one interface to other machines, traffic.

        `facts` looks for the interface.
        """
        self._compiled_code = CompilationCounter(step)
        links = self._links
        if links is not None and links.interface is not None and links.leaves_machine and not links.others_used:
            with suppress(Exception):  # as for links
                self._traffic = TrafficCounter(links.interface, step)

    def facts(self, step: int) -> dict[str, Any]:
        """Return what was recorded before `step`, as fields of the `Record`."""
        cores = own_cores()
        if self._links is None and self._groups:
            with suppress(Exception):  # without this fact, the record is still useful
                self._links = link_facts(self._of_ddp["backend"])
        return {
            **self._of_ddp,
            "group_size": len(next(iter(self._groups))) if len(self._groups) == 1 else None,
            "group_ranks": self._together(),
            "framework": self._framework,
            "is_compiled": num_compiled() > 0,
            "is_at_compile_limit": is_at_limit(),
            "compilation": compilation(self._compile_order),
            "num_cores": os.cpu_count() if cores is None else len(cores),
            "core_list": None if cores is None else ",".join(map(str, cores)),
            "cpu_quota": cpu_quota(),
            "machine_cores": os.cpu_count(),
            "threads_per_core": threads_per_core(cores[0]) if cores else None,
            "debugging": self._debugging(),
            "num_threads": torch.get_num_threads(),
            "links": self._links,
            "traffic": self._traffic.until(step) if self._traffic is not None else None,
            "compiled_code": self._compiled_code.until(step) if self._compiled_code is not None else None,
            "checkpoints": tuple(self._checkpoints),
            "of_some_ranks": consistency.of_main_script(),
        }


def backend_for(group: Any, device_type: str) -> str:
    """Return the process group's backend for a device type. A process group may have several backends.

    `dist.get_backend` alone is not used, because it may return ``"undefined"``.
    """
    try:
        return standard_name(str(group._get_backend(torch.device(device_type)).name()))
    except (RuntimeError, AttributeError):  # a backend unknown to torch, or no backend for the device
        return standard_name(str(dist.get_backend(group)))


def _timeout_s(group: Any, device_type: str) -> float | None:
    """Return the timeout of the group's collectives in seconds; ``None`` if torch does not provide it."""
    try:
        return float(group._get_backend(torch.device(device_type)).options._timeout.total_seconds())
    except (RuntimeError, AttributeError):
        return None


def framework_at_work() -> str | None:
    """Return the name of the framework that runs training; ``None`` if the script uses torch directly."""
    return _on_stack() or _holding_the_model()


def _holding_the_model() -> str | None:
    """Return ``"accelerate"`` if the script has created an Accelerator. Its code is not on the stack in training."""
    state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    return "accelerate" if getattr(state, "_shared_state", None) else None


def _on_stack() -> str | None:
    found: set[str] = set()
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        name = frame.f_globals.get("__name__", "")
        found.update(module for module in _FRAMEWORK_BY_MODULE if name == module or name.startswith(f"{module}."))
    return next((framework for module, framework in _FRAMEWORK_BY_MODULE.items() if module in found), None)


class LossNotes(Listener):
    """Records the losses of each step: the scalars on which the script calls ``backward``.

    Losses are copied on their device and read when the job ends, so that no step waits for an accelerator.
    """

    def __init__(self) -> None:
        self._steps: list[list[torch.Tensor]] = []
        self._current: list[torch.Tensor] = []

    def backward_begins(self, loss: Any) -> None:
        """Record the losses among the tensors passed to ``torch.autograd.backward``."""
        for tensor in (loss,) if isinstance(loss, torch.Tensor) else tuple(loss):
            if isinstance(tensor, torch.Tensor) and tensor.numel() == 1 and tensor.is_floating_point():
                self._current.append(tensor.detach().clone())  # the script may later all-reduce the loss in place

    def step_ends(self, num_steps: int) -> None:
        self._steps.append(self._current)
        self._current = []

    def values(self) -> list[list[str]]:
        """Return the losses of each step as ``float.hex``, which is exact and can represent NaN in JSON."""
        return [[float(tensor).hex() for tensor in step] for step in self._steps]


_MOST_RATES = 64


class StepNotes(Listener):
    """Records the events of steps that are recorded in detail. This listener is bound only in such steps."""

    def __init__(self) -> None:
        self.modules: list[RecordedModule] = []
        self.environment = JobEnvironment()
        self.feeding = Feeding()
        self.memory = MemoryNotes()
        self.peaks = PeakNotes(self.memory)
        self.device = TrainingDevice()
        self.rpc = RpcNotes()
        self.host_reads = HostReads()
        self.code = CodeSampler()
        self.unaveraged = Unaveraged(self.device)
        self.recording = False
        self._random_states: dict[str, int] = {}
        self._forwards: list[Forward] = []
        self._used: dict[int, bool] = {}
        """index of a forward pass → whether a backward pass has used one of its outputs"""
        self._optimizers: list[tuple[int, int]] = []
        self._optimizer_start_ns = 0
        self._seen: list[weakref.ref[Any]] = []
        self._num_calls = 0
        """number of calls to ``backward`` in the current step"""
        self._began_evaluation = False
        self._unfrozen: dict[str, None] = {}
        self._facts_of_released: dict[str, Any] | None = None
        self._data_parallel: dict[int, DataParallelModule] = {}
        self._data_parallel_device = "cpu"
        self.optimizer: weakref.ref[Any] | None = None
        """optimizer that took the most recent step, whether the step was recorded or not"""
        self._rates: deque[tuple[int, float]] = deque(maxlen=_MOST_RATES)

    def find(self, ddp: Any) -> RecordedModule | None:
        for module in self.modules:
            if module.ddp is ddp:
                return module
        return None

    def module(self, ddp: DistributedDataParallel) -> RecordedModule:
        """Return the `RecordedModule` of `ddp`; create it if the module is new."""
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
        """Return the number of elements of each bucket, by module."""
        return tuple(module.bucket_numels() for module in self.modules)

    def reopen(self) -> None:
        """Record the modules again after `release_modules`. Call this between steps."""
        self.forget_modules()
        for ddp in self._living():
            self.module(ddp)

    def data_parallel_module(self, model: torch.nn.DataParallel[Any]) -> None:
        """Record a `DataParallel` module and its devices, when its forward pass begins."""
        devices = [torch.device("cuda", device) for device in model.device_ids]
        self.memory.owns(devices)
        self.device.found(devices)
        if id(model) not in self._data_parallel:
            self._data_parallel[id(model)] = data_parallel_facts(model)
            self._data_parallel_device = model.src_device_obj.type if devices else "cpu"

    def recording_begins(self, step: int) -> None:
        """Check the parameters before the first recorded step. `step`: number of this step."""
        for module in self.modules:
            module.replica.recording_begins(step)
        self.unaveraged.first_look(step)
        self.environment.recording_begins(step)
        self.unfrozen()  # the next call returns parameters that have changed since this call

    def recording_ends(self, step: int) -> None:
        """Check the parameters after the last recorded step. `step`: number of the following step."""
        for module in self.modules:
            module.replica.recording_ends(step)

    def begin_step(self, mode: StepMode) -> None:
        """Begin a step. Call this between two steps, when no collective is in flight."""
        self.recording = self.feeding.recording = mode in DETAILED_MODES
        self._random_states = random_states(self.device.accelerators) if self.recording else {}
        if self.feeding.began_pass:
            self._random_states.pop("cpu", None)  # a loader has drawn a seed for its workers from this generator
            self.feeding.began_pass = False
        self.host_reads.watch(mode is StepMode.PROFILED and self.device.is_accelerator)
        self.code.watch(mode is StepMode.PROFILED)
        for module in self.modules:
            module.begin_step(mode)

    def end_step(self) -> None:
        """Discard the facts about the step that has ended."""
        self._forwards, self._optimizers, self._num_calls, self._began_evaluation = [], [], 0, False
        self._used = {}
        self.rpc.end_step()
        self.feeding.end_step()

    def pass_begins(self) -> bool:
        """Record that a pass over a loader begins. Return True if it is an evaluation, which may run without DDP."""
        evaluates = not torch.is_grad_enabled() or self.is_evaluating()
        self._began_evaluation |= evaluates and self.recording
        return evaluates

    def is_evaluating(self) -> bool:
        """Return True if all DDP modules are in evaluation mode. Any thread may call this."""
        ddps = self._living()
        return bool(ddps) and not any(ddp.module.training for ddp in ddps)

    def learning_rate(self) -> float | None:
        """Return the learning rate of the optimizer's first parameter group. Any thread may call this."""
        optimizer = None if self.optimizer is None else self.optimizer()
        groups = [] if optimizer is None else optimizer.param_groups
        rate = groups[0].get("lr") if groups else None
        return float(rate) if isinstance(rate, int | float) else None

    def note_rate(self, step: int) -> None:
        """Record the learning rate after `step` steps."""
        rate = self.learning_rate()
        if rate is not None:
            self._rates.append((step, rate))

    def _living(self) -> list[DistributedDataParallel]:
        return [ddp for seen in list(self._seen) if (ddp := seen()) is not None]

    def pre_forward_ends(self, ddp: DistributedDataParallel, began_ns: int, had_rebuilt: bool) -> None:
        module = self.module(ddp)
        end, sync = time.time_ns(), module.buffer_sync_ns
        module.buffer_sync_ns = 0
        rebuild = end - began_ns - sync if not had_rebuilt and ddp._has_rebuilt_buckets else 0
        module.open_forwards.append(OpenForward(began_ns, end, sync, rebuild))

    def forward_ends(self, ddp: DistributedDataParallel, inner_end_ns: int, outputs: Any) -> None:
        module = self.find(ddp)
        if module is None or not module.open_forwards:
            return
        begun = module.open_forwards.pop()
        synchronizes = torch.is_grad_enabled() and ddp.require_backward_grad_sync
        forward = Forward(
            module=module.index,
            start_ns=begun.start_ns,
            inner_start_ns=begun.inner_start_ns,
            inner_end_ns=inner_end_ns,
            end_ns=time.time_ns(),
            buffer_sync_ns=begun.buffer_sync_ns,
            rebuild_ns=begun.rebuild_ns,
            synchronizes=synchronizes,
            has_gradients=torch.is_grad_enabled(),
        )
        self._forwards.append(forward)
        if synchronizes:
            module.synchronizing_forward_is_over(inner_end_ns)
        elif torch.is_grad_enabled():
            module.accumulating_forward_is_over()
        self._note_use(outputs)

    def _note_use(self, outputs: Any) -> None:
        """Record whether a backward pass uses the outputs.

        Jobs that use torch.compile are left out, because it might compile the hook.
        """
        if not self._forwards or not torch.is_grad_enabled() or num_compiled():
            return
        used, index = self._used, len(self._forwards) - 1

        def use(_gradients: object) -> None:
            used[index] = True

        nodes = {one.grad_fn for one in islice(_find_tensors(outputs), _MOST_OUTPUTS) if one.grad_fn is not None}
        if nodes:
            used[index] = False
        for node in nodes:
            node.register_prehook(use)

    def waited(self, what: object, began_ns: int) -> None:
        module = self.find(what)
        if module is not None:
            module.buffer_sync_ns += time.time_ns() - began_ns

    def bucket_sent(
        self, ddp: DistributedDataParallel, index: int, began_ns: int, future: torch.futures.Future[torch.Tensor]
    ) -> None:
        module = self.find(ddp)
        if module is not None and module.times is not None and module.times.recording:
            module.times.launched(index, began_ns, lambda: future)

    def backward_begins(self, loss: Any) -> None:
        self.environment.look_for_anomaly_detection()
        for module in self.modules:
            module.backward_begins()

    def backward_ends(self) -> None:
        self._num_calls += 1
        for module in self.modules:
            module.backward_is_over(self._num_calls)

    def optimizer_begins(self, optimizer: torch.optim.Optimizer) -> None:
        for module in self.modules:
            module.optimizer_begins(optimizer)
        self._optimizer_start_ns = time.time_ns()

    def closure_begins(self) -> None:
        self._optimizers.append((self._optimizer_start_ns, time.time_ns()))

    def closure_ends(self) -> None:
        self._optimizer_start_ns = time.time_ns()

    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizers.append((self._optimizer_start_ns, time.time_ns()))

    def recorded_step(self, number: int, mode: StepMode, start_ns: int) -> RecordedStep:
        """Return the record of the step that is about to end, with ``end_ns=0``."""
        if mode not in DETAILED_MODES:
            return RecordedStep(number=number, mode=mode, start_ns=start_ns, end_ns=0)
        passes = (one for module in self.modules for one in module.passes())
        return RecordedStep(
            number=number,
            mode=mode,
            start_ns=start_ns,
            end_ns=0,
            data_ns=self.feeding.data_ns,
            forwards=tuple(
                structs.replace(one, reaches_backward=self._used.get(index)) for index, one in enumerate(self._forwards)
            ),
            began_evaluation=self._began_evaluation,
            optimizers=tuple(self._optimizers),
            passes=tuple(sorted(passes, key=lambda one: one.origin_ns)),
            torch_stats={module.index: times for module in self.modules if (times := module.torch_times())},
            memory=self.memory.sample(),
            input_numel=self.feeding.input_numel,
            rpc=self.rpc.calls(),
            rpc_left_out=self.rpc.num_left_out,
            random_states=self._random_states,
        )

    def release_modules(self) -> None:
        """Release the modules, because they may be large and no longer in use, but keep the facts about them."""
        self._facts_of_released = self._facts_of_modules()
        self.modules = []

    def forget_modules(self) -> None:
        """Release the modules and the facts about them, because collecting these facts may have failed."""
        self.modules, self._facts_of_released = [], None

    def facts(self, step: int) -> dict[str, Any]:
        """Return what was recorded before `step`, as fields of the `Record`."""
        of_modules = {**self._facts_of_modules(), "unfrozen": self.unfrozen()}
        facts = {**of_modules, "devices": self.memory.devices(), **self.environment.facts(step)}
        facts["learning_rates"] = tuple(self._rates)
        for notes in (self.peaks, self.feeding, self.unaveraged, self.host_reads, self.code):
            facts |= notes.facts()
        if self._data_parallel:
            facts |= {"data_parallel": tuple(self._data_parallel.values()), "device": self._data_parallel_device}
        return facts

    def unfrozen(self) -> tuple[str, ...]:
        """Return the names of all parameters found so far that are trained although DDP does not average them.

        Any thread may call this. Modules are checked as long as the script keeps them.
        """
        for ddp in self._living():
            self._unfrozen.update(dict.fromkeys(unfrozen_parameters(ddp)))
        return tuple(self._unfrozen)

    def _facts_of_modules(self) -> dict[str, Any]:
        if self._facts_of_released is not None:
            return self._facts_of_released
        replicas = (module.replica.compared(module.index, module.num_unreduced) for module in self.modules)
        return {
            "modules": tuple(module.describe() for module in self.modules),
            "replicas": tuple(replica for replica in replicas if replica is not None),
        }
