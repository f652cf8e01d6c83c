"""Training with steps of equal work, each timed by the script itself."""

import time

import plain as ranks
import timing
import torch


def train(rank, device, options):
    model = ranks.wrap(timing.layers(options.width, 4), device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    inputs = torch.randn(options.batch, options.width).to(device)
    clock = timing.StepClock(device)
    for _ in range(options.steps):
        optimizer.zero_grad()
        if rank == options.slow_rank:
            time.sleep(options.delay_s)
        model(inputs).square().mean().backward()
        optimizer.step()
        clock.step_ends()
    gpus = range(torch.cuda.device_count())
    ranks.tell(rank, steps_ns=clock.steps_ns(), contexts=[gpu for gpu in gpus if torch._C._cuda_hasPrimaryContext(gpu)])


if __name__ == "__main__":
    parser = ranks.parser()
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--delay-s", type=float, default=0.1)
    ranks.run(train, parser.parse_args())
