"""Communication hooks for DDP, each with its state: torch's own, and one of a user."""

import torch.distributed as dist


def fp16_hook():
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    return None, fp16_compress_hook


def allreduce_hook():
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    return None, allreduce_hook


def powersgd_hook():
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    state = PowerSGDState(
        process_group=None, matrix_approximation_rank=2, start_powerSGD_iter=4, min_compression_rate=1
    )
    return state, powerSGD_hook


def fp16_wrapped_powersgd_hook():
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_wrapper

    state, hook = powersgd_hook()
    return state, fp16_compress_wrapper(hook)


def own_hook():
    """A user's hook with state of its own, which it changes in each call."""

    class State:
        def __init__(self):
            self.calls = 0

    def hook(state, bucket):
        state.calls += 1
        scale = 1.0 / (dist.get_world_size() * (1 + state.calls % 3 * 1e-3))
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0].mul_(scale))

    return State(), hook
