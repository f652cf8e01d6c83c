"""How much longer is a step because gradients are averaged? Steps with and without `no_sync` alternate."""

from contextlib import nullcontext

import plain as ranks
import timing
import torch


def train(rank, device, options):
    model = ranks.wrap(timing.layers(options.width, 6), device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    inputs = torch.randn(options.batch, options.width).to(device)
    clock = timing.StepClock(device)
    for step in range(options.steps + options.turns):
        without = step >= options.steps and step % 2
        optimizer.zero_grad()
        with model.no_sync() if without else nullcontext():
            model(inputs).square().mean().backward()
        optimizer.step()
        clock.step_ends()
    steps_ns = clock.steps_ns()  # of step 1 and later
    turns = {step: steps_ns[step - 1] for step in range(options.steps + 2, options.steps + options.turns)}
    ranks.tell(
        rank,
        with_ns=[ns for step, ns in turns.items() if not step % 2],
        without_ns=[ns for step, ns in turns.items() if step % 2],
    )


if __name__ == "__main__":
    parser = ranks.parser()
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--turns", type=int, default=100)
    ranks.run(train, parser.parse_args())
