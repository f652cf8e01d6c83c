"""Train a small model. Print a hash of its parameters, and how the process group and the devices were used.

The script never calls ``torch.cuda.set_device``, so it creates no contexts on the devices of other ranks itself.
"""

import hashlib

import ranks
import torch
import torch.distributed as dist
from torch import nn

SYNCHRONISES = [(torch.cuda, "synchronize"), (torch.accelerator, "synchronize")]


def count_synchronising_calls():
    """Wrap functions that synchronize the device. Return a list that grows with each call."""
    calls = []
    for owner, name in SYNCHRONISES:
        original = getattr(owner, name)

        def counted(*args, original=original, **kwargs):
            calls.append(original)
            return original(*args, **kwargs)

        setattr(owner, name, counted)
    return calls


def train(rank, device, options):
    calls = count_synchronising_calls()
    in_window = 0
    model = ranks.wrap(nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 1)), device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(7 + rank)
    for step in range(options.steps):
        before = len(calls)
        optimizer.zero_grad()
        inputs = torch.randn(32, 64).to(device)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True).sign())
        loss.backward()
        optimizer.step()
        in_window += len(calls) - before if step < options.window else 0
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.detach().cpu().numpy().tobytes())
    contexts = []
    if device.type == "cuda":
        contexts = [i for i in range(torch.cuda.device_count()) if torch._C._cuda_hasPrimaryContext(i)]
    mine = {"contexts": [i for i in contexts if i != device.index]}
    collectives = dist.group.WORLD._get_sequence_number_for_group()
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, mine)
    ranks.tell(
        rank,
        parameters=digest.hexdigest(),
        collectives=collectives,
        synchronising_calls=len(calls) - in_window,
        foreign_contexts=sorted({i for one in everyones for i in one["contexts"]}),
        patience_s=ranks.PATIENCE.total_seconds(),
    )


if __name__ == "__main__":
    parser = ranks.parser()
    parser.add_argument("--window", type=int, default=0, help="do not count calls in the first N steps")
    ranks.run(train, parser.parse_args())
