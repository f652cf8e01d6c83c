"""Trials of experiments leave checkpoints of frameworks as they are, which these write and delete in their own ways."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from jobs import Run

QUICK = ["--skip-first", "2", "--timed-steps", "4", "--rounds", "1"]
TRAINER = """
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
torch.set_num_threads(1)
sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
model = BertForSequenceClassification(BertConfig(vocab_size=100, max_position_embeddings=16, **sizes))
data = [{"input_ids": torch.arange(16), "labels": index % 2} for index in range(512)]
arguments = TrainingArguments(
    output_dir="out", use_cpu=True, max_steps=60, per_device_train_batch_size=2, save_strategy="steps", save_steps=3,
    save_total_limit=1, report_to=[], disable_tqdm=True, dataloader_pin_memory=False,
)
trainer = Trainer(model=model, args=arguments, train_dataset=data)
trainer.train()
trainer.save_model()
"""
LIGHTNING = """
import lightning, torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
    def training_step(self, batch, _index):
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
saves = ModelCheckpoint("out", filename="best", save_last="link", every_n_train_steps=3, enable_version_counter=False)
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="gloo"), max_steps=60, logger=False,
    callbacks=[saves], enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Model(), DataLoader(TensorDataset(torch.randn(512, 8)), 2))
"""
ACCELERATE = """
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
torch.set_num_threads(1)
settings = ProjectConfiguration("out", automatic_checkpoint_naming=True, total_limit=1)
accelerator = Accelerator(cpu=True, project_config=settings)
model = torch.nn.Linear(8, 8)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(60):
    accelerator.backward(model(torch.randn(2, 8)).square().mean())
    optimizer.step()
    if step % 3 == 2:
        accelerator.save_state()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("package", "training", "owner", "launch", "kept"),
    [
        pytest.param(
            "transformers", TRAINER, "Trainer", ["--nproc", "2"], "checkpoint-1/model.safetensors", id="transformers"
        ),
        pytest.param("lightning", LIGHTNING, "DDPStrategy", [], "best.ckpt", id="lightning"),
        pytest.param(
            "accelerate", ACCELERATE, "Accelerator", ["--nproc", "2"], "checkpoints/checkpoint_7/model.safetensors",
            id="accelerate",
        ),
    ],
)  # fmt: skip
def test_a_trial_neither_writes_nor_deletes_checkpoints(
    package: str, training: str, owner: str, launch: list[str], kept: str, tmp_path: Path, ddpprof: Run
) -> None:
    pytest.importorskip(package)
    (tmp_path / "train.py").write_text(training)
    before = tmp_path / "out" / kept
    before.parent.mkdir(parents=True)
    before.write_text("the user's own")
    done = ddpprof("sweep", *QUICK, *launch, "--vary", "OMP_NUM_THREADS=1", "--out", "s", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\[1/1\] OMP_NUM_THREADS=1[^:]*: [0-9.]+ ms per step", done.stdout), done.stdout
    assert before.read_text() == "the user's own"
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file() or path.is_symlink()] == [before]
    said = (tmp_path / "s/trial-0-0/output.txt").read_text()
    assert said.count(f"ddpprof: rank 0: not saved: checkpoints of {owner}: this is a trial.") == 1


ATOMIC = """
import os, torch, torch.distributed as dist
from pathlib import Path
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    optimizer.zero_grad()
    model(torch.randn(2, 8)).square().mean().backward()
    optimizer.step()
    if step % 3 == 2 and dist.get_rank() == 0:
        torch.save(model.state_dict(), "last.pt.tmp")
        os.replace("last.pt.tmp", "last.pt")
        torch.save(model.state_dict(), f"step-{step}.pt")
        if step > 3:
            Path(f"step-{step - 3}.pt").unlink()
"""


def test_a_script_may_rename_and_remove_what_a_trial_does_not_save(tmp_path: Path, ddpprof: Run) -> None:
    (tmp_path / "train.py").write_text(ATOMIC)
    (tmp_path / "last.pt").write_text("the user's own")
    done = ddpprof("sweep", *QUICK, "--nproc", "2", "--vary", "OMP_NUM_THREADS=1", "--out", "s", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\[1/1\] OMP_NUM_THREADS=1[^:]*: [0-9.]+ ms per step", done.stdout), done.stdout
    assert (tmp_path / "last.pt").read_text() == "the user's own"
    assert [path.name for path in tmp_path.glob("*.pt*")] == ["last.pt"]


RESUMED = """
import os
""" + TRAINER.replace("max_steps=60", "max_steps=6").replace(
    "save_total_limit=1,",
    "save_total_limit=int(os.environ['LIMIT']), eval_strategy='steps', eval_steps=3,"
    "metric_for_best_model='loss', load_best_model_at_end=True,",
).replace("train_dataset=data", "train_dataset=data, eval_dataset=data[:4]").replace(
    "trainer.train()", "trainer.train(resume_from_checkpoint=os.environ.get('FROM'))"
)


@pytest.mark.long
def test_a_training_that_ends_within_a_trial_deletes_no_checkpoint(tmp_path: Path, ddpprof: Run, start: Run) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "train.py").write_text(RESUMED)
    done = start(sys.executable, "train.py", LIMIT="5")
    assert done.returncode == 0, done.stderr
    before = sorted((tmp_path / "out").rglob("*"))
    assert {"checkpoint-3", "checkpoint-6"} <= {path.name for path in before}
    resumed = {"LIMIT": "1", "FROM": "out/checkpoint-3"}
    done = ddpprof("sweep", *QUICK, "--nproc", "2", "--vary", "OMP_NUM_THREADS=1", "--out", "s", "train.py", **resumed)
    assert "steps, but a trial needs" in done.stderr, done.stdout + done.stderr
    assert sorted((tmp_path / "out").rglob("*")) == before
