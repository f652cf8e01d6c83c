"""Two trainers with DDP, and a third process that keeps their embeddings and answers by RPC.

python parameter_server.py
"""

import argparse
import hashlib
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed import rpc
from torch.nn.parallel import DistributedDataParallel as DDP

ROWS, WIDTH, BATCH = 1000, 16, 8
tables = {}


def lookup(trainer, indices):
    table = tables.setdefault(trainer, torch.linspace(-1, 1, ROWS * WIDTH).reshape(ROWS, WIDTH))
    return table[indices]


def push(trainer, indices, gradient):
    tables[trainer].index_add_(0, indices, gradient, alpha=-0.1)


def train(rank, steps):
    torch.manual_seed(7)
    model = DDP(nn.Linear(WIDTH, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(steps):
        indices = torch.randperm(ROWS)[:BATCH]
        single = [rpc.rpc_sync("server", lookup, args=(rank, indices[i : i + 1])) for i in range(BATCH)]
        again = rpc.rpc_async("server", lookup, kwargs={"trainer": rank, "indices": indices})
        inputs = ((torch.cat(single) + again.wait()) / 2).requires_grad_()
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        optimizer.step()
        rpc.rpc_sync("server", push, args=(rank, indices, inputs.grad))
    if rank == 0:
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        print("params-sha256", digest.hexdigest(), flush=True)


def work(rank, folder, steps):
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/rpc")
    if rank == 2:
        rpc.init_rpc("server", rank=rank, world_size=3, rpc_backend_options=options)
        rpc.shutdown()
        return
    dist.init_process_group("gloo", init_method=f"file://{folder}/ddp", rank=rank, world_size=2)
    rpc.init_rpc(f"trainer{rank}", rank=rank, world_size=3, rpc_backend_options=options)
    train(rank, steps)
    dist.barrier()
    rpc.shutdown()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(folder, args.steps), nprocs=3)


if __name__ == "__main__":
    main()
