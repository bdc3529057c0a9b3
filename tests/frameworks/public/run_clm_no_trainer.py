"""transformers' run_clm_no_trainer.py, written from its documentation, with a GPT-2 from a configuration and random
tokens; by itself it resumes only with `--resume_from_checkpoint`. What the lines with numbers add is docs/training/parking.md's
recipe for Accelerate."""

import os
from pathlib import Path

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from spotsup_trainer.callbacks import Parking
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, default_data_collator, get_scheduler

accelerator = Accelerator(
    cpu=True, gradient_accumulation_steps=2, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True)
)
set_seed(0)
generator = torch.Generator().manual_seed(0)
tokens = [torch.randint(64, (16,), generator=generator) for _ in range(640)]
train_dataset = [{"input_ids": block, "labels": block} for block in tokens]
train_dataloader = DataLoader(train_dataset, shuffle=True, collate_fn=default_data_collator, batch_size=4)
config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config)
decay = [p for n, p in model.named_parameters() if "bias" not in n and "ln" not in n]
rest = [p for n, p in model.named_parameters() if "bias" in n or "ln" in n]
groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=5e-3)
lr_scheduler = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=2, num_training_steps=60)
model, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(model, optimizer, train_dataloader, lr_scheduler)
folder = Path(os.environ["SPOTSUP_CHECKPOINT_DIR"])
newest = max(folder.glob("step_????????"), default=None)
completed_steps = 0
if newest:
    accelerator.load_state(newest)
    completed_steps = int(newest.name.removeprefix("step_"))
    if accelerator.is_main_process:
        print(f"resuming from {completed_steps}", flush=True)

parking = Parking(completed_steps)  # (1)
per_epoch = len(train_dataloader) // 2
while completed_steps < 60:
    model.train()
    train_dataloader.set_epoch(completed_steps // per_epoch)
    for batch in accelerator.skip_first_batches(train_dataloader, completed_steps % per_epoch * 2):
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        if not accelerator.sync_gradients:
            continue
        completed_steps += 1
        torch.rand(1_000_000).sort()  # slow enough to be interrupted
        if accelerator.is_main_process:
            print(f"step {completed_steps}", flush=True)
        samples = completed_steps * 8 * accelerator.num_processes
        leaving = parking.step_done(completed_steps, loss=loss, samples=samples)  # (2)
        if leaving or completed_steps % 10 == 0:
            accelerator.save_state(folder / "unfinished")
            parking.all_here()
            if accelerator.is_main_process:
                os.replace(folder / "unfinished", folder / f"step_{completed_steps:08d}")
            parking.saved()  # (3)
        if leaving:
            parking.park()  # (4)
        if completed_steps == 60:
            break
parking.ended()  # (5)
accelerator.end_training()
