"""How full are packed sequences, and how fast are they packed? ``python bench/sequence_strategies.py``.

Log-normal lengths, mean 665 tokens, packed by each strategy in blocks of some sizes; one thread, from lengths alone.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from shoal.order.sequences.groupings import STRATEGIES, Packing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--documents", type=int, default=1 << 20)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    lengths = np.random.default_rng(0).lognormal(6, 1, arguments.documents).astype(np.int64) + 1
    print(
        f"{arguments.documents:,} documents, {lengths.mean():.0f} tokens on average, in sequences of {arguments.length}"
    )
    print(f"{'':10} {'block':>8} {'filled':>8} {'million documents a CPU second':>32}")
    for strategy in STRATEGIES:
        for block in (1 << 10, 1 << 12, 1 << 16):
            packing = Packing(arguments.length, strategy, block)
            seconds, fills = [], []
            for _ in range(arguments.rounds):
                began = time.process_time()
                packed = [packing.packed(lengths[start : start + block]) for start in range(0, len(lengths), block)]
                seconds.append(time.process_time() - began)
                tokens = sum(each.num_tokens for each in packed)
                fills.append(tokens / (arguments.length * sum(each.num_sequences for each in packed)))
            rates = sorted(arguments.documents / each / 1e6 for each in seconds)
            spread = f"{rates[len(rates) // 2]:.2f} ({rates[0]:.2f} to {rates[-1]:.2f})"
            print(f"{strategy:10} {block:8,} {fills[0]:8.4f} {spread:>32}", flush=True)


if __name__ == "__main__":
    main()
