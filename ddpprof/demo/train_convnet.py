"""Train a small convolutional network with BatchNorm on synthetic images, with DistributedDataParallel.

python train_convnet.py             starts its own ranks: one per GPU if there are several, otherwise two on the CPU
torchrun --nproc-per-node 2 train_convnet.py
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


class SyntheticImages(Dataset):
    """Random images with a brighter horizontal stripe. The position of the stripe is the label."""

    def __init__(self, num_images, num_classes=10, size=32, seed=0):
        self.num_images, self.num_classes, self.size, self.seed = num_images, num_classes, size, seed

    def __len__(self):
        return self.num_images

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.seed + index)
        label = index % self.num_classes
        image = torch.randn(3, self.size, self.size, generator=generator)
        row = label * self.size // self.num_classes
        image[:, row : row + 3] += 1.0
        return image, label


def conv_block(channels_in, channels_out, stride):
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
    )


class ConvNet(nn.Module):
    def __init__(self, num_classes=10, width=32):
        super().__init__()
        self.features = nn.Sequential(
            conv_block(3, width, stride=1),
            conv_block(width, width * 2, stride=2),
            conv_block(width * 2, width * 4, stride=2),
            conv_block(width * 4, width * 8, stride=2),
        )
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(width * 8 * 4, 1024),
            nn.ReLU(inplace=True),
            nn.Linear(1024, num_classes),
        )

    def forward(self, images):
        return self.head(self.features(images))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--width", type=int, default=32, help="channels of the first layer")
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

    dataset = SyntheticImages(num_images=args.batch_size * world_size * 16)
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, num_workers=args.workers, drop_last=True)
    model = DistributedDataParallel(
        ConvNet(width=args.width).to(device),
        device_ids=[local_rank] if on_gpu else None,
        bucket_cap_mb=args.bucket_cap_mb,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    loss_function = nn.CrossEntropyLoss()

    step, epoch, loss = 0, 0, None
    while step < args.steps:
        sampler.set_epoch(epoch)
        for images, labels in loader:
            if step == args.steps:
                break
            loss = loss_function(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
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
