"""A training with the mistakes that DDP users make. Which one: ``--mistake NAME``.

torchrun --nproc-per-node 2 mistakes.py --mistake no_sampler
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Subset
from torch.utils.data.distributed import DistributedSampler


class Data(Dataset):
    def __init__(self, delay_s=0.0):
        self.delay_s = delay_s

    def __len__(self):
        return 160

    def __getitem__(self, index):
        time.sleep(self.delay_s)
        return torch.full((256,), float(index)), torch.tensor(index % 4)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)])
        self.norm = nn.BatchNorm1d(256)
        self.spare = nn.Linear(256, 256)
        self.head = nn.Linear(256, 4)

    def forward(self, x, use_spare):
        x = self.norm(self.body(x))
        return self.head(x + self.spare(x) if use_spare else x)


def seed(mistake, model):
    """Let the model drop activations, with random numbers that are each rank's own, or not."""
    model.module.norm.register_forward_hook(lambda _, __, out: nn.functional.dropout(out, 0.1))
    torch.manual_seed(0 if mistake == "same_seed" else dist.get_rank())


@torch.no_grad()
def evaluate(model, loader):
    """Evaluate on one rank, as its own model, while the others wait in the next step."""
    model.eval()
    if dist.get_rank() == 0:
        for x, _ in loader:
            model.module(x, use_spare=True)
            time.sleep(0.05)
    model.train()


def write_log():
    time.sleep(0.03)


@torch.no_grad()
def average_weights(model, averages):
    for decay in range(60):
        for average, parameter in zip(averages, model.parameters(), strict=True):
            average.mul_(decay / 60).add_(parameter, alpha=1 - decay / 60)


def work_beside_training(mistake, index, model, evaluated, averages):
    rank = dist.get_rank()
    if mistake == "forward_for_metrics":
        model(torch.ones(8, 256), use_spare=True).argmax(1)
    if mistake == "weights_averaged":
        average_weights(model, averages)
    takes_turn = mistake == "take_turns" and index % 2 == rank
    if mistake == "slow_log" or (mistake == "slow_log_of_a_rank" and rank == 1) or takes_turn:
        write_log()
    if mistake == "evaluates_often" and index % 5 == 4:
        evaluate(model, evaluated)


def groups_of(model, mistake):
    body = list(model.body.parameters())
    of_body = set(body)
    others = [parameter for parameter in model.parameters() if parameter not in of_body]
    if mistake == "only_the_body":
        return [{"params": body}]
    return [{"params": body}, {"params": others, **({"lr": 0.0} if mistake == "no_rate" else {})}]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mistake", required=True)
    mistake = parser.parse_args().mistake
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    searching = mistake in ("find_unused_for_nothing", "unused", "branches_take_turns", "branch_by_rank")
    model = DDP(Model(), find_unused_parameters=searching, bucket_cap_mb=0.1 if mistake == "small_buckets" else None)
    if mistake in ("same_seed", "none"):
        seed(mistake, model)
    if mistake == "slow_hook":
        model.module.head.weight.register_hook(lambda _: write_log())
    torch.autograd.set_detect_anomaly(mistake == "anomaly")
    data = Data(0.002 if mistake == "slow_data" else 0.0)
    sampler = None if mistake == "no_sampler" else DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, shuffle=sampler is None)
    evaluated = DataLoader(Subset(data, range(16)), batch_size=8)
    if mistake == "double":
        model.double()
    teacher = Model() if mistake == "teacher" else None
    optimizer = torch.optim.SGD(groups_of(model.module, mistake), lr=1e-4)
    averages = [parameter.detach().clone() for parameter in model.parameters()]
    always = mistake not in ("unused", "unused_unsearched")
    for epoch in range(3):
        if sampler is not None and mistake != "no_set_epoch":
            sampler.set_epoch(epoch)
        for index, (x, y) in enumerate(loader):
            use_spare = always
            if mistake == "branches_take_turns":
                use_spare = index % 2 == 0
            elif mistake == "branch_by_rank":
                use_spare = dist.get_rank() == 0
            elif mistake == "bad_batch" and (epoch, index, dist.get_rank()) == (1, 4, 1):
                x[0] = float("nan")
            optimizer.zero_grad()
            outputs = model(x.double() if mistake == "double" else x, use_spare=use_spare)
            loss = nn.functional.cross_entropy(outputs, y)
            if teacher is not None:
                loss = loss + nn.functional.mse_loss(outputs, teacher(x, use_spare=True))
            loss.backward()
            optimizer.step()
            work_beside_training(mistake, index, model, evaluated, averages)
        if mistake == "same_checkpoint" or dist.get_rank() == 0:
            torch.save(model.state_dict(), "checkpoint.pt")
    time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
