"""Training with unusual steps: skipped by a GradScaler, with a closure, or compiled."""

import plain as ranks
import timing
import torch


def amp(model, optimizer, inputs, options):
    """Train with overflows in every fifth step, which the scaler skips but which still counts as a step."""
    scaler = torch.amp.GradScaler(inputs.device.type, init_scale=8.0)
    for step in range(options.steps):
        optimizer.zero_grad()
        loss = model(inputs).sum()
        scaler.scale(loss * float("inf") if step % 5 == 4 else loss).backward()
        scaler.step(optimizer)
        scaler.update()


def closure(model, optimizer, inputs, options):
    def evaluate():
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        return loss

    for _ in range(options.steps):
        optimizer.step(evaluate)


def compiled(model, optimizer, inputs, options):
    model = torch.compile(model, backend="eager" if inputs.device.type == "cpu" else "inductor")
    for _ in range(options.steps):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def train(rank, device, options):
    model = ranks.wrap(timing.layers(64, 2), device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    {"amp": amp, "closure": closure, "compiled": compiled}[options.kind](
        model, optimizer, torch.randn(8, 64).to(device), options
    )
    ranks.tell(rank, num_steps=options.steps)


if __name__ == "__main__":
    parser = ranks.parser()
    parser.add_argument("--kind", choices=["amp", "closure", "compiled"], default="amp")
    ranks.run(train, parser.parse_args())
