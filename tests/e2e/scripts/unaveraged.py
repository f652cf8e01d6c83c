"""Two modules, one of which trains without DDP's averaging in some ways: ``--way NAME``. It prints whether ranks agree.

inner        all losses are computed from model.module
second       the second DDP module is called through .module
forgotten    the second module is not wrapped
scale        a parameter of the loss is not wrapped
by-hand      the second module is not wrapped, and the script averages its gradients itself
called       both DDP modules are called
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--way", required=True)
way = parser.parse_args().way
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
first, second = DDP(nn.Linear(8, 16)), nn.Linear(16, 4)
if way in ("second", "called"):
    second = DDP(second)
scale = nn.Parameter(torch.ones(()))
parameters = [*first.parameters(), *([] if way == "inner" else second.parameters())]
optimizer = torch.optim.SGD([*parameters, *([scale] if way == "scale" else [])], 0.01)
own = torch.Generator().manual_seed(dist.get_rank())
for _ in range(30):
    optimizer.zero_grad()
    hidden = (first.module if way == "inner" else first)(torch.randn(4, 8, generator=own))
    output = hidden if way in ("inner", "scale") else (second.module if way == "second" else second)(hidden)
    (output * scale).square().mean().backward()
    if way == "by-hand":
        for one in second.parameters():
            dist.all_reduce(one.grad)
            one.grad /= dist.get_world_size()
    optimizer.step()
last = scale if way == "scale" else parameters[-1]
of_all = [torch.empty_like(last.data) for _ in range(dist.get_world_size())]
dist.all_gather(of_all, last.data)
if dist.get_rank() == 0:
    print("equal" if all(torch.equal(one, of_all[0]) for one in of_all) else "different", flush=True)
time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
dist.destroy_process_group()
