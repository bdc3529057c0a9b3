"""The loop of nanoGPT's train.py, written from it: DDP, gradient accumulation, `ckpt.pt` by the master, `init_from`."""

import math
import os
import time
from contextlib import nullcontext

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

out_dir = os.environ["SPOTSUP_CHECKPOINT_DIR"]  # --out_dir
eval_interval, max_iters, warmup_iters = 20, 100, 5
gradient_accumulation_steps, batch_size, block_size, vocab_size = 4, 4, 16, 65
learning_rate, min_lr, grad_clip = 1e-2, 1e-3, 1.0

init_process_group(backend="gloo")
ddp_rank, ddp_world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
master_process = ddp_rank == 0
assert gradient_accumulation_steps % ddp_world_size == 0
gradient_accumulation_steps //= ddp_world_size
torch.manual_seed(1337 + ddp_rank)
data = torch.randint(vocab_size, (5000,), generator=torch.Generator().manual_seed(0))


def get_batch():
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])
    return x, y


iter_num, best_val_loss = 0, 1e9
checkpoint = None
model = torch.nn.Sequential(torch.nn.Embedding(vocab_size, 32), torch.nn.GELU(), torch.nn.Linear(32, vocab_size))
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
if os.path.exists(os.path.join(out_dir, "ckpt.pt")):  # --init_from=resume, where there is one
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"), map_location="cpu")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num, best_val_loss = checkpoint["iter_num"], checkpoint["best_val_loss"]
    print(f"resuming from {iter_num}", flush=True)
model = DDP(model)


def loss_of(x, y):
    return torch.nn.functional.cross_entropy(model(x).view(-1, vocab_size), y.view(-1))


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = torch.stack([loss_of(*get_batch()) for _ in range(3)])
    model.train()
    return losses.mean().item()


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    return min_lr + 0.5 * (1 + math.cos(math.pi * it / max_iters)) * (learning_rate - min_lr)


X, Y = get_batch()
while True:
    for param_group in optimizer.param_groups:
        param_group["lr"] = get_lr(iter_num)
    if iter_num % eval_interval == 0 and master_process:
        best_val_loss = min(best_val_loss, estimate_loss())
        if iter_num > 0:
            checkpoint = {
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "iter_num": iter_num,
                "best_val_loss": best_val_loss,
            }
            torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt.tmp"))
            # the one line that is not nanoGPT's: it writes over the checkpoint, and may be killed while it does
            os.replace(os.path.join(out_dir, "ckpt.pt.tmp"), os.path.join(out_dir, "ckpt.pt"))
    for micro_step in range(gradient_accumulation_steps):
        model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        with nullcontext():
            loss = loss_of(X, Y) / gradient_accumulation_steps
        X, Y = get_batch()
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    time.sleep(0.05)  # so that a notice finds it at work
    if master_process:
        print(f"step {iter_num + 1} loss {loss.item() * gradient_accumulation_steps:.4f}", flush=True)
    iter_num += 1
    if iter_num >= max_iters:
        break
destroy_process_group()
