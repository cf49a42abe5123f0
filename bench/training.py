"""What streaming costs real training steps on an accelerator: the same steps on data that is in its memory beside it.

``python bench/training.py`` makes 256 MiB of tokens (uint16, rows of 2049, MDS) and 20,000 JPEGs of 256 x 256 (tar) in
a temporary directory. A GPT of 12 blocks (width 768, bfloat16) trains on the tokens, 16 rows a batch, from this machine
and from a server that answers after 20 ms and sends 60 MB/s over each connection; ResNet-50 (bfloat16, needs
torchvision) on the images, 128 a batch, decoded in threads and in worker processes; and an embedding, a step of which
takes a millisecond or so, on tokens as fast as they come. For each, in turn and the median of the rounds:

- how long streamed steps took, by steps on batches that lie in the accelerator's memory;
- for what share of the time the loop waited for a batch (it runs ahead of the accelerator, so this may be hidden);
- for what share the accelerator had nothing to do, by its own events: from the end of a step to the first work of the
  next. The copy of a batch to the accelerator counts as work; the share on resident data is printed beside it;
- how long it took to start all the work of a step, with the accelerator idle before it, beside the making of batches
  and on resident data: what is made in threads of the same process takes the interpreter from the loop.

``--small`` makes little models and data, so that it also runs without an accelerator, where its figures mean nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from servers.quick import Quick
from torch import nn
from torch.nn import functional
from torch_loader import write_images

import shoal
import shoal.pack
import shoal.torch
from shoal.errors import ShuffleWarning

VOCABULARY = 50_304
DEVICE = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
PINS = DEVICE.type != "cpu"


@dataclass(frozen=True)
class Size:
    """How much there is to do."""

    length: int = 2049
    rows: int = 65_536
    batch: int = 16
    width: int = 768
    blocks: int = 12
    images: int = 20_000
    image_batch: int = 128
    steps: int = 60


SMALL = Size(length=65, rows=4096, batch=4, width=32, blocks=1, images=300, image_batch=4, steps=4)


class Gpt(nn.Module):
    """Blocks of causal attention over tokens."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, size.width)
        self.places = nn.Embedding(size.length - 1, size.width)
        self.blocks = nn.ModuleList(Block(size.width) for _ in range(size.blocks))
        self.out = nn.Linear(size.width, VOCABULARY, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The loss of guessing each token from those before it."""
        inputs, following = rows[:, :-1], rows[:, 1:]
        states = self.tokens(inputs) + self.places.weight
        for block in self.blocks:
            states = block(states)
        return functional.cross_entropy(self.out(states).flatten(0, 1).float(), following.flatten())


class Block(nn.Module):
    """One of them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.taken, self.given = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = width // 64 or 1

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Attention, and what follows it."""
        parts = self.taken(self.before(states)).chunk(3, dim=-1)
        heads = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        states = states + self.given(seen)
        return states + self.narrow(functional.gelu(self.wide(self.between(states))))


class Bag(nn.Module):
    """The mean of embeddings: hardly any work for each token."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.EmbeddingBag(VOCABULARY, size.width // 8 or 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """A number to make small."""
        return self.tokens(rows).float().square().mean()


class Pictures(nn.Module):
    """ResNet-50 on bytes of images."""

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models import resnet50  # noqa: PLC0415  # only this one needs it

        self.net = resnet50()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The loss of calling each of them the first class."""
        planes = images.permute(0, 3, 1, 2).to(torch.bfloat16 if PINS else torch.float32) / 255
        labels = torch.zeros(len(images), dtype=torch.long, device=images.device)
        return functional.cross_entropy(self.net(planes).float(), labels)


class Training:
    """A model, and steps of it on batches from wherever they come."""

    def __init__(self, model: nn.Module, field: str) -> None:
        self.model = model.to(DEVICE, torch.bfloat16 if PINS else torch.float32)
        self.field = field
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)

    def steps(self, batches: Iterator[Any], number: int) -> tuple[float, float, float]:
        """Seconds of some steps; those in which the loop waited; and those in which the accelerator did nothing."""
        waited, marks = 0.0, []
        began = time.perf_counter()
        for _ in range(number):
            asked = time.perf_counter()
            batch = next(batches)
            waited += time.perf_counter() - asked
            marks.append(self._step(batch[self.field]))
        if PINS:
            torch.accelerator.synchronize()
        seconds = time.perf_counter() - began
        idle = sum(end.elapsed_time(start) for (_, end), (start, _) in itertools.pairwise(marks)) / 1000
        return seconds, waited, idle

    def start_ms(self, batches: Iterator[Any], number: int = 20) -> float:
        """Milliseconds from the first call of a step to the last, the median; the accelerator is idle before."""
        took = []
        for _ in range(number):
            rows = next(batches)[self.field]
            if PINS:
                torch.accelerator.synchronize()
            began = time.perf_counter()
            self._step(rows)
            took.append(1000 * (time.perf_counter() - began))
        return statistics.median(took)

    def _step(self, rows: torch.Tensor) -> tuple[Any, Any]:
        start, end = mark(), mark()
        start.record()
        rows = rows.to(DEVICE, non_blocking=True)
        loss = self.model(rows if rows.dtype == torch.uint8 else rows.long())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        end.record()
        return start, end


class HostMark:
    """What an event is where there is no accelerator."""

    def record(self) -> None:
        """Now."""
        self.at = time.perf_counter()

    def elapsed_time(self, later: HostMark) -> float:
        """Milliseconds."""
        return 1000 * (later.at - self.at)


def mark() -> Any:
    return torch.Event(DEVICE, enable_timing=True) if PINS else HostMark()


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def compare(name: str, training: Training, loader: Any, size: Size, rounds: int) -> None:
    """Rounds of streamed and of resident steps in turn, and a line of what they took."""
    stream = endless(loader)
    few = [next(stream) for _ in range(4)]
    pinned = all(batch[training.field].is_pinned() for batch in few)
    assert pinned == PINS, "batches are not pinned"
    resident = [{training.field: batch[training.field].to(DEVICE)} for batch in few]
    around: Iterator[Any] = (batch for _ in iter(int, 1) for batch in resident)
    for batches in (stream, around):
        training.steps(batches, 5)  # what is slow only once
    found = [(training.steps(stream, size.steps), training.steps(around, size.steps)) for _ in range(rounds)]
    streamed, plain = ([tuple(part / one[0] for part in one) for one in kind] for kind in zip(*found, strict=True))
    ratios = sorted(one[0] / other[0] for one, other in found)
    step_ms = statistics.median(1000 * other[0] / size.steps for _, other in found)
    rate = len(few[0][training.field]) * size.steps / statistics.median(one[0] for one, _ in found)
    waiting, idle = (statistics.median(one[part] for one in streamed) for part in (1, 2))
    idle_plain = statistics.median(one[2] for one in plain)
    ratio = f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
    print(f"{name:30} step {step_ms:6.2f} ms; streamed {ratio}; {rate:8,.0f} rows/s;", end="")
    print(f" loop waited {waiting:6.2%}; idle {idle:6.2%}, resident {idle_plain:6.2%};", end="")
    print(f" started in {training.start_ms(stream):.1f} ms, resident {training.start_ms(around):.1f}", flush=True)
    stream.close()


def write_tokens(directory: Path, size: Size) -> None:
    draw = np.random.default_rng(0)
    options = {"columns": {"tokens": f"ndarray:uint16:{size.length}"}}
    with shoal.pack.Writer(directory, format="mds", shard_bytes="16MiB", options=options) as writer:
        for _ in range(size.rows):
            writer.write({"tokens": draw.integers(0, 50_257, size.length, dtype=np.uint16)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["tokens", "images"], help="one of the two")
    parser.add_argument("--small", action="store_true", help="little models and data, to try it")
    arguments = parser.parse_args()
    if DEVICE.type == "cpu" and not arguments.small:
        parser.error("there is no accelerator; --small tries it without")
    warnings.simplefilter("ignore", ShuffleWarning)
    size = SMALL if arguments.small else Size()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if PINS else 'no accelerator'}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["SHOAL_CACHE_DIR"] = f"{scratch}/cache"
        tokens = Path(scratch, "tokens")
        if arguments.only != "images":
            write_tokens(tokens, size)
            from_tokens(tokens, size, arguments.rounds)
        if arguments.only == "tokens":
            return
        if importlib.util.find_spec("torchvision"):
            from_images(Path(scratch, "images.tar"), size, arguments.rounds)
        else:
            print("no images: torchvision is not installed")


def from_tokens(directory: Path, size: Size, rounds: int) -> None:
    """Steps on tokens: long ones from near and far, short ones from near."""

    def loader(source: Any, batch: int) -> Any:
        ds = shoal.open(source).shuffle(seed=0, window="64MiB").batch(batch)
        return shoal.torch.DataLoader(ds, pin_memory=PINS)

    gpt = Training(Gpt(size), "tokens")
    compare("GPT, this machine", gpt, loader(directory, size.batch), size, rounds)
    with Quick(directory, 20.0, 60.0) as server:
        far = [f"{server.url}/{path.name}" for path in sorted(directory.glob("*.mds"))]
        compare("GPT, 20 ms away", gpt, loader(far, size.batch), size, rounds)
    bag = Training(Bag(size), "tokens")
    compare("embeddings, this machine", bag, loader(directory, 8 * size.batch), size, rounds)


def from_images(shard: Path, size: Size, rounds: int) -> None:
    """Steps on images, decoded by threads and by processes."""
    write_images(shard, size.images)
    training = Training(Pictures(), "jpg")
    training.model.to(memory_format=torch.channels_last)
    ds = shoal.open(shard).shuffle(seed=0).decode("rgb8").columns("jpg").batch(size.image_batch)
    most = os.cpu_count() or 1
    ways: dict[str, dict[str, Any]] = {"threads as they are": {}, "2 threads": {"num_threads": 2}}
    counts = sorted({most // 4, most // 2})
    ways |= {f"{count} workers": {"num_workers": count, "persistent_workers": True} for count in counts if count}
    for name, way in ways.items():
        compare(f"ResNet-50, {name}", training, shoal.torch.DataLoader(ds, pin_memory=PINS, **way), size, rounds)


if __name__ == "__main__":
    main()
