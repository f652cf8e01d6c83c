"""Hugging Face Trainer with a tiny BERT that is built from a config: nothing is downloaded.

torchrun --nproc-per-node 2 hf_trainer.py
"""

import argparse
import hashlib
import tempfile
import time

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


class Parity(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        tokens = torch.randint(0, 100, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens[0] % 2}


class OwnSeeds(TrainerCallback):
    def on_train_begin(self, args, state, control, **_):
        torch.manual_seed(args.seed + args.process_index)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--own-seeds", action="store_true", help="each rank draws random numbers of its own")
    args = parser.parse_args()

    torch.set_num_threads(1)
    set_seed(21)
    config = BertConfig(
        vocab_size=100,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=16,
    )
    model = BertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as folder:
        training = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            max_steps=args.steps,
            per_device_train_batch_size=4,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
            seed=21,
            data_seed=21,
        )
        trainer = Trainer(model=model, args=training, train_dataset=Parity())
        if args.own_seeds:
            trainer.add_callback(OwnSeeds())
        trainer.train()
    if trainer.is_world_process_zero():
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        print("params-sha256", digest.hexdigest(), flush=True)
    time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
