"""Training that reads a value from the device in the middle of each step, and then keeps the host busy for a while.

With --copies, each batch is copied from memory that is not pinned. With --empties-cache, each step returns the unused
memory of torch to the device.
"""

import time

import plain as ranks
import timing
import torch


def train(rank, device, options):
    model = ranks.wrap(timing.layers(1024, 4), device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(512, 1024).repeat(32, 1)
    inputs = batch[:512].to(device)
    for _ in range(options.steps):
        optimizer.zero_grad()
        if options.copies:
            inputs = batch.to(device)[:512]
        if options.empties_cache:
            torch.cuda.empty_cache()
        loss = model(inputs).square().mean()
        loss.item()  # the line that is to be named
        time.sleep(options.delay_s)
        loss.backward()
        optimizer.step()
    ranks.tell(rank, num_steps=options.steps)


if __name__ == "__main__":
    parser = ranks.parser()
    parser.add_argument("--delay-s", type=float, default=0.02)
    parser.add_argument("--copies", action="store_true")
    parser.add_argument("--empties-cache", action="store_true")
    ranks.run(train, parser.parse_args())
