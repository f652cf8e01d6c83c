"""Train one of the models under DDP and torch.compile until it is stopped, as a user's script would.

python train.py MODEL SETTING-AS-JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
from interleaved import join, pin
from models import convnet, embeddings, mlp, transformer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MODELS = {
    "mlp": lambda: mlp(batch=256),
    "transformer": lambda: transformer(batch=5),
    "convnet": lambda: convnet(batch=6),
    "embeddings": embeddings,
}
BACKENDS = {"embeddings": "inductor"}
"""backends of torch.compile; that of the other models is ``aot_eager``, which needs no C++ compiler"""


def of_own_code(net: nn.Module) -> nn.Module:
    """Return a module that calls `net`, with code of its own.

    torch.compile keeps what it compiled with the code, and would use the graphs of another setting otherwise.
    """

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.net(inputs)

    Model.forward = FunctionType(Model.forward.__code__.replace(), globals())
    return Model()


class Training:
    """One model, compiled and wrapped as `setting` says: ``order``, ``optimize_ddp``, and arguments of ``ddp``."""

    def __init__(self, name: str, setting: dict[str, Any]) -> None:
        torch.manual_seed(0)
        torch._dynamo.config.optimize_ddp = setting["optimize_ddp"]
        self.inputs, self.targets, net, self.loss = MODELS[name]()
        model, backend = of_own_code(net), BACKENDS.get(name, "aot_eager")
        if setting["order"] == "model_first":
            self.model = DistributedDataParallel(torch.compile(model, backend=backend), **setting["ddp"])
        else:
            self.model = torch.compile(DistributedDataParallel(model, **setting["ddp"]), backend=backend)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss(self.model(self.inputs), self.targets).backward()
        self.optimizer.step()


if __name__ == "__main__":
    pin()
    join()
    training = Training(sys.argv[1], json.loads(sys.argv[2]))
    while True:
        training.step()
