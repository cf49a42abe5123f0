"""What certificates cost: the hash of a sample, and the share of the time of a stream that does nothing else.

python bench/certificate.py
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import numpy as np

import shoal
from shoal.index.table import Index
from shoal.order.partition import Share
from shoal.reading.checks.record_checksums import RECORD_CRCS
from shoal.stream.iterating import batch_maker
from shoal.stream.states.delivery_sums import NOTHING, DeliverySums, Proof, RecordHashes

NUM_DOCS = 200_000
ROUNDS = 5


class NoLedger(DeliverySums):
    """A ledger that notes nothing."""

    def note(self, share: Share, steps: range) -> None:
        """Nothing."""

    def up_to(self, step: int) -> Proof:  # noqa: ARG002
        """Nothing."""
        return NOTHING


def hash_seconds(index: Index, count: int = 1 << 20) -> float:
    """Seconds to hash one sample, the best of some rounds."""
    hashes = RecordHashes(index)
    positions = np.arange(count)
    ids = np.random.default_rng(0).integers(0, index.num_samples, count)
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for start in range(0, count, 1 << 15):
            hashes.of(0, positions[start : start + (1 << 15)], ids[start : start + (1 << 15)])
        rounds.append(time.perf_counter() - began)
    return min(rounds) / count


def epoch_seconds(ds: shoal.Dataset) -> float:
    """Seconds of processor time for one epoch."""
    began = time.process_time()
    for _ in ds:
        pass
    return time.process_time() - began


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "docs.jsonl")
        path.write_text("".join(json.dumps({"id": i, "text": "word " * 12}) + "\n" for i in range(NUM_DOCS)))
        ds = shoal.open(path).shuffle(seed=0).batch(256)
        index = ds.resolved.index
        print(f"hash, no checksums: {hash_seconds(index) * 1e9:.1f} ns a sample")
        sums = np.arange(index.num_extents, dtype=np.uint32)
        object.__setattr__(index, "extent_checksum", sums)
        print(f"hash, checksums of {index.num_extents} extents: {hash_seconds(index) * 1e9:.1f} ns a sample")
        object.__setattr__(index, "extent_checksum", None)
        object.__setattr__(index, "columns", {RECORD_CRCS: np.zeros(index.num_samples, dtype=np.uint32)})
        print(f"hash, checksums of records: {hash_seconds(index) * 1e9:.1f} ns a sample")
        times: dict[type, list[float]] = {DeliverySums: [], NoLedger: []}
        for _ in range(ROUNDS):
            for kind, found in times.items():
                batch_maker.DeliverySums = kind  # type: ignore[misc]
                ds = shoal.open(path).shuffle(seed=0).batch(256)
                found.append(epoch_seconds(ds))
        with_it, without = min(times[DeliverySums]), min(times[NoLedger])
        each = (with_it - without) / NUM_DOCS * 1e9
        print(f"epoch of {NUM_DOCS} lines, CPU: {with_it:.3f} s with, {without:.3f} s without ({each:.0f} ns a sample)")


if __name__ == "__main__":
    main()
