"""Trains without torch's DDP under a torch.profiler of its own: gradients reduced by its own means, or something else.

python own_reduction.py FOLDER hooks|after|metrics|fsdp|fsdp-whole
"""

import sys
import time

import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.profiler import profile, schedule

WIDTH, LAYERS, STEPS = 256, 6, 3


class ReducedByHooks(torch.nn.Module):
    """As Apex does: flattened, all-reduced when enough gradients are there, copied back when the backward is over."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.waiting, self.sent = [], []
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(self.gradient_is_there)

    def forward(self, batch):
        return self.module(batch)

    def gradient_is_there(self, parameter):
        if not self.waiting and not self.sent:
            torch.autograd.Variable._execution_engine.queue_callback(self.backward_is_over)
        self.waiting.append(parameter)
        if sum(one.numel() for one in self.waiting) >= 2 * WIDTH * WIDTH:
            self.send()

    def send(self):
        bucket, self.waiting = self.waiting, []
        flat = _flatten_dense_tensors([one.grad for one in bucket])
        self.sent.append((dist.all_reduce(flat, async_op=True), flat, bucket))

    def backward_is_over(self):
        for work, flat, bucket in self.sent:
            work.wait()
            flat.div_(dist.get_world_size())
            gradients = [one.grad for one in bucket]
            for gradient, reduced in zip(gradients, _unflatten_dense_tensors(flat, gradients), strict=True):
                gradient.copy_(reduced)
        self.sent = []


def main():
    folder, how = sys.argv[1:3]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    if how == "hooks":
        model = ReducedByHooks(model)
    elif how.startswith("fsdp"):
        whole = ShardingStrategy.NO_SHARD if how == "fsdp-whole" else ShardingStrategy.FULL_SHARD
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), sharding_strategy=whole)
    if how == "metrics":
        next(model.parameters()).register_hook(lambda gradient: dist.all_reduce(gradient.norm()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = schedule(wait=1, warmup=1, active=STEPS, repeat=1)
    written = f"{folder}/rank{dist.get_rank()}.json"

    def keep(profiler):
        profiler.export_chrome_trace(written)

    with profile(schedule=steps, record_shapes=True, on_trace_ready=keep) as profiler:
        for _ in range(2 + STEPS):
            optimizer.zero_grad()
            model(torch.randn(64, WIDTH)).square().mean().backward()
            optimizer.step()
            if how == "after":
                for parameter in model.parameters():
                    dist.all_reduce(parameter.data)
                    parameter.data.div_(dist.get_world_size())
            profiler.step()
    time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that


main()
