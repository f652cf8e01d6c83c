"""Training that reads a value from the device in the middle of each step, and then keeps the host busy for a while."""

import time

import plain as ranks
import timing
import torch


def train(rank, device, options):
    model = ranks.wrap(timing.layers(1024, 4), device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = torch.randn(512, 1024).to(device)
    for _ in range(options.steps):
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.item()  # the line that is to be named
        time.sleep(options.delay_s)
        loss.backward()
        optimizer.step()
    ranks.tell(rank, num_steps=options.steps)


if __name__ == "__main__":
    parser = ranks.parser()
    parser.add_argument("--delay-s", type=float, default=0.02)
    ranks.run(train, parser.parse_args())
