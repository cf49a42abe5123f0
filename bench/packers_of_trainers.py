"""How full the sequences of TRL, axolotl and shoal are, for the same documents, and the CPU time of packing.

python bench/packers_of_trainers.py [--documents 20000] [--rounds 3]

Documents of log-normal lengths (mean 665, at most 4,096) in sequences of 4,096 tokens, in the order of the documents.
TRL packs tokens into new tokens, once; axolotl and shoal pack lengths, in every epoch. shoal without lengths reads the
documents, so its time is that of a whole epoch.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.compat.peers.environments import python_of, title_of  # noqa: E402  # after the path to it

import shoal  # noqa: E402

THEIRS = Path(__file__).parent / "sequence_peers"
LENGTH = 4_096

Packer = Callable[[Path], dict[str, Any]]


def write(directory: Path, count: int) -> int:
    """Write the documents as MDS, and their lengths; return the number of tokens."""
    sizes = np.random.default_rng(0).lognormal(6, 1, count).astype(np.int64).clip(1, LENGTH).tolist()
    (directory / "sizes.json").write_text(json.dumps(sizes))
    documents = ({"tokens": np.arange(size, dtype=np.uint16), "num_tokens": size} for size in sizes)
    shoal.pack.pack(documents, directory / "mds", format="mds", shard_bytes="8MiB", columns=["num_tokens"])
    return sum(sizes)


def ours(directory: Path, strategy: str, **how: Any) -> dict[str, Any]:
    """Sequences of shoal: from the lengths in the index, or from documents as they are read."""
    warnings.simplefilter("ignore")
    dataset = shoal.open(directory / "mds")
    began = time.process_time()
    packed = dataset.pack_sequences(LENGTH, strategy=strategy, **how)
    if how:
        filled = [np.count_nonzero(segments) for batch in packed.batch(8) for segments in batch["segment_ids"]]
        return {"sequences": len(filled), "tokens": int(sum(filled)), "cpu": time.process_time() - began}
    found = {"sequences": packed.num_samples, "cpu": time.process_time() - began}
    return found | {"tokens": int(sum(json.loads((directory / "sizes.json").read_text())))}


def theirs(directory: Path, peer: str, *arguments: str) -> dict[str, Any]:
    """Sequences of a peer, in its environment."""
    command = [python_of(peer), THEIRS / f"{peer}_sequences.py", directory / "sizes.json", str(LENGTH), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


PACKERS: dict[str, Packer] = {
    "shoal best_fit": partial(ours, strategy="best_fit"),
    "shoal first_fit": partial(ours, strategy="first_fit"),
    "shoal concat": partial(ours, strategy="concat"),
    "shoal best_fit, lengths=None": partial(ours, strategy="best_fit", lengths=None),
    f"{title_of('trl')} bfd": lambda home: theirs(home, "trl", "bfd", "1000"),
    f"{title_of('trl')} bfd, all at once": lambda home: theirs(home, "trl", "bfd", "0"),
    f"{title_of('trl')} wrapped": lambda home: theirs(home, "trl", "wrapped", "1000"),
    f"{title_of('axolotl')} multipack": lambda home: theirs(home, "axolotl", "{}"),
    f"{title_of('axolotl')} sequential": lambda home: theirs(home, "axolotl", '{"sequential": true}'),
}


def main() -> None:
    """Print a line for each packer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        directory = Path(home)
        total = write(directory, arguments.documents)
        rounds = [{name: packer(directory) for name, packer in PACKERS.items()} for _ in range(arguments.rounds)]
    print(f"{'':<34} {'sequences':>9} {'filled':>7} {'CPU us a document':>18}")
    for name in PACKERS:
        result = rounds[0][name]
        assert result["tokens"] == total, name
        micros = median(each[name]["cpu"] for each in rounds) / arguments.documents * 1e6
        filled = total / result["sequences"] / LENGTH
        print(f"{name:<34} {result['sequences']:>9,} {filled:>7.4f} {micros:>18.2f}")


if __name__ == "__main__":
    main()
