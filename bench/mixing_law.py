"""Which property of an order predicts the loss? ``python bench/mixing_law.py RESULTS.json``; ``--quick`` to try it.

Trains small models, an order each and a GPU's memory full at a time: a GPT on source files sorted by package, and a
classifier on scikit-learn's digits sorted by class. All models of a seed begin with the same weights. Prints, for each
setting, the held-out loss above that of full permutations, and writes it with the predictors of `mixing.predictors`.
``python bench/mixing_law.py bench/mixing/h200.json PICTURE.png --report`` ranks settings that were trained before.


Needs torch; the digits need scikit-learn. A GPU takes two minutes for the grid, two CPU cores some hours.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mixing.law_report import draw, report
from mixing.predictors import excess, similarity, variance_ratio
from mixing.text import read_rows
from mixing.tried_orders import TRIED
from numpy.typing import NDArray

try:
    import torch
    from mixing.ensemble import GPT, Classifier, repeated, train
except ImportError:
    print("mixing_law.py needs torch: pip install torch")
    sys.exit(0)  # make bench goes on with the others

MEMORIES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # of the optimiser, in samples
FULL_ORDERS = 4  # full permutations for each initial model


@dataclass(frozen=True, slots=True)
class Setting:
    """An order and how to train in it; ``chunk_rows`` of a buffer are the rows of a shard."""

    task: str
    order: str
    chunk_rows: int
    memory_rows: int
    batch: int
    rate: float
    epochs: int = 1


@dataclass(frozen=True, slots=True)
class Task:
    """Rows in storage order, how alike they are by distance, and the model for them."""

    rows: Any
    held_out: Any
    labels: NDArray[np.int64]
    similar: NDArray[np.float64]
    model: Any
    summary: str


def text_task(*, quick: bool) -> Task:
    """Return the task of the GPT."""
    model = GPT(vocabulary=1024, context=128, width=96, layers=2, heads=4)
    rows = read_rows(package_bytes=4_000 if quick else 24_000, vocabulary=1024, context=128)
    train_rows, held_out = (torch.from_numpy(each.astype(np.int64)) for each in (rows.train, rows.held_out))
    return Task(train_rows, held_out, rows.package, similarity(rows.train, 1024), model, rows.summary)


def digits_task() -> Task | None:
    """Return the task of the classifier, or None without scikit-learn."""
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415
    except ImportError:
        print("no scikit-learn, so no digits")
        return None
    digits = load_digits()
    drawn = np.random.default_rng(0).permutation(len(digits.target))
    train_numbers, held_out_numbers = np.sort(drawn[:1500]), drawn[1500:]
    train_numbers = train_numbers[np.argsort(digits.target[train_numbers], kind="stable")]
    every = np.column_stack([digits.data / 16, digits.target]).astype(np.float32)
    labels = digits.target[train_numbers].astype(np.int64)
    shares = np.bincount(labels) / len(labels)
    expected = float((shares**2).sum())
    similar = np.array(
        [(np.mean(labels[: len(labels) - d] == labels[d:]) - expected) / (1 - expected) for d in range(256)]
    )
    rows, held_out = torch.from_numpy(every[train_numbers]), torch.from_numpy(every[held_out_numbers])
    summary = f"digits of scikit-learn sorted by class: {len(labels)} rows, {len(held_out)} held out"
    return Task(rows, held_out, labels, similar, Classifier(pixels=64, classes=10, width=128), summary)


def text_settings() -> Iterator[Setting]:
    """Yield the grid for text: chunks, memory, orders and ideas; and less of it at another rate and another batch."""
    yield from _grid("text", 16, 1e-3, chunks=(1, 2, 4, 8, 16, 32), memories=(64, 256, 1024))
    for memory in (128, 512):
        yield Setting("text", "window", 8, memory, 16, 1e-3)
    for order in ("released_window", "window_into_buffer", "two_visits", "simulated_window"):
        yield Setting("text", order, 8, 256, 16, 1e-3)
    for chunk in (2, 4, 8, 16):
        yield Setting("text", "stratified_window", chunk, 256, 16, 1e-3)
    yield from _few("text", 16, 2e-3)
    yield from _few("text", 64, 2e-3)


def _grid(task: str, batch: int, rate: float, *, chunks: Any, memories: Any, epochs: int = 1) -> Iterator[Setting]:
    yield Setting(task, "full", 1, 0, batch, rate, epochs)
    for memory in memories:
        for chunk in chunks:
            if memory >= 4 * chunk:
                yield Setting(task, "window", chunk, memory, batch, rate, epochs)
        yield Setting(task, "block", 8, memory, batch, rate, epochs)
        yield Setting(task, "buffer", 512, memory, batch, rate, epochs)
    yield Setting(task, "storage", 1, 0, batch, rate, epochs)


def _few(task: str, batch: int, rate: float) -> Iterator[Setting]:
    yield Setting(task, "full", 1, 0, batch, rate)
    for chunk, memory in ((2, 64), (8, 64), (2, 256), (4, 256), (8, 256), (32, 256), (2, 1024), (8, 1024), (32, 1024)):
        yield Setting(task, "window", chunk, memory, batch, rate)
    yield Setting(task, "block", 8, 256, batch, rate)
    yield Setting(task, "buffer", 512, 256, batch, rate)


def digits_settings() -> Iterator[Setting]:
    """Yield the grid for digits: four epochs."""
    for batch in (8, 32):
        yield from _grid("digits", batch, 2e-3, chunks=(1, 2, 4, 8, 16), memories=(32, 128, 512), epochs=4)
        for chunk in (2, 8):
            for memory in (32, 128, 512):
                yield Setting("digits", "stratified_window", chunk, memory, batch, 2e-3, 4)


def order_of(setting: Setting, num_rows: int, seed: int) -> NDArray[np.int64]:
    """Return the row numbers of all epochs, one after the other."""
    make = TRIED[setting.order]
    epochs = [
        make(num_rows, setting.chunk_rows, setting.memory_rows, 1000 * seed + epoch) for epoch in range(setting.epochs)
    ]
    return np.concatenate(epochs)


def run(task: Task, settings: list[Setting], seeds: int, together: int, ends: float) -> list[dict[str, Any]]:
    """Train every setting with every seed, and return a record for each setting."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows, held_out = task.rows.to(device), task.held_out.to(device)
    initial = [task.model.parameters(seed) for seed in range(seeds)]
    records: list[dict[str, Any]] = []
    for batch in sorted({setting.batch for setting in settings}):
        members = [
            (setting, seed, seed + seeds * repeat)
            for setting in settings
            if setting.batch == batch
            for seed in range(seeds)
            for repeat in range(FULL_ORDERS if setting.order == "full" else 1)
        ]
        orders = [order_of(setting, len(rows), order_seed) for setting, _, order_seed in members]
        losses = np.full(len(members), np.nan)
        for first in range(0, len(members), together):
            if time.perf_counter() > ends:
                break
            some = slice(first, first + together)
            began = time.perf_counter()
            parameters = repeated(initial, np.array([seed for _, seed, _ in members[some]]), device)
            rates = np.array([setting.rate for setting, _, _ in members[some]])
            losses[some] = train(
                task.model.loss, parameters, rows, np.array(orders[some]), held_out, batch=batch, rates=rates
            )[:, -1]
            seconds = time.perf_counter() - began
            print(f"{len(rates)} models, {orders[0].size // batch} steps of {batch}: {seconds:.0f} s", flush=True)
        records += _records(task, members, orders, losses)
    return records


def _records(task: Task, members: list[Any], orders: list[Any], losses: NDArray[np.float64]) -> list[dict[str, Any]]:
    """Return, for each setting, its losses by seed and its predictors from the first two orders."""
    records = []
    for setting in dict.fromkeys(member[0] for member in members):
        numbers = [number for number, member in enumerate(members) if member[0] == setting]
        seeds = [members[number][1] for number in numbers]
        by_seed = [float(np.mean([losses[n] for n, s in zip(numbers, seeds, strict=True) if s == seed]))
                   for seed in sorted(set(seeds))]  # fmt: skip
        epochs = [orders[number][: len(task.labels)] for number in numbers[:2]]
        records.append(
            asdict(setting)
            | {"losses": by_seed, "every": [float(losses[n]) for n in numbers]}
            | {"excess": [float(np.mean([excess(ids, task.similar, memory) for ids in epochs])) for memory in MEMORIES]}
            | {"vr": [float(np.mean([variance_ratio(ids, task.labels, span) for ids in epochs]))
                      for span in MEMORIES if span <= len(task.labels) // 4]}
        )  # fmt: skip
    return records


def with_gaps(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to every record its gap to the full permutation of the same training, in percent, and its standard error."""
    full = {(each["task"], each["batch"], each["rate"]): each for each in records if each["order"] == "full"}
    for each in records:
        beside = full[each["task"], each["batch"], each["rate"]]
        gaps = 100 * (np.array(each["losses"]) / np.array(beside["losses"]) - 1)
        each["gap"], each["error"] = float(gaps.mean()), float(gaps.std(ddof=1) / len(gaps) ** 0.5)
        each["more"] = [own - other for own, other in zip(each["excess"], beside["excess"], strict=True)]
    return records


def show(records: list[dict[str, Any]]) -> None:
    """Print a line for each setting."""
    print("task    order              chunk memory batch  rate    gap in % (s.e.)    excess above full at "
          + " ".join(str(memory) for memory in MEMORIES) + "; VR")  # fmt: skip
    for each in records:
        print(f"{each['task']:7} {each['order']:18} {each['chunk_rows']:5} {each['memory_rows']:6} {each['batch']:5} "
              f"{each['rate']:.0e} {each['gap']:+8.3f} ({each['error']:.3f})   "
              + " ".join(f"{value:+.3f}" for value in each["more"]) + "; "
              + " ".join(f"{value:.2f}" for value in each["vr"]))  # fmt: skip


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("picture", nargs="?", type=Path, help="with --report")
    parser.add_argument("--report", action="store_true", help="train nothing: rank the settings of RESULTS")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--together", type=int, default=256, help="models trained at once")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no further models after this time")
    parser.add_argument("--quick", action="store_true", help="little text and few settings, to see that it runs")
    arguments = parser.parse_args()
    if arguments.report:
        records = json.loads(arguments.results.read_text())
        report(records, MEMORIES)
        if arguments.picture:
            draw(arguments.picture, records, MEMORIES)
        return
    ends = time.perf_counter() + 60 * arguments.minutes
    tasks = {"digits": digits_task(), "text": text_task(quick=arguments.quick)}
    settings = {"digits": list(digits_settings()), "text": list(text_settings())}
    records = []
    for name, task in tasks.items():
        if task is None:
            continue
        print(task.summary)
        chosen = settings[name]
        if arguments.quick:
            chosen = [each for each in chosen if each.rate == chosen[0].rate][:6]
        seeds = arguments.seeds * (4 if name == "digits" else 1)
        records += with_gaps(run(task, chosen, seeds, arguments.together, ends))
        arguments.results.write_text(json.dumps(records))
    show(records)


if __name__ == "__main__":
    main()
