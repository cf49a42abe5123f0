"""What streaming tokens costs a training step: steps of a fixed length, fed by shoal and by a batch that is in memory.

``python bench/tokens.py`` writes 64 MiB of tokens (uint16, rows of 2049) as MDS and as Parquet shards in a temporary
directory, reads them once, and prints: tokens a second when nothing is done with them; and, for steps of 2, 5 and 20 ms
on batches of 32 rows, in which the process sleeps as one does that waits for an accelerator, how long streamed steps
took by those on data in memory, and the part of the time in which the loop waited for a batch. The median of the
rounds. The window is 16 MiB.

``python bench/tokens.py windows`` writes 256 MiB of tokens without a header, as nanoGPT does, and prints windows of
1,025 tokens a second, in shuffled batches of 32: of `shoal.formats.Tokens`; and of a loop over a permutation and a
memory map of the file, which is what can be had if all of it is in memory. ``python bench/tokens.py tokenize`` prints
tokens a second of texts tokenized on the fly: by the tokenizers library alone, in its own threads and in one, and by
shoal from JSON Lines. Both also print the rate for a second of CPU, since rounds take turns on a machine that does
other things as well.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import shoal
import shoal.pack
import shoal.torch
from shoal.errors import ShuffleWarning

LENGTH, ROWS, BATCH, WINDOW = 2049, 16_384, 32, "16MiB"
STEP_SECONDS = (0.002, 0.005, 0.020)


def write_mds(directory: Path) -> None:
    options = {"columns": {"tokens": f"ndarray:uint16:{LENGTH}"}}
    draw = np.random.default_rng(0)
    with shoal.pack.Writer(directory, format="mds", shard_bytes="8MiB", options=options) as writer:
        for _ in range(ROWS):
            writer.write({"tokens": draw.integers(0, 50_257, LENGTH, dtype=np.uint16)})


def write_parquet(directory: Path) -> None:
    directory.mkdir()
    draw = np.random.default_rng(0)
    for shard in range(8):
        tokens = draw.integers(0, 50_257, (ROWS // 8, LENGTH), dtype=np.uint16)
        column = pa.FixedSizeListArray.from_arrays(pa.array(tokens.ravel()), LENGTH)
        pq.write_table(pa.table({"tokens": column}), directory / f"{shard}.parquet", row_group_size=128)


def batches_of(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def steps(batches: Iterator[Any], num_steps: int, step_seconds: float) -> tuple[float, float]:
    """Seconds of some steps, and those spent waiting for batches."""
    waited, began = 0.0, time.perf_counter()
    for _ in range(num_steps):
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        batch["tokens"][:, :-1].long()  # what every step does first
        if step_seconds:
            time.sleep(step_seconds)
    return time.perf_counter() - began, waited


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["steps", "windows", "tokenize"], default="steps")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ShuffleWarning)
    if arguments.what != "steps":
        with tempfile.TemporaryDirectory() as scratch:
            os.environ["SHOAL_CACHE_DIR"] = f"{scratch}/cache"
            make, unit = (windows, "windows") if arguments.what == "windows" else (tokenizing, "tokens")
            compare(make(Path(scratch)), arguments.rounds, unit)
        return
    for name, write in (("mds", write_mds), ("parquet", write_parquet)):
        with tempfile.TemporaryDirectory() as scratch:
            os.environ["SHOAL_CACHE_DIR"] = f"{scratch}/cache"
            data = Path(scratch, "data")
            write(data)
            ds = shoal.open(data).shuffle(seed=0, window=WINDOW).batch(BATCH)
            loader = shoal.torch.DataLoader(ds)
            stream = batches_of(loader)
            first = next(stream)
            rates = [_rate(stream) for _ in range(arguments.rounds)]
            print(f"{name}: {statistics.median(rates):,.0f} tokens/s when nothing is done with them")
            for seconds in STEP_SECONDS:
                rounds = [_round(stream, first, seconds) for _ in range(arguments.rounds)]
                ratio, share = (statistics.median(values) for values in zip(*rounds, strict=True))
                print(f"  steps of {1000 * seconds:2.0f} ms: {ratio:.3f} of the time in memory, {share:.2%} waiting")
            print(f"  state: {len(json.dumps(loader.state_dict()))} bytes")
            stream.close()


def windows(scratch: Path) -> dict[str, Callable[[], int]]:
    """Ways to read windows of tokens; each returns how many it has read."""
    file, length = scratch / "train.bin", LENGTH // 2
    np.random.default_rng(0).integers(0, 50_257, 128 << 20, dtype=np.uint16).tofile(file)

    def mapped() -> int:
        tokens = np.memmap(file, dtype=np.uint16, mode="r")
        starts = length * np.random.default_rng(0).permutation((len(tokens) - 1) // length)
        for at in range(0, len(starts), BATCH):
            np.stack([tokens[start : start + length + 1] for start in starts[at : at + BATCH].tolist()])
        return len(starts)

    def streamed(**window: str) -> int:
        ds = shoal.open(file, format=shoal.formats.Tokens(length)).shuffle(seed=0, **window).batch(BATCH)
        return sum(len(batch["tokens"]) for batch in ds)

    return {
        "memory map": mapped,
        "shoal, window 64 MiB": partial(streamed, window="64MiB"),
        "shoal, window 512 MiB": partial(streamed, window="512MiB"),
    }


def tokenizing(scratch: Path) -> dict[str, Callable[[], int]]:
    """Ways to tokenize texts; each returns the number of tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers  # noqa: PLC0415  # for this alone

    draw = np.random.default_rng(0)
    words = ["".join(map(chr, draw.integers(97, 123, size))) for size in draw.integers(2, 9, 20_000)]
    texts = [" ".join(words[number] for number in draw.zipf(1.3, 300) % 20_000) for _ in range(3_000)]
    (scratch / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=8_000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts[:2_000], trainer)
    tokenizer.save(str(scratch / "tokenizer.json"))

    def alone(parallel: str) -> int:
        os.environ["TOKENIZERS_PARALLELISM"] = parallel
        groups = (texts[at : at + BATCH] for at in range(0, len(texts), BATCH))
        found = sum(len(one.ids) for group in groups for one in tokenizer.encode_batch_fast(group))
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        return found

    def streamed(loader: Callable[[Any], Any]) -> int:
        ds = shoal.open(scratch / "texts.jsonl").shuffle(seed=0).tokenize(scratch / "tokenizer.json").batch(BATCH)
        return sum(len(tokens) for batch in loader(ds) for tokens in batch["tokens"])

    return {
        "tokenizers alone, its threads": partial(alone, "true"),
        "tokenizers alone, one thread": partial(alone, "false"),
        "shoal, the thread that asks": partial(streamed, iter),
        "shoal, threads of the loader": partial(streamed, shoal.torch.DataLoader),
        "shoal, 2 workers (whose CPU is not counted)": partial(
            streamed, partial(shoal.torch.DataLoader, num_workers=2)
        ),
    }


def compare(ways: dict[str, Callable[[], int]], rounds: int, unit: str) -> None:
    """Print what each way reads a second, and a second of CPU of it and its children; the medians of rounds."""
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            began, used = time.perf_counter(), sum(os.times()[:4])
            count = way()
            rates[name].append((count / (time.perf_counter() - began), count / (sum(os.times()[:4]) - used)))
    for name, found in rates.items():
        wall, cpu = (statistics.median(values) for values in zip(*found, strict=True))
        print(f"{name}: {wall:,.0f} {unit}/s, {cpu:,.0f} a second of CPU")


def _rate(stream: Iterator[Any]) -> float:
    seconds, _ = steps(stream, 400, 0.0)
    return 400 * BATCH * (LENGTH - 1) / seconds


def _round(stream: Iterator[Any], first: Any, step_seconds: float) -> tuple[float, float]:
    num_steps = max(50, int(0.5 / step_seconds))
    streamed, waited = steps(stream, num_steps, step_seconds)
    resident, _ = steps(iter([first] * num_steps), num_steps, step_seconds)
    return streamed / resident, waited / streamed


if __name__ == "__main__":
    main()
