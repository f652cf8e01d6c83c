"""DDP's arguments and the ways to use it, one by one, on one model with several buckets.

Every rank prints ``rank R VARIANT params-sha256 HEX`` at the end.

torchrun --nproc-per-node 3 variants.py --variant fp16_hook --steps 20
torchrun --nproc-per-node 2 variants.py --variant plain join                 one after the other
python variants.py --list
"""

import argparse
import contextlib
import hashlib
import sys
import time

import torch
import torch.distributed as dist
from comm_hooks import allreduce_hook, fp16_hook, fp16_wrapped_powersgd_hook, own_hook, powersgd_hook
from ordinary_training import CAP_MB, Model, batches, momentum_sgd, ordinary_steps, train_with
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def unused_that_changes(steps, rank):
    """The spare branch is used in every other step."""
    model = Model()
    ddp = DDP(model, find_unused_parameters=True, bucket_cap_mb=CAP_MB)
    optimizer = momentum_sgd(ddp)
    for step, (x, y) in enumerate(batches(steps, rank)):
        model.use_spare = step % 2 == 0
        ordinary_steps(ddp, optimizer, [(x, y)])
    return ddp


def no_sync(steps, rank):
    ddp = DDP(Model(), bucket_cap_mb=CAP_MB)
    optimizer = momentum_sgd(ddp)
    for index, (x, y) in enumerate(batches(steps, rank, micro_batches=3)):
        last = index % 3 == 2
        with contextlib.nullcontext() if last else ddp.no_sync():
            (nn.functional.cross_entropy(ddp(x), y) / 3).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
    return ddp


def join(steps, rank, **arguments):
    """Rank r has r more batches than rank 0."""
    ddp = DDP(Model(with_batch_norm=False), bucket_cap_mb=CAP_MB)
    with ddp.join(**arguments):
        ordinary_steps(ddp, momentum_sgd(ddp), batches(steps + 2 * rank, rank))
    return ddp


def two_modules(steps, rank):
    first, second = (
        DDP(Model(), bucket_cap_mb=CAP_MB),
        DDP(nn.Sequential(nn.Linear(7, 33), nn.Tanh(), nn.Linear(33, 7))),
    )
    optimizers = momentum_sgd(first), torch.optim.Adam(second.parameters())
    for x, y in batches(steps, rank):
        for optimizer in optimizers:
            optimizer.zero_grad()
        nn.functional.cross_entropy(second(first(x)), y).backward()
        for optimizer in optimizers:
            optimizer.step()
    return nn.ModuleList([first, second])


class NoStream:
    """Where there is no accelerator, DDP's own hook for optimizers in the backward pass finds no stream to make."""

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return None

    def wait_stream(self, other):
        return None


def optimizer_in_backward(steps, rank, **arguments):
    from torch.distributed.optim import _apply_optimizer_in_backward

    if not torch.accelerator.is_available():
        torch.Stream = NoStream
        torch.accelerator.current_stream = NoStream
    model = Model()
    _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.03})
    ddp = DDP(model, bucket_cap_mb=CAP_MB, **arguments)
    for x, y in batches(steps, rank):
        nn.functional.cross_entropy(ddp(x), y).backward()
    return ddp


def compiled(steps, rank, backend, **arguments):
    """Dynamo's DDPOptimizer splits the graph at the buckets, which it wants no smaller than the first one's 1 MiB."""
    ddp = DDP(Model(hidden=2001), bucket_cap_mb=1, **arguments)
    ordinary_steps(torch.compile(ddp, backend=backend), momentum_sgd(ddp), batches(steps, rank))
    return ddp


def compiled_inside(steps, rank):
    """The module is compiled, and DDP wraps that."""
    return train_with(steps, rank, model=torch.compile(Model(hidden=2001), backend="eager"), bucket_cap_mb=1)


def delay_all_reduce(steps, rank):
    """The last block's gradients travel together, once the stem's are there; the reducer ignores them."""
    model = Model()
    delayed = [(name, parameter) for name, parameter in model.named_parameters() if name.startswith("blocks.3.")]
    ddp = DDP(
        model,
        delay_all_reduce_named_params=delayed,
        param_to_hook_all_reduce=model.stem.weight,
        bucket_cap_mb=CAP_MB,
    )
    optimizer = momentum_sgd(ddp)
    for x, y in batches(steps, rank):
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(x), y).backward()
        time.sleep(0.05)  # torch 2.13 never waits for the delayed all-reduce, and hands out nothing to wait for
        optimizer.step()
    return ddp


def frozen(steps, rank):
    model = Model()
    model.blocks[0].requires_grad_(False)
    return train_with(steps, rank, model=model)


def checkpointed(steps, rank):
    """Activation checkpointing: the forward of a block runs again inside the backward pass."""
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Model):
        def forward(self, x):
            x = self.norm(self.stem(x))
            for block in self.blocks:
                x = x + checkpoint(block, x, use_reentrant=False)
            return self.head(x + self.spare(x))

    return train_with(steps, rank, model=Checkpointed())


def two_backwards(steps, rank):
    """Two losses, each with its own backward; the first one is local, under no_sync."""
    ddp = DDP(Model(), bucket_cap_mb=CAP_MB)
    optimizer = momentum_sgd(ddp)
    for x, y in batches(steps, rank):
        optimizer.zero_grad()
        with ddp.no_sync():
            ddp(x).square().mean().backward()
        nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()
    return ddp


def subgroup(steps, rank):
    """A process group of the user's own, not the default one."""
    return train_with(steps, rank, process_group=dist.new_group(list(range(dist.get_world_size()))))


def mixed_dtypes(steps, rank):
    """Two dtypes: no bucket holds both."""

    class Mixed(Model):
        def __init__(self):
            super().__init__()
            self.spare = self.spare.double()

        def forward(self, x):
            x = self.norm(self.stem(x))
            for block in self.blocks:
                x = x + block(x)
            return self.head(x + self.spare(x.double()).float())

    return train_with(steps, rank, model=Mixed())


def gradients_kept(steps, rank):
    """zero_grad(set_to_none=False), so that views stay views."""
    ddp = DDP(Model(), gradient_as_bucket_view=True, bucket_cap_mb=CAP_MB)
    optimizer = momentum_sgd(ddp)
    for x, y in batches(steps, rank):
        optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()
    return ddp


def python_reducer(steps, rank):
    """No C++ reducer: compiled autograd traces the collectives."""
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        ddp = DDP(Model(with_batch_norm=False), bucket_cap_mb=CAP_MB)
        step = torch.compile(ddp, backend="eager")
        optimizer = momentum_sgd(ddp)
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            ordinary_steps(step, optimizer, batches(steps, rank))
    return ddp


def sync_batch_norm(steps, rank):
    """All ranks on one GPU, through gloo: NCCL wants a GPU for each."""
    model = nn.SyncBatchNorm.convert_sync_batchnorm(Model()).cuda()
    ddp = DDP(model, device_ids=[0], bucket_cap_mb=CAP_MB)
    ordinary_steps(ddp, momentum_sgd(ddp), [(x.cuda(), y.cuda()) for x, y in batches(steps, rank)])
    return ddp.cpu()


def with_arguments(function=train_with, **arguments):
    return lambda steps, rank: function(steps, rank, **arguments)


VARIANTS = {
    "plain": with_arguments(),
    "default_bucket": with_arguments(bucket_cap_mb=None),
    "allreduce_hook": with_arguments(hook=allreduce_hook),
    "fp16_hook": with_arguments(hook=fp16_hook),
    # One bucket: the hook waits for collectives on the threads that run them, of which gloo has two.
    "powersgd_hook": with_arguments(hook=powersgd_hook, bucket_cap_mb=25),
    "fp16_powersgd_hook": with_arguments(hook=fp16_wrapped_powersgd_hook, bucket_cap_mb=25),
    "own_hook": with_arguments(hook=own_hook),
    "find_unused": lambda steps, rank: train_with(
        steps, rank, model=Model(use_spare=False), find_unused_parameters=True
    ),
    "find_unused_changing": unused_that_changes,
    "static_graph": with_arguments(static_graph=True),
    "bucket_view": with_arguments(gradient_as_bucket_view=True),
    "bucket_view_kept": gradients_kept,
    "no_buffer_sync": with_arguments(forward_sync_buffers=False),
    "no_sync": no_sync,
    "join": join,
    "join_divide_remaining": with_arguments(join, divide_by_initial_world_size=False),
    "two_modules": two_modules,
    "two_backwards": two_backwards,
    "optimizer_in_backward": optimizer_in_backward,
    "optimizer_in_backward_view": with_arguments(optimizer_in_backward, gradient_as_bucket_view=True),
    "compiled": with_arguments(compiled, backend="eager"),
    "compiled_inductor": with_arguments(compiled, backend="inductor"),
    "compiled_static": with_arguments(compiled, backend="eager", static_graph=True),
    "compiled_inside": compiled_inside,
    "python_reducer": python_reducer,
    "bucket_cap_mb_list": with_arguments(bucket_cap_mb_list=[0.01, 0.03, 0.05]),
    "batched_grad_copy": with_arguments(batched_grad_copy=True),
    "batched_grad_copy_view": with_arguments(batched_grad_copy=True, gradient_as_bucket_view=True),
    "delay_all_reduce": delay_all_reduce,
    "skip_unused": lambda steps, rank: train_with(
        steps, rank, model=Model(use_spare=False), find_unused_parameters=True, skip_all_reduce_unused_params=True
    ),
    "frozen": frozen,
    "checkpointed": checkpointed,
    "subgroup": subgroup,
    "mixed_dtypes": mixed_dtypes,
}
if torch.cuda.is_available():  # SyncBatchNorm refuses modules on the CPU
    VARIANTS["sync_batch_norm"] = sync_batch_norm


def run(args):
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    for name in args.variant:
        torch.manual_seed(17)
        trained = VARIANTS[name](args.steps, rank)
        digest = hashlib.sha256()
        for parameter in trained.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        sys.stdout.write(f"rank {rank} {name} params-sha256 {digest.hexdigest()}\n")  # in one write, of several ranks
        sys.stdout.flush()
        dist.barrier()
    time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", choices=VARIANTS, nargs="+", default=["plain"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--list", action="store_true", help="print the variants' names")
    args = parser.parse_args()
    if args.list:
        print(*VARIANTS, sep="\n")
    else:
        run(args)


if __name__ == "__main__":
    main()
