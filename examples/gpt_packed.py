"""Train a small GPT on packed sequences of a mixture of three sources, on any number of processes, with resumes.

    python examples/gpt_packed.py make DATA             # documents to try it with, in three directories
    torchrun --nproc-per-node 2 examples/gpt_packed.py train DATA CHECKPOINT
    torchrun --nproc-per-node 3 examples/gpt_packed.py train DATA CHECKPOINT   # after a stop, at another size

Documents are packed by best fit, and attention stays inside each. The checkpoint counts the tokens that the model has
seen, so that its last line can say that none was missed and none came twice: it is the same however often, and on
however many processes, the run was stopped and resumed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import functional

import shoal
import shoal.pack
import shoal.torch

LENGTH, VOCABULARY = 128, 1_024
SOURCES = {"web": (4.0, 400), "code": (5.0, 100), "math": (3.0, 200)}  # mean logarithm of lengths, and documents
GLOBAL_BATCH = 12  # sequences over all ranks: another number of ranks sees the same batches
SAVE_EVERY = 5


def make(data: str) -> None:
    """Write documents of no meaning as MDS shards, with their numbers of tokens in the index."""
    draw = np.random.default_rng(0)
    for name, (mean, num_documents) in SOURCES.items():
        with shoal.pack.Writer(Path(data, name), format="mds", columns=["num_tokens"], shard_bytes="128KiB") as writer:
            for _ in range(num_documents):
                size = 1 + int(draw.lognormal(mean, 1.0))
                tokens = draw.zipf(1.2, size).clip(max=VOCABULARY - 1).astype(np.uint16)
                writer.write({"tokens": tokens, "num_tokens": size})


class Gpt(torch.nn.Module):
    """One block of attention that does not look beyond a document."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.tokens, self.places = torch.nn.Embedding(VOCABULARY, width), torch.nn.Embedding(LENGTH, width)
        torch.nn.init.normal_(self.tokens.weight, std=0.02)
        self.mixed, self.joined = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.wide, self.narrow = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))

    def forward(self, tokens: torch.Tensor, segments: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """The loss of guessing each token from those before it in its document."""
        states = self.tokens(tokens) + self.places(places)
        together = segments[:, None, :, None] == segments[:, None, None, :]
        before = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=tokens.device).tril()
        parts = [
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.mixed(self.norms[0](states)).chunk(3, -1)
        ]
        seen = functional.scaled_dot_product_attention(*parts, attn_mask=together & before)
        states = states + self.joined(seen.transpose(1, 2).flatten(-2))
        states = states + self.narrow(functional.gelu(self.wide(self.norms[1](states))))
        follows = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
        logits = functional.linear(states[:, :-1], self.tokens.weight)
        return functional.cross_entropy(logits[follows], tokens[:, 1:][follows])


def train(data: str, checkpoint: Path, num_epochs: int) -> None:
    """Train, save every few steps, and go on from the checkpoint if there is one."""
    if "RANK" in os.environ:
        dist.init_process_group()
    rank = dist.get_rank() if dist.is_initialized() else 0
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    torch.manual_seed(0)

    sources = {name: shoal.open(Path(data, name)) for name in SOURCES}
    ds = shoal.mix(sources, repeat={"web": 1, "code": 1, "math": 2}, seed=0).shuffle(seed=0)
    ds = ds.pack_sequences(LENGTH, strategy="best_fit").batch(global_batch_size=GLOBAL_BATCH, remainder="drop")
    loader = shoal.torch.DataLoader(ds, pin_memory=device.type != "cpu")

    model = Gpt().to(device)
    wrapped = torch.nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen, step = torch.zeros(VOCABULARY, dtype=torch.int64), 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location="cpu")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])  # the same file on every rank
        seen, step = saved["seen"], saved["step"]
    new = torch.zeros_like(seen)  # by this rank, since the last save

    def save() -> None:
        nonlocal seen, new
        if dist.is_initialized():
            new = new.to(device)
            dist.all_reduce(new)
            new = new.cpu()
        seen, new = seen + new, torch.zeros_like(seen)
        if rank == 0:
            found = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            torch.save({**found, "seen": seen, "step": step}, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").replace(checkpoint)

    began, waited = time.perf_counter(), 0.0
    while ds.epoch < num_epochs:
        asked = time.perf_counter()
        for batch in loader:
            waited += time.perf_counter() - asked
            names = ("tokens", "segment_ids", "position_ids")
            tokens, segments, places = (batch[name].to(device, non_blocking=True).long() for name in names)
            loss = wrapped(tokens, segments, places)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            new += torch.bincount(tokens[segments > 0].cpu(), minlength=VOCABULARY)
            step += 1
            if step % SAVE_EVERY == 0:
                save()
                if rank == 0:
                    print(f"epoch {ds.epoch}, step {step}: loss {loss.item():.3f}", flush=True)
            asked = time.perf_counter()
    save()
    if rank == 0:
        stats: dict[str, Any] = ds.stats()
        filled = stats["num_tokens"] / max(1, stats["num_tokens"] + stats["num_padding_tokens"])
        share = waited / (time.perf_counter() - began)
        print(f"waited for data {share:.2%} of the time; sequences are {filled:.2%} filled")
        digest = hashlib.sha256(seen.numpy().tobytes()).hexdigest()[:16]
        print(f"step {step}: {int(seen.sum()):,} tokens seen, {digest}")
    if dist.is_initialized():
        dist.destroy_process_group()


def main() -> None:
    """Make documents, or train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["make", "train"])
    parser.add_argument("data")
    parser.add_argument("checkpoint", nargs="?", type=Path, default=Path("gpt_packed.pt"))
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.verb == "make":
        make(arguments.data)
    else:
        train(arguments.data, arguments.checkpoint, arguments.epochs)


if __name__ == "__main__":
    main()
