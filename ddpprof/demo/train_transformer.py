"""Train a small transformer encoder to predict masked tokens, with DistributedDataParallel.

python train_transformer.py         starts its own ranks: one per GPU if there are several, otherwise two on the CPU
torchrun --nproc-per-node 2 train_transformer.py
"""

import argparse
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

MASK = 0


class SyntheticSentences(Dataset):
    """Arithmetic sequences of tokens, as pairs of the masked and the complete sequence."""

    def __init__(self, num_sentences, vocabulary, length, read_ms, seed=0):
        self.num_sentences, self.vocabulary, self.length, self.seed = num_sentences, vocabulary, length, seed
        self.read_ms = read_ms

    def __len__(self):
        return self.num_sentences

    def __getitem__(self, index):
        time.sleep(self.read_ms / 1e3)
        generator = torch.Generator().manual_seed(self.seed + index)
        start, stride = torch.randint(1, self.vocabulary - 1, (2,), generator=generator).tolist()
        whole = (start + (stride % 7 + 1) * torch.arange(self.length)) % (self.vocabulary - 1) + 1
        hidden = torch.rand(self.length, generator=generator) < 0.15
        return whole.masked_fill(hidden, MASK), whole


class MaskedLanguageModel(nn.Module):
    def __init__(self, vocabulary, length, width, layers):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.to_logits = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.to_logits(self.encoder(self.tokens(tokens) + self.positions))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=8, help="per rank")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--length", type=int, default=48, help="tokens in a sentence")
    parser.add_argument("--vocabulary", type=int, default=4000)
    parser.add_argument("--read-ms", type=float, default=0.0, help="simulated time to read a sentence from a slow disk")
    parser.add_argument("--workers", type=int, default=0, help="data-loading processes per rank")
    parser.add_argument("--bucket-cap-mb", type=float, default=None, help="bucket size of DDP (default: DDP's own)")
    parser.add_argument("--ranks", type=int, default=None, help="number of ranks to start without a launcher")
    return parser.parse_args()


def train(args):
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    on_gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    torch.manual_seed(0)

    dataset = SyntheticSentences(args.batch_size * world_size * 16, args.vocabulary, args.length, args.read_ms)
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, num_workers=args.workers, drop_last=True)
    model = DistributedDataParallel(
        MaskedLanguageModel(args.vocabulary, args.length, args.width, args.layers).to(device),
        device_ids=[local_rank] if on_gpu else None,
        bucket_cap_mb=args.bucket_cap_mb,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loss_function = nn.CrossEntropyLoss()

    step, epoch, loss = 0, 0, None
    while step < args.steps:
        sampler.set_epoch(epoch)
        for tokens, targets in loader:
            if step == args.steps:
                break
            logits = model(tokens.to(device))
            loss = loss_function(logits.flatten(0, 1), targets.to(device).flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
        epoch += 1

    if rank == 0 and loss is not None:
        print(f"{step} steps on {world_size} ranks, loss {loss.item():.4f}")
    if not on_gpu:
        time.sleep(0.2)  # otherwise, PyTorch may abort, because gloo threads still use gradients
    dist.destroy_process_group()


def start_rank(rank, world_size, port, args):
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size)
    )
    train(args)


def main():
    args = parse_arguments()
    if "RANK" in os.environ:
        train(args)
        return
    ranks = args.ranks or max(2, torch.cuda.device_count())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(start_rank, args=(ranks, port, args), nprocs=ranks)


if __name__ == "__main__":
    main()
