"""How fast the sources of positions are found in mixtures as other libraries make them.

``python bench/peer_mixtures.py [--samples 100000000]`` prints for each choice, over sources of equal length: processor
time for each position of a whole epoch, for a first look at a position a third inside, and for a second one before it;
and what is kept for that. No data is read.
"""

from __future__ import annotations

import argparse
import pickle
import time
from collections.abc import Callable
from typing import Any

from shoal.mixing import Concatenate, Interleave, RandomMix, RoundRobin

_LOOK = 4096


def seconds(call: Callable[[], Any]) -> float:
    """Processor time of a call."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def choices(num_sources: int) -> list[Any]:
    """Choices that find their end by draws, and others."""
    shares = [(1 + source % 3) / sum(1 + each % 3 for each in range(num_sources)) for source in range(num_sources)]
    return [
        Interleave(shares),
        Interleave(shares, stopping="all_exhausted"),
        Interleave(shares, stopping="all_exhausted_without_replacement"),
        RandomMix(shares),
        RandomMix(shares, longest=True),
        Interleave(stopping="all_exhausted_without_replacement"),
        RoundRobin(longest=True),
        Concatenate(),
    ]


def told(choice: Any, lengths: list[int]) -> str:
    """A line on one choice."""
    epoch = choice.of_epoch(lengths, 0, 0)
    first = seconds(lambda: epoch.counts(sum(lengths) // 3))
    again = seconds(lambda: epoch.sources(sum(lengths) // 7, sum(lengths) // 7 + _LOOK))
    num_samples = epoch.num_samples
    epoch = choice.of_epoch(lengths, 0, 0)
    whole = seconds(lambda: epoch.counts(num_samples))
    step = 1 << 22
    read = seconds(lambda: [epoch.sources(at, min(at + step, num_samples)) for at in range(0, num_samples, step)])
    kept = len(pickle.dumps(epoch))
    about = ", ".join(f"{name}={value}" for name, value in choice.parameters.items() if name in ("stopping", "longest"))
    each, each_read = whole / num_samples * 1e9, read / num_samples * 1e9
    return (
        f"{choice.name:<12} {about:<46} {num_samples / 1e6:8.1f} M positions; counts {each:5.1f} ns, "
        f"sources {each_read:5.1f} ns; first look {first * 1e3:7.1f} ms, second {again * 1e3:5.1f} ms; "
        f"{kept / 1e3:,.0f} KB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=100_000_000)
    arguments = parser.parse_args()
    for num_sources in (4, 64):
        print(f"{num_sources} sources of {arguments.samples // num_sources:,} samples")
        for choice in choices(num_sources):
            print("  " + told(choice, [arguments.samples // num_sources] * num_sources))


if __name__ == "__main__":
    main()
