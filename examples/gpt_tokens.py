"""Train a small GPT on shards of tokens, and say what streaming them costs: the same steps on data in memory beside it.

    python examples/gpt_tokens.py make DATA             # tokens to try it with: 16 MiB of uint16
    python examples/gpt_tokens.py train DATA CHECKPOINT
    python examples/gpt_tokens.py train DATA CHECKPOINT # goes on where it was

Each sample is one row of tokens of a fixed length, so batches are gathered by numpy, and with an accelerator straight
into pinned memory. One thread of the training process makes them, two batches ahead. For
several ranks see torch_ddp.py: the loader is the same.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import shoal
import shoal.pack
import shoal.torch

LENGTH = 129  # the inputs of 128 positions, and what follows each of them
VOCABULARY = 4_096


def make(data: str, *, num_samples: int) -> None:
    """Write tokens of no meaning as MDS shards, with an index beside them."""
    draw = np.random.default_rng(0)
    options = {"columns": {"tokens": f"ndarray:uint16:{LENGTH}"}}  # with the length said, a sample is its tokens alone
    with shoal.pack.Writer(data, format="mds", options=options) as writer:
        for _ in range(num_samples):
            writer.write({"tokens": draw.zipf(1.2, LENGTH).clip(max=VOCABULARY - 1).astype(np.uint16)})


class Gpt(torch.nn.Module):
    """Two blocks of attention; enough to be busy with."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, width)
        self.places = torch.nn.Embedding(LENGTH - 1, width)
        block = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = torch.nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.out = torch.nn.Linear(width, VOCABULARY, bias=False)
        self.out.weight = self.tokens.weight

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The loss of guessing each token from those before it."""
        inputs, following = rows[:, :-1], rows[:, 1:]
        mask = torch.nn.Transformer.generate_square_subsequent_mask(LENGTH - 1, device=rows.device)
        states = self.tokens(inputs) + self.places(torch.arange(LENGTH - 1, device=rows.device))
        logits = self.out(self.blocks(states, mask=mask, is_causal=True))
        return functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def run(batches: Iterable[Any], step: Callable[[Any], None], *, num_steps: int) -> tuple[float, float]:
    """Seconds of some steps in all, and those of them in which the loop waited for a batch."""
    waited, began = 0.0, time.perf_counter()
    iterator = iter(batches)
    for _ in range(num_steps):
        asked = time.perf_counter()
        batch = next(iterator)
        waited += time.perf_counter() - asked
        step(batch)
    return time.perf_counter() - began, waited


def train(arguments: argparse.Namespace) -> None:
    """Some steps on streamed batches, saved, and as many on one batch that is in memory."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    model = Gpt().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    losses: list[torch.Tensor] = []

    def step(batch: Any) -> None:
        loss = model(batch["tokens"].to(device, non_blocking=True).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

    def steps(batches: Iterable[Any]) -> tuple[float, float]:
        found = run(batches, step, num_steps=arguments.steps)
        losses[-1].item()  # an accelerator is done now
        return found

    ds = shoal.open(arguments.data).shuffle(seed=0, window="64MiB").batch(arguments.batch)
    loader = shoal.torch.DataLoader(ds, pin_memory=device.type != "cpu")
    checkpoint = Path(arguments.checkpoint)
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
        print(f"going on at {saved['loader']['epoch']}:{saved['loader']['position']}")

    def streamed() -> Iterable[Any]:
        while True:  # epochs follow each other by themselves
            yield from loader

    batches = iter(streamed())
    first = next(batches)
    step(first)  # what is slow only once
    seconds, waited = steps(batches)
    torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, checkpoint)
    resident, _ = steps([first] * arguments.steps)
    tokens = arguments.steps * arguments.batch * (LENGTH - 1)
    print(f"streamed: {tokens / seconds:,.0f} tokens/s, {waited / seconds:.2%} of the time spent waiting for batches")
    print(f"in memory: {tokens / resident:,.0f} tokens/s; streamed steps took {seconds / resident:.3f} of their time")


def main() -> None:
    """Make tokens, or train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["make", "train"])
    parser.add_argument("data")
    parser.add_argument("checkpoint", nargs="?", default="gpt_tokens.pt")
    parser.add_argument("--samples", type=int, default=65_536)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16)
    arguments = parser.parse_args()
    if arguments.verb == "make":
        make(arguments.data, num_samples=arguments.samples)
    else:
        train(arguments)


if __name__ == "__main__":
    main()
