"""Gradients are accumulated over four batches by hand, in a loop that Accelerate does not know about."""

import torch
from accelerate import Accelerator
from torch import nn

STEPS, BATCHES = 60, 4
accelerator = Accelerator(cpu=True)
layers = [nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(6)]
model = nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer = accelerator.prepare(model, optimizer)
for step in range(STEPS):
    for batch in range(BATCHES):
        loss = model(torch.randn(16, 1024)).square().mean() / BATCHES
        accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
accelerator.end_training()
