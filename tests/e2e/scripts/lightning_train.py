"""Lightning, DDP strategy: Lightning starts the second process itself, by running this script again.

python lightning_train.py
"""

import argparse
import hashlib
import time

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Autoencoder(lightning.LightningModule):
    def __init__(self, own_seeds):
        super().__init__()
        self.own_seeds = own_seeds
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 64))

    def on_train_start(self):
        if self.own_seeds:
            torch.manual_seed(5 + self.global_rank)

    def training_step(self, batch, batch_idx):
        (x,) = batch
        return nn.functional.mse_loss(self.decoder(self.encoder(x)), x)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--own-seeds", action="store_true", help="each rank draws random numbers of its own")
    args = parser.parse_args()

    torch.set_num_threads(1)
    lightning.seed_everything(5, verbose=False)
    data = TensorDataset(torch.randn(512, 64))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_steps=args.steps,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Autoencoder(args.own_seeds)
    trainer.fit(model, DataLoader(data, batch_size=16, shuffle=True))
    if trainer.is_global_zero:
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        print("params-sha256", digest.hexdigest(), flush=True)
    time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that


if __name__ == "__main__":
    main()
