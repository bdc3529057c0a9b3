"""transformers' examples/pytorch/language-modeling/run_clm.py, written from its documentation: a GPT-2 from a
configuration (`--config_overrides`) and random tokens instead of what the Hub has; it takes up its last checkpoint."""

import os

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
training_args = TrainingArguments(
    output_dir=os.environ["SPOTSUP_CHECKPOINT_DIR"],
    use_cpu=True,
    per_device_train_batch_size=4,
    max_steps=60,
    save_steps=10,
    save_total_limit=2,
    logging_steps=5,
    report_to=[],
    disable_tqdm=True,
)
last_checkpoint = get_last_checkpoint(training_args.output_dir)
set_seed(training_args.seed)
generator = torch.Generator().manual_seed(0)
tokens = [torch.randint(64, (16,), generator=generator) for _ in range(2000)]
train_dataset = [{"input_ids": block, "labels": block} for block in tokens]


class Say(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero and state.global_step:
            print(f"resuming from {state.global_step}", flush=True)

    def on_step_end(self, args, state, control, **kwargs):
        torch.rand(1_000_000).sort()  # slow enough to be interrupted
        if state.is_world_process_zero:
            print(f"step {state.global_step}", flush=True)


trainer = Trainer(
    model=GPT2LMHeadModel(config),
    args=training_args,
    train_dataset=train_dataset,
    data_collator=default_data_collator,
    callbacks=[Say()],
)
trainer.train(resume_from_checkpoint=last_checkpoint)
