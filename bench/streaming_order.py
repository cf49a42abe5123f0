"""The orders of MosaicML Streaming: CPU time and peak memory of all ids of an epoch, here and in the package.

``python bench/streaming_order.py [--samples N ...] [--rounds 3]`` measures each in a process of its own, in turn. There
it is `generate_work` without the copy in shared memory; here it is binding the order and asking for all positions, in
spans of 2^17, as reading does. The package comes from the environment of `make compat`; without it, only shoal is
measured.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.compat.peers.environments import python_of  # noqa: E402  # after the path to it
from tests.environments import CannotHaveError  # noqa: E402

OURS = """
import resource, sys, time
import numpy as np
from shoal.orders import Streaming
algorithm, num_samples, nodes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
shards = np.full(num_samples // 1000, 1000)
def epoch(shards, seed):
    bound = Streaming(algorithm, num_canonical_nodes=nodes).bind(shards, seed=seed, epoch=1)
    total = 0
    for start in range(0, bound.num_samples, 1 << 17):
        total += int(bound.ids(start, min(bound.num_samples, start + (1 << 17)))[0])
    return total
"""
THEIRS = """
import resource, sys, time, warnings, logging
import numpy as np
from types import SimpleNamespace
from streaming import StreamingDataset
from streaming.base.batching.random import generate_work_random_batching
from streaming.base.world import World
warnings.simplefilter("ignore"); logging.disable(logging.WARNING)
algorithm, num_samples, nodes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
shards = np.full(num_samples // 1000, 1000)
def epoch(shards, seed):
    total = int(shards.sum())
    dataset = SimpleNamespace(
        num_canonical_nodes=nodes, shuffle=True, shuffle_algo=algorithm, shuffle_seed=seed, batch_size=8,
        shuffle_block_size=max(4_000_000 // nodes, 1 << 18), partition_algo="relaxed", initial_physical_nodes=None,
        sampling_method="balanced", sampling_granularity=1, epoch_seed_change=True, epoch_size=total, num_streams=1,
        shard_offset_per_stream=np.array([0]), shards_per_stream=np.array([len(shards)]), samples_per_shard=shards,
        sample_offset_per_shard=np.cumsum(shards) - shards, streams=[SimpleNamespace(choose=total, proportion=1.0)],
    )
    dataset.resample_streams = lambda *given: StreamingDataset.resample_streams(dataset, *given)
    return generate_work_random_batching(dataset, World(1, 8, 8, 0), 1, 0).shape
"""
MEASURED = """
epoch(shards[:100], 1)
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
with open("/proc/self/clear_refs", "w") as refs:
    refs.write("5")
before, begin = peak(), time.process_time()
epoch(shards, 9176)
print(time.process_time() - begin, peak() - before)
"""


def measured(python: Path | str, code: str, *arguments: object) -> tuple[float, float]:
    """CPU seconds and peak bytes of an epoch, in a process of its own."""
    command = [str(python), "-c", code + MEASURED, *map(str, arguments)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(said[-2]), float(said[-1])


def main() -> None:
    """Print a line for each algorithm, size and number of canonical nodes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--algorithms", nargs="+", default=["naive", "py1br", "py1e", "py1s", "py2s"])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 8])
    asked = parser.parse_args()
    them: dict[str, tuple[Path | str, str]] = {"shoal": (sys.executable, OURS)}
    try:
        them["package"] = (python_of("streaming"), THEIRS)
    except CannotHaveError as error:
        print(f"the package is not at hand: {error}")
    for num_samples in asked.samples:
        for algorithm in asked.algorithms:
            for nodes in asked.nodes:
                found: dict[str, list[tuple[float, float]]] = {name: [] for name in them}
                for _ in range(asked.rounds):
                    for name, (python, code) in them.items():
                        found[name].append(measured(python, code, algorithm, num_samples, nodes))
                line = f"{algorithm:<6} {num_samples:>11,} samples, {nodes:>2} canonical nodes "
                for name, figures in found.items():
                    seconds = statistics.median(each[0] for each in figures) / num_samples * 1e9
                    line += f"  {name} {seconds:6.1f} ns {max(each[1] for each in figures) / num_samples:5.1f} bytes"
                print(line, flush=True)


if __name__ == "__main__":
    main()
