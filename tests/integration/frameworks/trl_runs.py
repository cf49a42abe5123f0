"""The `SFTTrainer` of TRL on documents that are tokens already, as its documentation uses it."""

from __future__ import annotations

from typing import Any

import datasets
import torch
from tests.integration.frameworks.runs import Run
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer

END, PAD, VOCABULARY = 254, 255, 256


class Notes(TrainerCallback):  # type: ignore[misc]
    """Writes down epochs and checkpoints, and may end the job after a step."""

    def __init__(self, run: Run, at: int | None) -> None:
        self.run, self.at = run, at

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.run.saved(f"checkpoint-{state.global_step}")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.at:
            raise InterruptedError


class NotingTrainer(SFTTrainer):  # type: ignore[misc]
    """Writes down the first token of each document that it is given, which is its number."""

    run: Run

    def training_step(self, model: Any, inputs: Any, *more: Any) -> Any:
        # The Trainer counts a step after it: a batch of accumulation belongs to the epoch of the step.
        epoch = int(self.state.global_step / self.state.max_steps * self.args.num_train_epochs + 1e-6)
        self.run.batch(epoch, {"ids": inputs["input_ids"][:, 0]})
        return super().training_step(model, inputs, *more)


class ShoalTrainer(NotingTrainer):
    """A trainer whose loader is shoal's."""

    def get_train_dataloader(self) -> Any:
        return self.run.loader(collate_fn=collated)


def collated(samples: list[dict[str, int]]) -> dict[str, Any]:
    """Documents of a number and an end."""
    tokens = torch.tensor([[sample["ids"], END] for sample in samples])
    return {"input_ids": tokens, "labels": tokens.clone(), "attention_mask": torch.ones_like(tokens)}


def train(run: Run, *, resume: bool = False, until: int | None = None, **settings: Any) -> None:
    """Train from the newest checkpoint, or from the beginning; fail after a step."""
    checkpoint = get_last_checkpoint(str(run.out)) if resume else None
    run.leg(checkpoint.rpartition("/")[2] if checkpoint else None)
    arguments = SFTConfig(
        output_dir=str(run.out),
        **{"num_train_epochs": 3, "save_strategy": "no", **settings},
        per_device_train_batch_size=8,
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    words = {"start": 0, "<end>": END, "<pad>": PAD}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="start")), eos_token="<end>", pad_token="<pad>"
    )
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=4, n_embd=4, n_layer=1, n_head=1))
    optimizer = run.optimizer(model.parameters())
    cls = ShoalTrainer if run.kind == "shoal" else NotingTrainer
    trainer = cls(
        model=model,
        args=arguments,
        train_dataset=datasets.Dataset.from_list([{"input_ids": [number, END]} for number in range(150)]),
        processing_class=tokenizer,
        optimizers=(optimizer, run.scheduler(optimizer)),
        callbacks=[Notes(run, until)],
    )
    trainer.run = run
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    except InterruptedError:
        return
    assert until is None


def whole(run: Run) -> None:
    train(run)


def accumulation(run: Run) -> None:
    train(run, gradient_accumulation_steps=4)


def resume_middle(run: Run) -> None:
    train(run, save_strategy="steps", save_steps=7, until=26)
    train(run, resume=True)
