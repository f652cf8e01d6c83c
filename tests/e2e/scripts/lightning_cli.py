"""Lightning's command line around its demonstration model: Lightning starts the second process itself.

python lightning_cli.py fit --trainer.strategy ddp --trainer.devices 2 …
"""

import hashlib

from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringDataModule, DemoModel


def main():
    cli = LightningCLI(DemoModel, BoringDataModule, seed_everything_default=5)
    if cli.trainer.is_global_zero:
        digest = hashlib.sha256()
        for parameter in cli.model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        print("params-sha256", digest.hexdigest())


if __name__ == "__main__":
    main()
