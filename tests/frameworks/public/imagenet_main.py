"""pytorch/examples, imagenet/main.py, written from it, without GPUs and with random images: `--resume`, a checkpoint
after each epoch, the best one copied, a schedule by epochs, accuracy over all ranks."""

import os
import shutil
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

folder = os.environ["SPOTSUP_CHECKPOINT_DIR"]
EPOCHS = 40


def save_checkpoint(state, is_best, filename):
    torch.save(state, filename + ".tmp")
    # the one line that is not theirs: they write over the checkpoint, and may be killed while they do
    os.replace(filename + ".tmp", filename)
    if is_best:
        shutil.copyfile(filename, os.path.join(folder, "model_best.pth.tar"))


def train(train_loader, model, criterion, optimizer):
    model.train()
    for images, target in train_loader:
        loss = criterion(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    time.sleep(0.1)  # so that a notice finds it at work
    return loss.item()


@torch.no_grad()
def validate(val_loader, model):
    model.eval()
    correct = torch.tensor([sum((model(images).argmax(1) == target).sum().item() for images, target in val_loader)])
    dist.all_reduce(correct)
    return correct.item()


def main_worker():
    dist.init_process_group(backend="gloo", init_method="env://")
    torch.manual_seed(0)
    images = torch.randn(128, 3, 8, 8)
    train_dataset = TensorDataset(images, (images.mean((1, 2, 3)) > 0).long())
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    model = nn.parallel.DistributedDataParallel(model)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = StepLR(optimizer, step_size=30, gamma=0.1)
    start_epoch, best_acc1 = 0, 0
    resume = os.path.join(folder, "checkpoint.pth.tar")  # --resume
    if os.path.isfile(resume):
        checkpoint = torch.load(resume)
        start_epoch, best_acc1 = checkpoint["epoch"], checkpoint["best_acc1"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        print(f"resuming from {start_epoch}", flush=True)
    train_sampler = DistributedSampler(train_dataset)
    train_loader = DataLoader(train_dataset, batch_size=16, sampler=train_sampler)
    val_loader = DataLoader(train_dataset, batch_size=16, sampler=DistributedSampler(train_dataset, shuffle=False))
    for epoch in range(start_epoch, EPOCHS):
        train_sampler.set_epoch(epoch)
        loss = train(train_loader, model, criterion, optimizer)
        acc1 = validate(val_loader, model)
        scheduler.step()
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)
        if dist.get_rank() == 0:
            state = {"epoch": epoch + 1, "state_dict": model.state_dict(), "best_acc1": best_acc1}
            state |= {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
            save_checkpoint(state, is_best, resume)
            print(f"step {epoch + 1} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main_worker()
