"""Grain: documents in ArrayRecord files, shuffled, packed and batched; runs in Grain's environment.

python grain_sequences.py DIRECTORY STRATEGY BINS LENGTH BATCH, where DIRECTORY has tokens.bin and lengths.json
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import grain
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from grain.experimental import BestFitPackIterDataset, ConcatThenSplitIterDataset, FirstFitPackIterDataset

PACKERS = {"first_fit": FirstFitPackIterDataset, "best_fit": BestFitPackIterDataset}
SHARDS = 16


def decoded(record: bytes) -> dict[str, Any]:
    """The tokens of a document."""
    return {"tokens": np.frombuffer(record, np.uint16)}


def write(directory: Path) -> None:
    """Write the documents once, without compression."""
    tokens = np.fromfile(directory / "tokens.bin", np.uint16)
    ends = np.cumsum(json.loads((directory / "lengths.json").read_text()))
    (directory / "grain").mkdir()
    for shard, numbers in enumerate(np.array_split(np.arange(len(ends)), SHARDS)):
        writer = ArrayRecordWriter(str(directory / "grain" / f"{shard:05d}.array_record"), "group_size:1,uncompressed")
        for number in numbers.tolist():
            writer.write(tokens[ends[number - 1] if number else 0 : ends[number]].tobytes())
        writer.close()


def packed(directory: Path, strategy: str, bins: int, length: int, batch: int) -> Any:
    """Batches of sequences of one epoch."""
    files = sorted(map(str, (directory / "grain").iterdir()))
    documents = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(files)).shuffle(seed=0).map(decoded)
    stored = documents.to_iter_dataset()
    if strategy == "concat":
        return ConcatThenSplitIterDataset(stored, length_struct={"tokens": length}).batch(batch)
    packer = PACKERS[strategy]
    return packer(stored, length_struct={"tokens": length}, num_packing_bins=bins).batch(batch)


def main() -> None:
    """Print the figures of an epoch, as JSON."""
    directory, strategy, bins, length, batch = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
    if not (directory / "grain").exists():
        write(directory)
    iterator = iter(packed(directory, strategy, bins, length, batch))
    filled = places = state = 0
    began, worked = time.perf_counter(), time.process_time()
    first = 0.0
    for step, found in enumerate(iterator, 1):
        first = first or time.perf_counter() - began
        filled += int(np.count_nonzero(found["tokens_segment_ids"]))
        places += found["tokens"].size
        state = max(state, len(json.dumps(iterator.get_state()))) if step % 50 == 0 else state
    seconds, cpu = time.perf_counter() - began, time.process_time() - worked
    print(
        json.dumps({"tokens": filled, "places": places, "seconds": seconds, "cpu": cpu, "first": first, "state": state})
    )


if __name__ == "__main__":
    main()
