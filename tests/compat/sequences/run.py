"""Compares sequences of shoal with those of Grain's packers, for the same documents.

``python tests/compat/sequences/run.py`` packs random documents in Grain's own environment and here. Concatenated
sequences must be equal, token for token, with their segments and positions; first fit and best fit must never need more
sequences than Grain does, whatever its number of bins. Exit code 1 if anything differs; skipped where Grain cannot be
had.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.compat.peers.environments import python_of, run_in, title_of
from tests.environments import CannotHaveError

from shoal.order.sequences.groupings import STRATEGIES
from shoal.pipeline.sequence_arrays import SequenceFields

BINS = (1, 4, 16, 64, 256)
_MOST_SHOWN = 3


def configurations() -> list[dict[str, Any]]:
    """Documents of random lengths, shorter than a sequence: Grain gives others out before those that wait."""
    rng = np.random.default_rng(0)
    found = []
    for number in range(24):
        length = int(rng.integers(4, 300))
        count = int(rng.integers(1, 1_500))
        drawn = rng.lognormal(rng.uniform(0, np.log(length)), rng.uniform(0.1, 1.5), count).astype(np.int64)
        if number % 3 == 0:
            drawn = rng.integers(1, length, count)
        lengths = drawn.clip(1, length - 1).tolist()
        found.append({"strategy": "concat", "length": length, "bins": 0, "lengths": lengths})
        found += [
            {"strategy": strategy, "length": length, "bins": bins, "lengths": lengths}
            for strategy in ("first_fit", "best_fit")
            for bins in BINS
        ]
    return found


def concatenated(asked: dict[str, Any]) -> list[dict[str, list[int]]]:
    """The sequences of shoal, by their fields."""
    lengths = np.array(asked["lengths"])
    block = STRATEGIES["concat"](lengths, asked["length"])
    ends = np.cumsum(lengths)
    fields, documents = SequenceFields(asked["length"]), block.document
    tokens = [np.arange(ends[number] - lengths[number], ends[number]) for number in documents.tolist()]
    packed = [fields.columns_of({"tokens": each}, None, 0) for each in tokens]
    made, _ = fields.arrays(packed, block.first_piece, block.start, block.stop, documents)
    return [{name: made[name][row].tolist() for name in made} for row in range(block.num_sequences)]


def difference(asked: dict[str, Any], theirs: list[dict[str, list[int]]]) -> str:
    """What is wrong; empty if nothing is."""
    told = {name: value for name, value in asked.items() if name != "lengths"} | {"documents": len(asked["lengths"])}
    if asked["strategy"] == "concat":
        return "" if concatenated(asked) == theirs else f"{told}: other sequences"
    ours = STRATEGIES[asked["strategy"]](np.array(asked["lengths"]), asked["length"]).num_sequences
    return "" if ours <= len(theirs) else f"{told}: {ours} sequences, and Grain needs {len(theirs)}"


def main() -> int:
    """Compare, and return the exit code."""
    asked = configurations()
    try:
        python = python_of("grain")
    except CannotHaveError as error:
        print(f"grain: skipped: {error}")
        return 0
    with tempfile.TemporaryDirectory() as directory:
        given, answered = Path(directory, "asked.json"), Path(directory, "answered.json")
        given.write_text(json.dumps(asked))
        run_in(python, Path(__file__).parent / "in_grain.py", given, answered)
        answers = json.loads(answered.read_text())
    found = [text for each, theirs in zip(asked, answers, strict=True) if (text := difference(each, theirs))]
    print(f"{title_of('grain')}: {len(asked):,} packings, {len(found):,} differ or need more sequences")
    for text in found[:_MOST_SHOWN]:
        print(f"    {text}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
