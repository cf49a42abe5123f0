"""Does the order matter to a language model? ``python bench/language_model.py [PICTURE.png]``; ``--quick`` to try it.

A small GPT on real text: Python sources of the installed packages and the standard library, an equal part of each,
sorted by package and path. Seven orders, four of them with the same memory; a model reads every row once. For a seed,
all orders begin with the same weights, and all models of some seeds are trained side by side. The loss is that on
held-out files of every package. "another full permutation" shows the noise: only its seed differs from the first.

Needs torch, and matplotlib for the picture. Runs on a GPU where torch finds one, with a larger model; else on the CPU.
``--minutes 8`` begins no further seeds if they would end later.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from mixing.predictors import excess, similarity, variance_ratio
from mixing.text import TextRows, read_rows
from mixing.tried_orders import TRIED
from numpy.typing import NDArray

try:
    import torch
    from mixing.ensemble import GPT, repeated, train
except ImportError:
    print("language_model.py needs torch: pip install torch")
    sys.exit(0)  # make bench goes on with the others


@dataclass(frozen=True, slots=True)
class Setting:
    """What to train on what. Rows have ``context + 1`` tokens."""

    package_bytes: int  # of each package, at most
    model: GPT
    batch: int  # rows
    rate: float
    chunk_rows: int
    small_chunk_rows: int
    window_chunks: int
    shard_rows: int
    seeds_together: int

    @property
    def memory_rows(self) -> int:
        """Rows that the window, a block and the buffer hold."""
        return self.chunk_rows * self.window_chunks

    def order(self, name: str, num_rows: int, seed: int) -> NDArray[np.int64]:
        """Return the row numbers of one of the orders; shape (num_rows,)."""
        kind, chunk_rows = {
            "full permutation": ("full", 1),
            "another full permutation": ("full", 1),
            "window": ("window", self.chunk_rows),
            "window, small chunks": ("window", self.small_chunk_rows),
            "block": ("block", self.chunk_rows),
            "buffer over shards": ("buffer", self.shard_rows),
            "storage order": ("storage", 1),
        }[name]
        return TRIED[kind](num_rows, chunk_rows, self.memory_rows, seed + 1000 * (name == "another full permutation"))


ON_CPU = Setting(
    package_bytes=40_000, model=GPT(vocabulary=1024, context=128, width=96, layers=2, heads=4), batch=16, rate=2e-3,
    chunk_rows=8, small_chunk_rows=2, window_chunks=32, shard_rows=512, seeds_together=1,
)  # fmt: skip
ON_GPU = Setting(
    package_bytes=250_000, model=GPT(vocabulary=4096, context=256, width=256, layers=4, heads=4), batch=32, rate=1e-3,
    chunk_rows=8, small_chunk_rows=2, window_chunks=64, shard_rows=1024, seeds_together=2,
)  # fmt: skip
NUM_EVALUATIONS = 8
ORDERS = {
    "full permutation": "#009e73",
    "another full permutation": "#7fceb9",
    "window": "#0072b2",
    "window, small chunks": "#56b4e9",
    "block": "#cc79a7",
    "buffer over shards": "#d55e00",
    "storage order": "#8c8c8c",
}


def trained(text: TextRows, setting: Setting, seeds: list[int]) -> NDArray[np.float64]:
    """Train all orders of some seeds; held-out losses of shape (num_orders, num_seeds, NUM_EVALUATIONS)."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows, held_out = (torch.from_numpy(each.astype(np.int64)).to(device) for each in (text.train, text.held_out))
    initial = {seed: setting.model.parameters(seed) for seed in seeds}
    orders = np.array([setting.order(name, len(rows), seed) for name in ORDERS for seed in seeds])
    losses = train(
        setting.model.loss,
        repeated([initial[seed] for seed in seeds] * len(ORDERS), np.arange(len(orders)), device),
        rows,
        orders,
        held_out,
        batch=setting.batch,
        rates=np.full(len(orders), setting.rate),
        evaluations=NUM_EVALUATIONS,
    )
    return losses.reshape(len(ORDERS), len(seeds), NUM_EVALUATIONS)


def main() -> None:
    """Train, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", nargs="?", type=Path)
    parser.add_argument("--seeds", type=int, default=4, help="at most")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no further seeds that would end later")
    parser.add_argument("--quick", action="store_true", help="a tenth of the text and one seed, to see that it runs")
    parser.add_argument("--rate", type=float, help="another learning rate")
    arguments = parser.parse_args()
    began = time.perf_counter()
    gpu = torch.cuda.is_available()
    setting = ON_GPU if gpu else ON_CPU
    if arguments.rate:
        setting = replace(setting, rate=arguments.rate)
    if arguments.quick:
        setting = replace(setting, package_bytes=setting.package_bytes // 10)
        arguments.seeds = 1
    machine = f"GPU: {torch.cuda.get_device_name()}" if gpu else f"CPU, {os.cpu_count()} cores, no GPU"
    print(f"{machine}; Python {platform.python_version()}, torch {torch.__version__}\n{setting}")
    model = setting.model
    text = read_rows(package_bytes=setting.package_bytes, vocabulary=model.vocabulary, context=model.context)
    print(text.summary, flush=True)
    losses: list[NDArray[np.float64]] = []
    longest = 0.0
    for first in range(0, arguments.seeds, setting.seeds_together):
        now = time.perf_counter()
        if now - began + longest > 60 * arguments.minutes:
            print(f"time is up after {first} of {arguments.seeds} seeds")
            break
        seeds = list(range(first, min(first + setting.seeds_together, arguments.seeds)))
        losses.append(trained(text, setting, seeds))
        longest = max(longest, time.perf_counter() - now)
        print(f"  seeds {seeds}: {time.perf_counter() - now:.0f} s", flush=True)
    curves = np.concatenate(losses, axis=1)
    report(curves, text, setting)
    if arguments.picture:
        draw(arguments.picture, curves, len(text.train) // setting.batch, setting)


def report(curves: NDArray[np.float64], text: TextRows, setting: Setting) -> None:
    """Print the table: means of the seeds, and the gap to the full permutation of the same seed."""
    full, batch = curves[0, :, -1], setting.batch
    similar = similarity(text.train, setting.model.vocabulary)
    print(f"order, VR({batch}), VR({4 * batch}), excess over {2 * batch} samples; held-out loss: mean, each seed; gap "
          "to the full permutation of the same seed: mean (standard error)")  # fmt: skip
    beside = excess(setting.order("full permutation", len(text.train), 0), similar, 2 * batch)
    for name, final in zip(ORDERS, curves[:, :, -1], strict=True):
        ids = setting.order(name, len(text.train), 0)
        gaps = 100 * (final / full - 1)
        error = gaps.std(ddof=1) / len(gaps) ** 0.5 if len(gaps) > 1 else math.nan
        ratios = [variance_ratio(ids, text.package, span) for span in (batch, 4 * batch)]
        more = excess(ids, similar, 2 * batch) - beside
        every = " ".join(f"{loss:.4f}" for loss in final)
        print(f"{name:24} {ratios[0]:6.2f} {ratios[1]:6.2f} {more:+7.3f}   {final.mean():.4f}  {every}  "
              f"{gaps.mean():+.2f} % ({error:.2f})")  # fmt: skip


def draw(path: Path, curves: NDArray[np.float64], num_steps: int, setting: Setting) -> None:
    """The mean of the seeds over steps with a band from best to worst, and the gaps at the end."""
    import matplotlib as mpl  # noqa: PLC0415  (runs without a picture need none)

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9.0, 3.7), layout="constrained", gridspec_kw={"width_ratios": (3, 2)}
    )
    full = curves[0, :, -1]
    steps = num_steps * np.arange(1, NUM_EVALUATIONS + 1) // NUM_EVALUATIONS
    for number, ((name, colour), losses) in enumerate(zip(ORDERS.items(), curves, strict=True)):
        dashes = (0, (4, 2)) if "full" in name else "-"
        left.fill_between(steps, losses.min(axis=0), losses.max(axis=0), color=colour, alpha=0.16, linewidth=0)
        left.plot(steps, losses.mean(axis=0), color=colour, linewidth=1.6, linestyle=dashes, label=name)
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
