"""Uses all that DistributedDataParallel offers to a script, and prints what it sees and a hash of what it trained."""

import argparse
import copy
import hashlib
import io
import os
import pickle
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--without-ddp", action="store_true", help="the bare module, for comparison")
parser.add_argument("--static-graph", action="store_true")
parser.add_argument("--comm-hook", action="store_true")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--checkpoint")
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
net = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 8))
model = net if args.without_ddp else DDP(net, static_graph=args.static_graph)
if not args.without_ddp:
    assert isinstance(model, DDP)
    assert model.module is net
    assert all(name.startswith("module.") for name in model.state_dict())
    assert model._get_ddp_logging_data()["module_name"] == "Sequential"
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    assert isinstance(pickle.loads(pickle.dumps(model)), DDP)
    if args.comm_hook:
        model.register_comm_hook(None, default_hooks.allreduce_hook)
run = torch.compile(model, backend="eager") if args.compile else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train():
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(args.steps):
        optimizer.zero_grad()
        if step % 3 == 1 and not args.static_graph:
            if args.without_ddp:
                run(torch.randn(16, 32, generator=generator)).square().mean().backward()
            else:
                with model.no_sync():
                    run(torch.randn(16, 32, generator=generator)).square().mean().backward()
        run(torch.randn(16, 32, generator=generator)).square().mean().backward()
        optimizer.step()
        if args.checkpoint and step == 10:
            torch.save(model.state_dict(), args.checkpoint)
            buffer = io.BytesIO()
            torch.save(model.state_dict(), buffer)
            Path(f"{args.checkpoint}.buffer").write_bytes(buffer.getvalue())


if args.without_ddp or args.static_graph:
    train()
else:
    with model.join():
        train()
digest = hashlib.sha256()
for parameter in net.parameters():
    digest.update(parameter.detach().numpy().tobytes())
print(f"rank {os.environ['RANK']} trained {digest.hexdigest()}\n", end="", flush=True)  # in one write
time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
dist.destroy_process_group()
