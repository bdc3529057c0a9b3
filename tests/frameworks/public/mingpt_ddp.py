"""pytorch/examples, distributed/minGPT-ddp, written from it, without GPUs: a trainer with a Snapshot of dataclasses."""

import os
import time
from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class TrainerConfig:
    max_epochs: int = 40
    batch_size: int = 8
    grad_norm_clip: float = 1.0
    snapshot_path: str = os.path.join(os.environ["SPOTSUP_CHECKPOINT_DIR"], "gpt_snapshot.pt")
    save_every: int = 3


@dataclass
class Snapshot:
    model_state: "OrderedDict[str, torch.Tensor]"
    optimizer_state: dict[str, Any]
    finished_epoch: int


class CharDataset(Dataset):
    def __init__(self, text, block_size):
        self.stoi = {ch: i for i, ch in enumerate(sorted(set(text)))}
        self.data, self.block_size, self.vocab_size = text, block_size, len(self.stoi)

    def __len__(self):
        return len(self.data) - self.block_size

    def __getitem__(self, idx):
        chunk = torch.tensor([self.stoi[s] for s in self.data[idx : idx + self.block_size + 1]])
        return chunk[:-1], chunk[1:]


class GPT(torch.nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.tok_emb = torch.nn.Embedding(vocab_size, 16)
        self.block = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = torch.nn.Linear(16, vocab_size, bias=False)

    def forward(self, idx, targets):
        mask = torch.nn.Transformer.generate_square_subsequent_mask(idx.shape[1])
        logits = self.head(self.block(self.tok_emb(idx), src_mask=mask, is_causal=True))
        return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Trainer:
    def __init__(self, config, model, optimizer, dataset):
        self.config, self.model, self.optimizer = config, model, optimizer
        self.global_rank = int(os.environ["RANK"])
        sampler = DistributedSampler(dataset)
        self.train_loader = DataLoader(dataset, batch_size=config.batch_size, sampler=sampler)
        self.epochs_run = 0
        self._load_snapshot()
        self.model = DDP(self.model)

    def _load_snapshot(self):
        try:
            snapshot_data = torch.load(self.config.snapshot_path, map_location="cpu")
        except FileNotFoundError:
            print("Snapshot not found. Training model from scratch", flush=True)
            return
        snapshot = Snapshot(**snapshot_data)
        self.model.load_state_dict(snapshot.model_state)
        self.optimizer.load_state_dict(snapshot.optimizer_state)
        self.epochs_run = snapshot.finished_epoch
        print(f"resuming from {self.epochs_run}", flush=True)

    def _run_epoch(self, epoch):
        self.train_loader.sampler.set_epoch(epoch)
        for source, targets in self.train_loader:
            _, loss = self.model(source, targets)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_norm_clip)
            self.optimizer.step()
        time.sleep(0.1)  # so that a notice finds it at work
        if self.global_rank == 0:
            print(f"step {epoch + 1} loss {loss.item():.4f}", flush=True)

    def _save_snapshot(self, epoch):
        snapshot = Snapshot(self.model.module.state_dict(), self.optimizer.state_dict(), epoch)
        torch.save(asdict(snapshot), self.config.snapshot_path + ".tmp")
        # the one line that is not theirs: they write over the snapshot, and may be killed while they do
        os.replace(self.config.snapshot_path + ".tmp", self.config.snapshot_path)

    def train(self):
        for epoch in range(self.epochs_run, self.config.max_epochs):
            self._run_epoch(epoch)
            if self.global_rank == 0 and epoch % self.config.save_every == 0:
                self._save_snapshot(epoch)


init_process_group(backend="gloo")
torch.manual_seed(0)
data = CharDataset("to be, or not to be, that is the question: " * 4, 16)
gpt = GPT(data.vocab_size)
Trainer(TrainerConfig(), gpt, torch.optim.AdamW(gpt.parameters(), lr=3e-3), data).train()
destroy_process_group()
