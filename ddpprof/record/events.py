"""Dispatch the events of a training process to listeners.

`patches` and torch hooks report training events to `EVENTS`, which forwards them to `Listener` objects. `Session` binds
the listeners each time the mode of steps changes. An event then calls only the listeners that override its method. If
there is only one such method and it never raises, it is called directly. An event without listeners calls an empty
function. In steps that are not recorded, the pulse is therefore the only overhead.

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
    """Base class for objects that receive training events. Subclasses override the methods of the events they need.

    Methods are called in the training thread, unless their docstring says otherwise. An exception in a listener ends
    recording but not training.
    """

    __slots__ = ()
    may_raise: ClassVar[bool] = True
    """False if no method of the listener raises; the methods are then called without ``try``"""

    def forward_begins(self, ddp: DistributedDataParallel) -> None:
        """Called in any thread when a DDP module's forward pass begins. A step may have ended immediately before it."""

    def pre_forward_begins(self, ddp: DistributedDataParallel, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called when DDP begins its own work before the wrapped module's forward pass."""

    def pre_forward_ends(self, ddp: DistributedDataParallel, began_ns: int, had_rebuilt: bool) -> None:
        """Called when DDP has finished its own work before the wrapped module's forward pass.

        `had_rebuilt`: whether DDP had already rebuilt its buckets when that work began.
        """

    def forward_ends(self, ddp: DistributedDataParallel, inner_end_ns: int, outputs: Any) -> None:
        """Called when a DDP module's forward pass has ended.

        `inner_end_ns`: end of the wrapped module's forward pass. `outputs`: what the DDP module returns.
        """

    def forward_fails(self, ddp: DistributedDataParallel, error: BaseException) -> None:
        """Called when a DDP module's forward pass has raised an exception. The script may catch the exception."""

    def data_parallel_forward_begins(self, model: DataParallel[Any]) -> None:
        """Called when the forward pass of an `nn.DataParallel` begins."""

    def waited(self, what: object, began_ns: int) -> None:
        """Called when the training thread has waited for other ranks.

        `what`: the work handle of a collective, or the DDP module that broadcast its buffers.
        """

    def backward_begins(self, loss: Any) -> None:
        """Called when a backward pass begins, but not for nested passes (in reentrant checkpointing)."""

    def backward_ends(self) -> None:
        """Called when the backward pass has ended."""

    def bucket_sent(self, ddp: DistributedDataParallel, index: int, began_ns: int, future: Future[Tensor]) -> None:
        """Called in one of torch's threads when the comm hook of a DDP module has launched a bucket."""

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        """Called when an optimizer begins its step."""

    def closure_begins(self) -> None:
        """Called when an optimizer calls its closure, which computes the loss and the gradients."""

    def closure_ends(self) -> None:
        """Called when the closure has ended and the optimizer continues."""

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        """Called when an optimizer has taken a step. This may end a training step."""

    def optimizer_skipped(self, optimizer: Optimizer) -> None:
        """Called when a `GradScaler` has skipped an optimizer's step because gradients overflowed."""

    def step_marked(self) -> None:
        """Called when the script marks the end of a training step."""

    def step_ends(self, num_steps: int) -> None:
        """Called when a training step has ended. `num_steps`: number of steps that have ended so far."""

    def flagged(self, flag: int) -> None:
        """Called when a flag is set for the current step; see `StepFlag`."""

    def begins(self, activity: int) -> None:
        """Called when the training thread begins an `Activity`. The previous activity has then ended."""

    def loader_begins(self, loader: Any) -> None:
        """Called in any thread when a pass over a `DataLoader` begins."""

    def fetch_begins(self) -> None:
        """Called when the training thread begins to wait for a batch."""

    def fetch_ends(self) -> None:
        """Called when the training thread has received its batch, or when the loader has no batches left."""

    def batch_comes(self, iterator: Any, batch: Any, waited_ns: int) -> None:
        """Called in any thread after a batch has been fetched. `batch` is ``None`` if the loader has no batches left.

        `waited_ns`: time that the training thread waited; 0 in other threads.
        """

    def loader_runs_out(self, iterator: Any) -> None:
        """Called in any thread when a pass over a `DataLoader` is complete."""

    def epoch_is_set(self, sampler: Any) -> None:
        """Called when the script calls `set_epoch` on a sampler."""

    def save_begins(self, target: Any) -> None:
        """Called in any thread when ``torch.save`` begins. `target`: a path or a file."""

    def save_ends(self) -> None:
        """Called when ``torch.save`` has ended."""

    def discards_file(self, target: Any) -> bool:
        """Return True if ``torch.save`` must not write `target`, because the results of the steps are discarded."""
        return False

    def discards_checkpoint(self, owner: str) -> bool:
        """Return True if the framework class named `owner` must neither write nor delete a checkpoint."""
        return False

    def discards_checkpoints(self) -> bool:
        """Return True if earlier checkpoints must be kept, because the results of the steps are discarded."""
        return False

    def profiler_starts(self, inner: Any) -> None:
        """Called when an autograd profiler of ddpprof or of the script is about to start."""

    def graph_capture_begins(self, graph: Any) -> None:
        """Called when the script begins to capture a CUDA graph."""

    def graph_capture_ends(self) -> None:
        """Called when the capture of a CUDA graph has ended or failed."""

    def graph_replays(self, graph: Any) -> None:
        """Called when the script replays a CUDA graph."""

    def rpc_sent(self, began_ns: int, future: Any, to: Any, func: Any, rpc_type: Any, args: Any, kwargs: Any) -> None:
        """Called in any thread after a ``torch.distributed.rpc`` call has been sent. `future` gets the answer."""


_EVENTS = tuple(name for name, value in vars(Listener).items() if callable(value))
_NOBODY = {**{name: getattr(Listener(), name) for name in _EVENTS}, "heard": frozenset[str]()}


class Events(Listener):
    """Dispatcher. Each event calls the bound listeners' methods of the same name, in order."""

    def __init__(self) -> None:
        self.heard: frozenset[str] = frozenset()
        """names of the events that at least one listener handles"""
        self.training_thread: int | None = None
        """ID of the thread that trains; ``None`` before the first forward pass"""
        self.is_waiting = False
        """whether the training thread is waiting for other ranks; while it is set, further waits inside this wait are
        not reported
        """
        self.num_optimizer_steps = 0

    def bind(self, listeners: dict[str, Any]) -> None:
        """Replace all listeners. `listeners`: the result of `binding`."""
        vars(self).update(listeners)

    def unbind(self) -> None:
        self.bind(_NOBODY)


def binding(
    listeners: Sequence[Listener], give_up: Callable[[Exception], None], without: Collection[str] = ()
) -> dict[str, Any]:
    """Return the function to call for each event, and the names of the events that have listeners.

    `give_up`: called with an exception raised by a listener. `without`: events that are not forwarded. Callers should
    cache the result, because computing it takes about 100 µs.
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
    """Return a function that calls all these methods and returns the result of the last method."""

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
"""the event dispatcher of this process"""
