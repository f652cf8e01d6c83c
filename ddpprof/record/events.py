"""The events of a training process, and the listeners that receive them.

Only `patches` and torch hooks report training events to `EVENTS`, which passes them to `Listener` objects. `Session`
binds the listeners each time the mode of steps changes. An event then calls only the methods that implement it. A
single method that never raises is called directly, and an event without listeners calls an empty function. A step that
is not recorded therefore costs only what the pulse costs.

This module is imported while torch is being imported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import Tensor
    from torch.futures import Future
    from torch.nn import DataParallel
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import Optimizer


class Listener:
    """Receives the events of a training process. A subclass overrides the events that it needs.

    Events come from the training thread, unless their docstring says otherwise. An error in a listener ends the
    recording, not the training.
    """

    __slots__ = ()
    may_raise: ClassVar[bool] = True
    """False if none of its methods raises, so that they are called without a guard"""

    def forward_begins(self, ddp: DistributedDataParallel) -> None:
        """A DDP module is called; a step may have ended just before. From any thread."""

    def pre_forward_begins(self, ddp: DistributedDataParallel, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """DDP begins its own work before the module's forward, with these inputs."""

    def pre_forward_ends(self, ddp: DistributedDataParallel, began_ns: int, had_rebuilt: bool) -> None:
        """DDP's own work before the module's forward has ended.

        `had_rebuilt`: DDP already had its final buckets before it.
        """

    def forward_ends(self, ddp: DistributedDataParallel, inner_end_ns: int) -> None:
        """A forward has ended, including DDP's own work after the module's forward, which ended at `inner_end_ns`."""

    def forward_fails(self, ddp: DistributedDataParallel, error: BaseException) -> None:
        """A forward has raised an error, which the script may catch."""

    def data_parallel_forward_begins(self, model: DataParallel[Any]) -> None:
        """An `nn.DataParallel` is called."""

    def waited(self, what: object, began_ns: int) -> None:
        """The training thread has waited for other ranks: for a collective, or a DDP module's broadcast of buffers."""

    def backward_begins(self, loss: Any) -> None:
        """A backward pass begins. One nested in another, as in reentrant checkpointing, is not reported."""

    def backward_ends(self) -> None:
        """The backward pass has ended."""

    def bucket_sent(self, ddp: DistributedDataParallel, index: int, began_ns: int, future: Future[Tensor]) -> None:
        """The comm hook of a DDP module has sent a bucket. From one of torch's threads."""

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        """An optimizer begins its step."""

    def closure_begins(self) -> None:
        """An optimizer calls its closure, which computes loss and gradients. This is not the optimizer's own work."""

    def closure_ends(self) -> None:
        """The closure has ended, and the optimizer continues."""

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        """An optimizer has taken a step; a training step may end with it."""

    def optimizer_skipped(self, optimizer: Optimizer) -> None:
        """A `GradScaler` has skipped an optimizer's step because gradients overflowed."""

    def step_marked(self) -> None:
        """The script marks the end of a training step."""

    def step_ends(self, num_steps: int) -> None:
        """A training step has ended; `num_steps` have ended so far."""

    def flagged(self, flag: int) -> None:
        """The current step is a special one; see `StepFlag`."""

    def begins(self, activity: int) -> None:
        """The training thread begins an `Activity`, which ends the previous one."""

    def loader_begins(self, loader: Any) -> None:
        """A pass over a `DataLoader` begins. From any thread."""

    def fetch_begins(self) -> None:
        """The training thread begins to wait for a batch."""

    def fetch_ends(self) -> None:
        """The training thread has its batch, or there is none."""

    def batch_comes(self, iterator: Any, batch: Any, waited_ns: int) -> None:
        """A batch was fetched; ``None`` if there is none.

        From any thread, but only waiting time of the training thread counts.
        """

    def loader_runs_out(self, iterator: Any) -> None:
        """A pass over a `DataLoader` is complete. From any thread."""

    def epoch_is_set(self, sampler: Any) -> None:
        """The script calls `set_epoch` on a sampler."""

    def save_begins(self, target: Any) -> None:
        """``torch.save`` is called, with a path or a file. From any thread."""

    def save_ends(self) -> None:
        """The save has ended."""

    def discards_file(self, target: Any) -> bool:
        """Return True if ``torch.save`` must write nothing, because the result of the steps is discarded."""
        return False

    def discards_checkpoint(self, owner: str) -> bool:
        """Return True if an object of the framework class named `owner` must neither write nor delete a checkpoint."""
        return False

    def discards_checkpoints(self) -> bool:
        """Return True if the results of the steps are discarded, so that earlier checkpoints must be kept."""
        return False

    def profiler_starts(self, inner: Any) -> None:
        """An autograd profiler is about to start, possibly one of the script's own."""

    def graph_capture_begins(self, graph: Any) -> None:
        """The script begins to capture a CUDA graph."""

    def graph_capture_ends(self) -> None:
        """The capture has ended or failed."""

    def graph_replays(self, graph: Any) -> None:
        """The script replays a CUDA graph."""

    def rpc_sent(self, began_ns: int, future: Any, to: Any, func: Any, rpc_type: Any, args: Any, kwargs: Any) -> None:
        """A call through ``torch.distributed.rpc`` was sent; its future completes with the answer. From any thread."""


_EVENTS = tuple(name for name, value in vars(Listener).items() if callable(value))
_NOBODY = {**{name: getattr(Listener(), name) for name in _EVENTS}, "heard": frozenset[str]()}


class Events(Listener):
    """The dispatcher: each event calls the corresponding methods of the bound listeners, in their order."""

    def __init__(self) -> None:
        self.heard: frozenset[str] = frozenset()
        """names of the events that have a listener"""
        self.training_thread: int | None = None
        """the thread that trains; ``None`` before the first forward"""
        self.is_waiting = False
        """whether the training thread is waiting for other ranks; a wait nested in this one is not reported"""
        self.num_optimizer_steps = 0

    def bind(self, listeners: dict[str, Any]) -> None:
        """Replace all listeners. `listeners`: the result of `binding`."""
        vars(self).update(listeners)

    def unbind(self) -> None:
        self.bind(_NOBODY)


def binding(
    listeners: Sequence[Listener], give_up: Callable[[Exception], None], without: Collection[str] = ()
) -> dict[str, Any]:
    """Return the function to call for each event, and the names of events that have listeners.

    Keep the result, because this takes about 100 µs. `give_up` is called with an error raised by a listener. Events in
    `without` reach no listener.
    """
    bound: dict[str, Any] = {}
    for name in _EVENTS:
        hearing = [one for one in listeners if getattr(type(one), name) is not getattr(Listener, name)]
        if hearing and name not in without:
            methods = [getattr(one, name) for one in hearing]
            is_safe = len(hearing) == 1 and not hearing[0].may_raise
            bound[name] = methods[0] if is_safe else _calling(methods, give_up)
    return {**_NOBODY, **bound, "heard": frozenset(bound)}


def _calling(methods: Sequence[Callable[..., Any]], give_up: Callable[[Exception], None]) -> Callable[..., Any]:
    """Return a function that calls all these methods and returns the result of the last one."""

    def event(*what: Any) -> Any:
        answer = None
        try:
            for method in methods:
                answer = method(*what)
        except Exception as error:
            give_up(error)
        return answer

    return event


EVENTS = Events()
"""the dispatcher of this process"""
