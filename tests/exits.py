"""A script in the manner of the README, everything at the top of the module: exits.py DATA URL SCRATCH FRAMEWORK END.

What it leaves open is still open when Python ends.
"""

import atexit
import gc
import os
import sys
import warnings
from typing import Any

import shoal
from shoal.errors import ShuffleWarning

data, url, scratch, framework, end = sys.argv[1:]
warnings.simplefilter("ignore", ShuffleWarning)


def same(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def begun(iterable: Any) -> Any:
    """An iterator that has given something, and has more."""
    iterator = iter(iterable)
    next(iterator)
    return iterator


if framework == "none":
    plain = shoal.open(data).shuffle(seed=1).batch(3)
    views = shoal.open(data).reading(copy=False, memory_limit="1MiB")
    rows = shoal.open(data).as_map()
    remote = shoal.open(url).shuffle(seed=1).with_ids().batch(3)
    cached = shoal.open(url, cache={"directory": scratch, "budget": "64MiB", "keep": False}).batch(3)
    kept = [begun(ds) for ds in (plain, views, remote, cached)]
    held = next(kept[1])  # views of bytes
    first = rows[0], plain[1]
    begun(plain), begun(remote)  # let go of
    for _ in plain:
        break
    with shoal.pack.Writer(f"{scratch}/packed", format="jsonl") as writer:
        for number in range(9):
            writer.write({"id": number})
elif __name__ == "__main__":
    import torch.utils.data

    import shoal.torch

    ds = shoal.open(data).map(same).shuffle(seed=1).with_ids().batch(3)
    remote = shoal.open(url).shuffle(seed=1).with_ids().batch(3)
    loaders = [
        shoal.torch.DataLoader(ds, num_threads=2),
        shoal.torch.DataLoader(remote),
        shoal.torch.DataLoader(remote, prefetch_factor=0),
        shoal.torch.DataLoader(ds, num_workers=2, persistent_workers=True),
        shoal.torch.DataLoader(remote, num_workers=2),
        torch.utils.data.DataLoader(shoal.torch.IterableDataset(ds), batch_size=None),
    ]
    kept = [begun(loader) for loader in loaders]
    begun(loaders[0]), begun(loaders[1])  # let go of

if __name__ == "__main__":  # and not where a worker imports this
    print("ends", flush=True)
    if end == "exit":
        sys.exit(3)
    if end == "error":
        sys.excepthook = lambda *_: None  # the traceback of this one would be due
        raise ValueError
    if end == "modules first":  # Python clears modules that outlive others in an order of its own, as with torch
        atexit._run_exitfuncs()
        for name in [name for name in sys.modules if name.partition(".")[0] == "shoal"]:
            known = vars(sys.modules[name])
            known.update(dict.fromkeys([key for key in known if not key.startswith("__")]))
        kept.clear()
        for name in [name for name in globals() if name not in {"gc", "os"} and not name.startswith("__")]:
            del globals()[name]
        gc.collect()
        os._exit(0)
