"""A trainer that is killed in the middle: orphaned.py DATA INDEX URL CACHE METHOD.

The worker of one loader is in a function that does not end, that of the other waits for a server.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from typing import Any

import shoal
import shoal.torch
from shoal.errors import ShuffleWarning


def endless(sample: dict[str, Any]) -> dict[str, Any]:
    if int(sample["cls"]) >= 20:
        os.write(1, b"in the function\n")
        while True:
            pass
    return sample


def main() -> None:
    data, index, url, cache, method = sys.argv[1:]
    warnings.simplefilter("ignore", ShuffleWarning)
    kept = {"directory": cache, "keep": False, "budget": "64MiB"}
    remote = shoal.open(url, index=index, cache=kept).shuffle(seed=1, chunk="6KB").batch(5)
    local = shoal.open(data, index=index).map(endless).batch(5)
    loaders = [
        shoal.torch.DataLoader(ds, num_workers=1, multiprocessing_context=method, prefetch_factor=8)
        for ds in (local, remote)
    ]
    iterators = [iter(loader) for loader in loaders]
    next(iterators[0])
    os.write(1, b"both go\n")
    time.sleep(600)


if __name__ == "__main__":
    main()
