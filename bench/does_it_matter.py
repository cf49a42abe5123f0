"""Does the order matter? ``python bench/does_it_matter.py [PICTURE.png]``: a network on digits, sorted by class.

Needs scikit-learn (for the digits, which it ships) and matplotlib, in an environment with shoal. Four orders, three of
them with the same memory, read by shoal from JSON Lines shards of one class each; everything else is equal.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

import shoal
from shoal.cli.main import main as command
from shoal.errors import ShuffleWarning

try:
    from sklearn.datasets import load_digits
except ImportError:
    print("does_it_matter.py needs scikit-learn, which nothing else of shoal does: pip install scikit-learn")
    sys.exit(0)  # make bench goes on with the others

mpl.use("Agg")

import matplotlib.pyplot as plt

SEEDS, EPOCHS, BATCH, HIDDEN = 10, 12, 32, 32
MEMORY_SAMPLES, CHUNK_SAMPLES, EVERY_STEPS = 128, 4, 5
RATES = (0.02, 0.1, 0.5)
DRAWN_RATE = 0.1
ORDERS = {
    "none: sorted as stored": "#8c8c8c",
    f"buffer of {MEMORY_SAMPLES} samples": "#d55e00",
    f"window of {MEMORY_SAMPLES // CHUNK_SAMPLES} chunks of {CHUNK_SAMPLES}": "#0072b2",
    "perfect: a read per sample": "#009e73",
}


def main() -> None:
    """Train, print and draw."""
    began = time.perf_counter()
    warnings.simplefilter("ignore", ShuffleWarning)
    found: dict[float, dict[str, Any]] = {rate: {} for rate in RATES}
    with tempfile.TemporaryDirectory() as folder:
        test = write_shards(Path(folder))
        for rate in RATES:
            for place, name in enumerate(ORDERS):
                curves = [train(stream(Path(folder), place, seed), test, seed, rate) for seed in range(SEEDS)]
                found[rate][name] = np.array(curves)
    steps = EVERY_STEPS * np.arange(1, found[DRAWN_RATE][next(iter(ORDERS))].shape[1] + 1)
    print(f"{SEEDS} seeds, {EPOCHS} epochs of {steps[-1] // EPOCHS} steps; accuracy on held-out digits, %")
    for rate, curves in found.items():
        print(f"learning rate {rate}:")
        for name, each in curves.items():
            late = 100 * each[:, -len(steps) // EPOCHS :]
            final = 100 * each[:, -1]
            print(f"  {name:28} at the end {final.mean():5.1f} ({final.min():.1f} to {final.max():.1f}), "
                  f"worst of the last epoch {late.min():5.1f}")  # fmt: skip
    print(f"{time.perf_counter() - began:.0f} s")
    if len(sys.argv) > 1:
        draw(Path(sys.argv[1]), steps, found[DRAWN_RATE])


def write_shards(folder: Path) -> tuple[Any, Any]:
    """Four fifths of the digits in a shard for each class; the others are the test."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    train_part, test_part = order[: len(order) * 4 // 5], order[len(order) * 4 // 5 :]
    for label in range(10):
        mine = train_part[digits.target[train_part] == label]
        lines = [json.dumps({"x": digits.data[at].astype(int).tolist(), "y": label}) + "\n" for at in mine]
        (folder / f"class-{label}.jsonl").write_text("".join(lines))
    return digits.data[test_part] / 16.0, digits.target[test_part]


def stream(folder: Path, order: int, seed: int) -> shoal.Dataset:
    """The training digits in one of the orders, in batches."""
    index = folder / "fine.index"
    if not index.exists():
        with contextlib.redirect_stdout(io.StringIO()):
            command(["index", str(folder / "class-*.jsonl"), "--extent-bytes", "256", "--output", str(index), "--json"])
    data = shoal.open(str(folder / "class-*.jsonl"), index=index)
    sample_bytes = sum(path.stat().st_size for path in folder.glob("*.jsonl")) / data.num_samples
    chunk = round(CHUNK_SAMPLES * sample_bytes)
    window = shoal.orders.Window(MEMORY_SAMPLES // CHUNK_SAMPLES, num_canonical_nodes=1)
    shuffled = [
        data,
        data.shuffle(shoal.orders.Buffer(samples=MEMORY_SAMPLES), seed=seed),
        data.shuffle(window, seed=seed, chunk=chunk),
        data.shuffle("full", seed=seed),
    ][order]
    return shuffled.batch(BATCH, remainder="drop")


def train(data: shoal.Dataset, test: tuple[Any, Any], seed: int, rate: float) -> list[float]:
    """Plain stochastic gradient descent on a network with one hidden layer; the accuracy every few steps."""
    rng = np.random.default_rng([seed, 1])
    first, second = rng.normal(0, 0.2, (65, HIDDEN)), rng.normal(0, 0.2, (HIDDEN + 1, 10))
    accuracies, step = [], 0
    for _ in range(EPOCHS):
        for batch in data:
            inputs = with_one(np.array(batch["x"]) / 16.0)
            hidden = with_one(np.maximum(0.0, inputs @ first))
            wrong = softmax(hidden @ second)
            wrong[np.arange(BATCH), batch["y"]] -= 1.0
            back = (wrong @ second[:-1].T) * (hidden[:, :-1] > 0)
            second -= rate * hidden.T @ wrong / BATCH
            first -= rate * inputs.T @ back / BATCH
            step += 1
            if step % EVERY_STEPS == 0:
                scores = with_one(np.maximum(0.0, with_one(test[0]) @ first)) @ second
                accuracies.append(float((scores.argmax(axis=1) == test[1]).mean()))
    return accuracies


def with_one(values: Any) -> Any:
    """A column of ones more, for the bias."""
    return np.hstack([values, np.ones((len(values), 1))])


def softmax(scores: Any) -> Any:
    """Probabilities of each row."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def draw(path: Path, steps: Any, curves: dict[str, Any]) -> None:
    """The median of the seeds, and a band from the worst to the best."""
    plt.rcParams.update(
        {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "shoal"}
    )
    figure, axes = plt.subplots(figsize=(8.4, 4.1), layout="constrained")
    for (name, colour), width in zip(ORDERS.items(), (1.2, 1.6, 2.2, 1.4), strict=True):
        each = 100 * curves[name]
        axes.fill_between(steps, each.min(axis=0), each.max(axis=0), color=colour, alpha=0.16, linewidth=0)
        dashes = (0, (4, 2)) if name.startswith("perfect") else "-"
        axes.plot(steps, np.median(each, axis=0), color=colour, linewidth=width, label=name, linestyle=dashes)
    axes.set(xlabel="step", ylim=(0, 100), xlim=(0, steps[-1]))
    axes.set_yticks(range(0, 101, 20), [f"{at} %" for at in range(0, 101, 20)])
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    title = "Accuracy on held-out digits, trained from shards sorted by class"
    axes.set_title(title, loc="left", fontweight="bold", fontsize=11.5)
    axes.legend(frameon=False, loc="lower right", fontsize=9, title=f"median of {SEEDS} seeds, worst to best")
    figure.savefig(path, dpi=120, metadata={"Software": None} if path.suffix == ".png" else {"Date": None})


if __name__ == "__main__":
    main()
