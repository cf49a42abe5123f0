"""Does the order matter to a language model? ``python bench/language_model.py [PICTURE.png]``; ``--quick`` to try it.

A small GPT on real text: Python sources of the installed packages and the standard library, an equal part of each,
sorted by package and path and packed in that order by shoal. Five orders, three of them with the same memory; each run
reads every row once and begins, for a seed, with the same weights. The loss is that on held-out files of every package.
The setting for a GPU has not been run yet.
Needs torch, and matplotlib for the picture. Runs on a GPU where torch finds one, with a larger model; else on the CPU.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import platform
import re
import sys
import sysconfig
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import shoal
import shoal.pack
from shoal.errors import ShuffleWarning

try:
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError:
    print("language_model.py needs torch: pip install torch")
    sys.exit(0)  # make bench goes on with the others


@dataclass(frozen=True, slots=True)
class Setting:
    """What to train on what. Rows have ``context + 1`` tokens."""

    package_bytes: int  # of each package, at most
    vocabulary: int
    context: int
    width: int
    layers: int
    heads: int
    batch: int  # rows
    rate: float
    chunk_rows: int
    small_chunk_rows: int
    window_chunks: int
    shard_rows: int

    @property
    def memory_rows(self) -> int:
        """Rows that the window, a block and the buffer hold."""
        return self.chunk_rows * self.window_chunks

    @property
    def row_bytes(self) -> int:
        """Stored bytes of a row."""
        return 2 * (self.context + 1) + 8


ON_CPU = Setting(
    package_bytes=40_000, vocabulary=1024, context=128, width=96, layers=2, heads=4, batch=16, rate=2e-3,
    chunk_rows=8, small_chunk_rows=2, window_chunks=32, shard_rows=512,
)  # fmt: skip
ON_GPU = Setting(
    package_bytes=1_000_000, vocabulary=4096, context=512, width=512, layers=8, heads=8, batch=32, rate=1e-3,
    chunk_rows=8, small_chunk_rows=2, window_chunks=64, shard_rows=1024,
)  # fmt: skip
NUM_EVALUATIONS, HELD_OUT_ROWS = 8, 8  # rows of each package
LONGEST_FILE_SHARE, HELD_OUT_SHARE = 4, 8  # a quarter of a package, an eighth
ORDERS = {
    "full permutation": "#009e73",
    "window": "#0072b2",
    "window, small chunks": "#56b4e9",
    "block": "#cc79a7",
    "buffer over shards": "#d55e00",
    "storage order": "#8c8c8c",
}


def packages() -> dict[str, list[Path]]:
    """The source files of each package that is installed or in the standard library, in the order of their paths."""
    found: dict[str, list[Path]] = {}
    for root in {sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")}:
        for directory in Path(root).iterdir():
            if directory.is_dir() and directory.name not in {"site-packages", "__pycache__", "test", "shoal"}:
                files = sorted(path for path in directory.rglob("*.py") if path.is_file())
                found.setdefault(directory.name, []).extend(files)
    return dict(sorted(found.items()))


def texts(setting: Setting) -> tuple[list[list[bytes]], list[list[bytes]]]:
    """The files to train on and those held out, of each package.

    Which files is drawn by a hash of their contents; no text comes twice, and no file is a large part of its package.
    """
    seen: set[bytes] = set()
    train, held_out = [], []
    for files in packages().values():
        drawn = []
        for number, path in enumerate(files):
            if 200 <= path.stat().st_size <= setting.package_bytes // LONGEST_FILE_SHARE:
                text = path.read_bytes()
                digest = hashlib.sha256(text).digest()
                if digest not in seen:
                    seen.add(digest)
                    drawn.append((digest, number, text))
        drawn.sort()
        sizes = np.cumsum([len(text) for _, _, text in drawn])
        if not len(sizes) or sizes[-1] < setting.package_bytes // 2:
            continue
        first = int(np.searchsorted(sizes, setting.package_bytes // HELD_OUT_SHARE)) + 1
        last = int(np.searchsorted(sizes, setting.package_bytes * (HELD_OUT_SHARE + 1) // HELD_OUT_SHARE))
        held_out.append([text for _, _, text in drawn[:first]])
        train.append([text for _, _, text in sorted(drawn[first:last], key=lambda each: each[1])])
    return train, held_out


class Vocabulary:
    """Every byte, and the words and runs of spaces or signs that save most tokens; a word that is in none is bytes."""

    _WORDS = re.compile(rb" ?[A-Za-z]+|\n *|[0-9]+| ?[^A-Za-z0-9\s]+|\s+", re.DOTALL)

    def __init__(self, files: list[bytes], size: int) -> None:
        counts = Counter(word for text in files for word in self._WORDS.findall(text) if len(word) > 1)
        best = sorted(counts, key=lambda word: (-counts[word] * (len(word) - 1), word))[: size - 256]
        self._numbers = {word: [256 + number] for number, word in enumerate(best)}

    def tokens(self, text: bytes) -> list[int]:
        """The tokens of a text."""
        return [token for word in self._WORDS.findall(text) for token in self._numbers.get(word) or word]


def rows_of(files: list[bytes], vocabulary: Vocabulary, setting: Setting) -> Any:
    """The files of a package after one another, a zero behind each, cut into rows."""
    stream = np.array([token for text in files for token in [*vocabulary.tokens(text), 0]], dtype=np.uint16)
    length = setting.context + 1
    return stream[: len(stream) // length * length].reshape(-1, length)


def prepare(directory: Path, setting: Setting) -> None:
    """Pack the training rows in storage order, keep the package of each beside them, and the held-out rows."""
    train, held_out = texts(setting)
    vocabulary = Vocabulary([text for files in train for text in files], setting.vocabulary)
    rows = [rows_of(files, vocabulary, setting) for files in train]
    held_out_rows = [rows_of(files, vocabulary, setting)[:HELD_OUT_ROWS] for files in held_out]
    every = np.concatenate(rows)
    options = {"columns": {"tokens": f"ndarray:uint16:{setting.context + 1}"}}
    with shoal.pack.Writer(
        directory / "shards",
        format="mds",
        shard_bytes=setting.shard_rows * setting.row_bytes,
        extent_bytes=setting.small_chunk_rows * setting.row_bytes,
        options=options,
    ) as writer:
        for row in every:
            writer.write({"tokens": row})
    np.save(directory / "labels.npy", np.repeat(np.arange(len(rows)), [len(each) for each in rows]))
    np.save(directory / "held_out.npy", np.concatenate(held_out_rows))
    num_bytes = sum(len(text) for files in train for text in files)
    print(f"{len(rows)} packages, {sum(map(len, train))} files, {num_bytes / 1e6:.2f} MB, {every.size:,} tokens in "
          f"{len(every)} rows of {setting.context + 1}; held out "
          f"{sum(each.size for each in held_out_rows):,} tokens of {sum(map(len, held_out))} files; sha256 "
          f"{hashlib.sha256(every.tobytes()).hexdigest()[:12]}")  # fmt: skip


def stream(directory: Path, order: str, seed: int, setting: Setting) -> shoal.Dataset:
    """The rows in one of the orders, in batches. Windows, block and buffer hold the same number of rows."""
    data = shoal.open(directory / "shards")
    chunks, chunk = setting.window_chunks, setting.chunk_rows * setting.row_bytes
    small, many = setting.small_chunk_rows * setting.row_bytes, setting.memory_rows // setting.small_chunk_rows
    shuffled = {
        "full permutation": lambda: data.shuffle("full", seed=seed),
        "window": lambda: data.shuffle(shoal.orders.Window(chunks, num_canonical_nodes=1), seed=seed, chunk=chunk),
        "window, small chunks": lambda: data.shuffle(
            shoal.orders.Window(many, num_canonical_nodes=1), seed=seed, chunk=small
        ),
        "block": lambda: data.shuffle(shoal.orders.Block(chunks), seed=seed, chunk=chunk),
        "buffer over shards": lambda: data.shuffle(shoal.orders.Buffer(setting.memory_rows), seed=seed, chunk="1GiB"),
        "storage order": lambda: data,
    }[order]()
    return shuffled.batch(setting.batch, remainder="drop")


class Layer(nn.Module):
    """Attention and a feed-forward network, each normed before and added."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        width = setting.width
        self.heads = setting.heads
        self.norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, inputs: Any) -> Any:
        """Add both parts to the inputs: rows, positions and width."""
        rows, length, width = inputs.shape
        split = self.queries(self.norm(inputs)).view(rows, length, 3, self.heads, width // self.heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        inputs = inputs + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return inputs + self.down(functional.gelu(self.up(self.second_norm(inputs))))


class Model(nn.Module):
    """GPT with learned positions and tied embeddings."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.tokens = nn.Embedding(setting.vocabulary, setting.width)
        self.positions = nn.Embedding(setting.context, setting.width)
        self.layers = nn.Sequential(*[Layer(setting) for _ in range(setting.layers)])
        self.norm = nn.LayerNorm(setting.width)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, 0.0, 0.02)

    def forward(self, rows: Any) -> Any:
        """The mean loss of predicting each token but the first of its row, in nats."""
        inputs = self.tokens(rows[:, :-1]) + self.positions.weight
        scores = self.norm(self.layers(inputs)) @ self.tokens.weight.T
        return functional.cross_entropy(scores.float().flatten(0, 1), rows[:, 1:].flatten())


def batches(data: shoal.Dataset, device: str) -> Iterator[Any]:
    for batch in data:
        yield torch.from_numpy(np.asarray(batch["tokens"]).astype(np.int64)).to(device)


def train(directory: Path, order: str, seed: int, setting: Setting) -> tuple[list[tuple[int, float]], int, float]:
    """One epoch with AdamW, a warm-up and a cosine to a twentieth; held-out losses by step, parameters, CPU seconds."""
    warnings.simplefilter("ignore", ShuffleWarning)
    began = time.process_time()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Model(setting).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=setting.rate, betas=(0.9, 0.95), weight_decay=0.1)
    held_out = torch.from_numpy(np.load(directory / "held_out.npy").astype(np.int64)).to(device)
    data = stream(directory, order, seed, setting)
    num_steps = data.num_samples // setting.batch
    evaluated = {round(num_steps * part / NUM_EVALUATIONS) for part in range(1, NUM_EVALUATIONS + 1)}
    warm_up = max(1, num_steps // 20)
    losses = []
    for step, rows in enumerate(batches(data, device), 1):
        cosine = 0.525 + 0.475 * math.cos(math.pi * step / num_steps)
        optimizer.param_groups[0]["lr"] = setting.rate * min(1.0, step / warm_up) * cosine
        with torch.autocast(device, torch.bfloat16):
            loss = model(rows)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step in evaluated:
            with torch.no_grad(), torch.autocast(device, torch.bfloat16):
                parts = [(len(part), model(part).item()) for part in held_out.split(64)]
            losses.append((step, sum(size * loss for size, loss in parts) / len(held_out)))
    return losses, sum(each.numel() for each in model.parameters()), time.process_time() - began


def main() -> None:
    """Train, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", nargs="?", type=Path)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--processes", type=int, default=1, help="runs at a time")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin no run after the first seed that ends later"
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the text and one seed, to see that it runs")
    parser.add_argument("--rate", type=float, action="append", help="only the full permutation, at each of these rates")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ShuffleWarning)
    gpu = torch.cuda.is_available()
    setting = ON_GPU if gpu else ON_CPU
    if arguments.quick:
        setting = replace(setting, package_bytes=setting.package_bytes // 10)
        arguments.seeds = 1
    machine = f"GPU: {torch.cuda.get_device_name()}" if gpu else f"CPU, {os.cpu_count()} cores, no GPU"
    print(f"{machine}; Python {platform.python_version()}, torch {torch.__version__}\n{setting}")
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["SHOAL_CACHE_DIR"] = f"{scratch}/cache"
        directory = Path(scratch)
        prepare(directory, setting)
        with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
            if arguments.rate:
                tried = [replace(setting, rate=rate) for rate in arguments.rate]
                for each in [pool.submit(train, directory, "full permutation", 1000, one) for one in tried]:
                    print(f"{each.result()[0][-1][1]:.4f}, {each.result()[2]:.0f} s of CPU")
                return
            curves = trained(pool, directory, setting, arguments)
        report(curves, directory, setting)
    if arguments.picture:
        draw(arguments.picture, curves, setting)


def trained(pool: Any, directory: Path, setting: Setting, arguments: Any) -> dict[str, Any]:
    """The held-out losses by order: an array of seeds, evaluations, and step with loss."""
    began = time.perf_counter()
    curves: dict[str, list[Any]] = {order: [] for order in ORDERS}
    runs = [{order: pool.submit(train, directory, order, seed, setting) for order in ORDERS}
            for seed in range(arguments.seeds)]  # fmt: skip
    for seed, of_seed in enumerate(runs):
        for order, run in of_seed.items():
            losses, parameters, seconds = run.result()
            curves[order].append(losses)
            print(f"  seed {seed}, {order:20} {losses[-1][1]:.4f}  ({losses[-1][0]} steps, {parameters:,} parameters, "
                  f"{seconds:.0f} s of CPU)", flush=True)  # fmt: skip
        if time.perf_counter() - began > 60 * arguments.minutes:
            pool.shutdown(cancel_futures=True)
            print(f"time is up after {seed + 1} of {arguments.seeds} seeds")
            break
    return {order: np.array(each) for order, each in curves.items()}


def report(curves: dict[str, Any], directory: Path, setting: Setting) -> None:
    """Print the table: means of the seeds, and the gap to the full permutation of the same seed."""
    labels = np.load(directory / "labels.npy")
    full = curves["full permutation"][:, -1, 1]
    print(
        f"order, VR({setting.batch}), held-out loss: mean, and of each seed; gap to the full permutation of that seed"
    )
    for order, each in curves.items():
        final = each[:, -1, 1]
        gaps = 100 * (final / full - 1)
        ratio = stream(directory, order, 0, setting).quality(key=labels).vr[setting.batch]
        print(f"{order:20} {ratio:7.2f}   {final.mean():.4f}  {' '.join(f'{loss:.4f}' for loss in final)}  "
              f"{gaps.mean():+.2f} % ({gaps.min():+.2f} to {gaps.max():+.2f})")  # fmt: skip


def draw(path: Path, curves: dict[str, Any], setting: Setting) -> None:
    """The mean of the seeds over steps with a band from best to worst, and the gaps at the end."""
    import matplotlib as mpl  # noqa: PLC0415  (workers and runs without a picture need none)

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9.0, 3.7), layout="constrained", gridspec_kw={"width_ratios": (3, 2)}
    )
    full = curves["full permutation"][:, -1, 1]
    for number, (order, colour) in enumerate(ORDERS.items()):
        steps, losses = curves[order][0, :, 0], curves[order][:, :, 1]
        dashes = (0, (4, 2)) if order == "full permutation" else "-"
        left.fill_between(steps, losses.min(axis=0), losses.max(axis=0), color=colour, alpha=0.16, linewidth=0)
        left.plot(steps, losses.mean(axis=0), color=colour, linewidth=1.6, linestyle=dashes, label=order)
        gaps = 100 * (losses[:, -1] / full - 1)
        right.barh(number, gaps.mean(), color=colour, height=0.6)
        right.plot(gaps, [number] * len(gaps), "o", color="#333333", markersize=3)
        right.text(max(gaps.max(), 0), number, f"  {gaps.mean():+.2f} %", va="center")
    left.set(xlabel="step", ylabel="held-out loss, nats a token")
    left.set_title("A small GPT on sources sorted by package", loc="left", fontweight="bold")
    left.legend(frameon=False, title=f"mean of {len(full)} seeds, best to worst", alignment="left")
    right.set_yticks(range(len(ORDERS)), list(ORDERS))
    right.invert_yaxis()
    right.margins(x=0.25)
    right.axvline(0, color="#5c5c5c", linewidth=0.8)
    right.set(xlabel="% above the full permutation's loss at the end")
    right.set_title(f"Memory for {setting.memory_rows} rows; dots are seeds", loc="left")
    figure.savefig(path, dpi=120, metadata={"Software": None})


if __name__ == "__main__":
    main()
