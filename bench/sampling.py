"""Time and memory of samplings: the rule, the draws of an epoch, and ids of a window over them, beside one without.

``python bench/sampling.py --samples 1e8`` runs each setting in a process of its own, so that its peak is its own.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from shoal.order.sampling.copies import Copies, OverCopies, Turns
from shoal.order.sampling.weights_and_classes import ByClass, ByWeight, Sampling, integer_weights
from shoal.orders import BoundOrder, Window

SETTINGS = (
    "none",
    "weights",
    "weights without repeats",
    "1,000 classes",
    "100,000 classes",
    "classes, limited",
    "short",
)
CHUNK, WINDOW, SPAN, NUM_SPANS = 250, 512, 1 << 17, 16


def timed(what: str, function: Callable[[], Any]) -> Any:
    """Call, and print CPU seconds and the peak of memory so far."""
    begin = time.process_time()
    found = function()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"    {what:<24}{time.process_time() - begin:8.2f} CPU s   peak {peak:8,.0f} MiB", flush=True)
    return found


def rule_of(setting: str, num_samples: int) -> Sampling:
    """The rule of a setting; classes of a long tail, in runs as when stored sorted, and weights in no order."""
    numbers = np.arange(num_samples, dtype=np.uint32)
    if setting.startswith("weights"):
        weights = numbers % 1009
        weights += 1
        del numbers
        values = 1.0 / weights.astype(np.float32)
        del weights
        rule = ByWeight(integer_weights(values), num_samples // (4 if "without" in setting else 1))
        return rule.without_repeats() if "without" in setting else rule
    if setting == "short":
        return ByClass(np.zeros(num_samples, dtype=np.uint8), np.array([num_samples]), num_samples // 10)
    num_classes = 100_000 if setting.startswith("100,000") else 1000
    classes = (numbers % 50 * (numbers // 50) % num_classes).astype(np.uint32 if num_classes > 65_536 else np.uint16)
    sizes = np.bincount(classes, minlength=num_classes)
    present = np.flatnonzero(sizes)
    table = np.zeros(num_classes, dtype=classes.dtype)
    table[present] = np.arange(len(present))
    if setting.endswith("limited"):
        return ByClass.limited(table[classes], sizes[present], num_samples // num_classes // 2)
    return ByClass(table[classes], sizes[present], num_samples)


def run(setting: str, num_samples: int) -> None:
    """Print the figures of a setting."""
    chunks = np.full(num_samples // CHUNK, CHUNK)
    order, bound = Window(chunks=WINDOW), None
    if setting == "none":
        bound = timed("bind", lambda: order.bind(chunks, seed=1))
    else:
        rule = timed("arrays and rule", lambda: rule_of(setting, num_samples))
        timed("digest", rule.digest)
        timed("repeats", lambda: rule.repeats)
        print(f"    {rule.repeats}")
        copies = timed("draws of an epoch", lambda: Copies(rule.counts(seed=1, epoch=1)))
        print(f"    kept for the epoch      {copies.num_bytes / num_samples:8.2f} bytes a stored sample")
        turns = timed("turns", lambda: Turns.of(copies, chunks))
        print(f"    {len(turns.stride):,} turns of {len(chunks):,} chunks")
        numbered = timed("bind", lambda: order.bind(np.diff(turns.starts), seed=1, epoch=1))
        bound = OverCopies(numbered, turns)
    read(bound)


def read(bound: BoundOrder) -> None:
    """Print the time of ids from a third of the epoch on."""
    start = bound.num_samples // 3 // SPAN * SPAN
    timed("seek", lambda: bound.ids(start, start + 1))
    begin = time.process_time()
    stop = min(start + NUM_SPANS * SPAN, bound.num_samples)
    for first in range(start, stop, SPAN):
        bound.locate(first, min(first + SPAN, stop))
    print(f"    ids                     {(time.process_time() - begin) / (stop - start) * 1e9:8.0f} ns each")


def main() -> None:
    """Run each setting in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=float, default=1e7)
    parser.add_argument("--setting", choices=SETTINGS)
    arguments = parser.parse_args()
    if arguments.setting:
        run(arguments.setting, int(arguments.samples))
        return
    for setting in SETTINGS:
        print(setting, flush=True)
        command = [sys.executable, __file__, "--samples", str(arguments.samples), "--setting", setting]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
