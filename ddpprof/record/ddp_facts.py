"""What do DDP, its buckets and their parameters look like? The wrapper tells, without a collective."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from ddpprof.model import DataParallelModule, DdpModule, Parameter
from ddpprof.model.recorded_step import TORCH_TIMES
from ddpprof.record.reducer import ReducerParameters

_SETTINGS = {
    "find_unused_parameters": False,
    "gradient_as_bucket_view": False,
    "static_graph": False,
    "batched_grad_copy": False,
    "skip_all_reduce_unused_params": False,
    "require_backward_grad_sync": True,
}
"""attributes of DDP with these names, and the behaviour of older torch versions without them"""


def ddp_settings(ddp: DistributedDataParallel) -> dict[str, Any]:
    """Return the constructor's arguments as they took effect."""
    settings: dict[str, Any] = {name: getattr(ddp, name, absent) for name, absent in _SETTINGS.items()}
    settings["bucket_cap_mb"] = ddp.bucket_bytes_cap / 2**20
    settings["broadcast_buffers"] = bool(getattr(ddp, "forward_sync_buffers", ddp.broadcast_buffers))
    config = getattr(ddp, "_bucket_config", None)
    if config is not None and config.has_custom_per_bucket_caps:
        settings["has_bucket_cap_mb_list"] = True
        settings["bucket_cap_mb_list"] = [cap / 2**20 for cap in config.per_bucket_bytes_caps]
    return settings


def _indices(text: str) -> list[int]:
    return [int(word) for word in text.replace(",", " ").split()]


def bucket_layout(ddp: DistributedDataParallel, of_reducer: ReducerParameters) -> list[list[int]]:
    """Return the parameter indices of each bucket, as the reducer uses them now.

    After the rebuild torch's own logging data has them. Before it, or if DDP never rebuilds
    (``find_unused_parameters``), the assignment is computed as in DDP's constructor.
    """
    logged = ddp._get_ddp_logging_data()
    rebuilt = logged.get("rebuilt_per_bucket_param_indices")
    if rebuilt:
        return [_indices(bucket) for bucket in rebuilt.split(",")]
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
    """Return the parameters without gradient in the last synchronised backward pass; on CPU only.

    Returns ``None`` if torch does not tell.
    """
    order = ddp._get_ddp_logging_data().get("prev_iteration_grad_ready_order_indices")
    if order is None:
        return None
    if order.count(",") == num_parameters - 1:
        return set()
    return set(range(num_parameters)).difference(_indices(order))


def torch_times(ddp: DistributedDataParallel) -> dict[str, int]:
    """Return DDP's own times of the last synchronised iteration, ns, without those that it did not take."""
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
) -> DdpModule:
    """Describe one DDP module.

    `unused`: parameters without gradient in each of the `num_searched` examined backward passes.
    `num_lacking`: number of these that left any parameter without gradient.
    """
    batch_norms = [module for module in ddp.module.modules() if isinstance(module, _BatchNorm)]
    of_batch_norms = {id(buffer) for module in batch_norms for buffer in module.buffers(recurse=False)}
    hooks = getattr(ddp, "_comm_hooks", [])
    static = getattr(ddp.reducer, "_ddp_graph_static", None)
    return DdpModule(
        name=type(ddp.module).__name__,
        settings=ddp_settings(ddp),
        comm_hook=getattr(hooks[0][0], "__qualname__", repr(hooks[0][0])) if hooks else None,
        parameters=tuple(
            Parameter(name, parameter.numel() * parameter.element_size(), *_kind_of(parameter), sparse)
            for name, parameter, sparse in zip(*of_reducer, strict=True)
        ),
        buckets=tuple(map(tuple, bucket_layout(ddp, of_reducer))),
        num_buffers=len(ddp.modules_buffers),
        buffer_bytes=sum(buffer.numel() * buffer.element_size() for buffer in ddp.modules_buffers),
        num_batch_norms=len(batch_norms),
        num_buffers_of_batch_norms=sum(id(buffer) in of_batch_norms for buffer in ddp.modules_buffers),
        unused=None if unused is None else tuple(of_reducer.names[index] for index in sorted(unused)),
        graph_is_static=bool(static()) if static is not None else None,
        num_searched_passes=num_searched,
        num_lacking_passes=num_lacking,
    )


def data_parallel_facts(model: torch.nn.DataParallel[Any]) -> DataParallelModule:
    """Describe one module of a process that trains without DDP."""
    parameters = list(model.module.parameters())
    return DataParallelModule(
        name=type(model.module).__name__,
        device_ids=tuple(int(device) for device in model.device_ids),
        num_parameters=len(parameters),
        parameter_bytes=sum(parameter.numel() * parameter.element_size() for parameter in parameters),
    )
