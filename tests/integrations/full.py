"""A loop whose batches have no room in /dev/shm: full.py DATA INDEX."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.integrations.stages import large

import shoal
import shoal.torch

if __name__ == "__main__":
    data, index = sys.argv[1:]
    loader = shoal.torch.DataLoader(shoal.open(data, index=index).map(large).batch(4), num_workers=2)
    numbers = [int(row[0]) for batch in loader for row in batch["x"]]
    assert numbers == list(range(30)), numbers
    assert loader.stats()["num_unshared_batches"] == 0
    assert list(Path("/dev/shm").iterdir()) == []
