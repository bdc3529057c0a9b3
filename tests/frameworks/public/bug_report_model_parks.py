"""bug_report_model.py with the callback for Lightning instead of a checkpoint of its own."""

import os

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from spotsup_trainer.callbacks import SpotsupLightningCallback
from torch.utils.data import DataLoader, Dataset


class RandomDataset(Dataset):
    def __init__(self, size, length):
        self.len = length
        self.data = torch.randn(length, size)

    def __getitem__(self, index):
        return self.data[index]

    def __len__(self):
        return self.len


class BoringModel(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 2)

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch, batch_idx):
        loss = self(batch).sum()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.layer.parameters(), lr=0.1)


class Say(Callback):
    def on_train_start(self, trainer, pl_module):
        if trainer.is_global_zero and trainer.global_step:
            print(f"resuming from {trainer.global_step}", flush=True)

    def on_train_batch_end(self, trainer, *args):
        torch.rand(1_000_000).sort()  # slow enough to be interrupted
        if trainer.is_global_zero:
            print(f"step {trainer.global_step}", flush=True)


folder = os.environ["SPOTSUP_CHECKPOINT_DIR"]
torch.manual_seed(0)
spotsup = SpotsupLightningCallback(every_steps=10)
trainer = pl.Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    default_root_dir=folder,
    max_steps=60,
    callbacks=[Say(), spotsup],
    enable_progress_bar=False,
    enable_model_summary=False,
    enable_checkpointing=False,
    logger=False,
)
trainer.fit(BoringModel(), DataLoader(RandomDataset(32, 640), batch_size=2), ckpt_path=spotsup.newest())
