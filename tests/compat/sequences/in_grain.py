"""Runs in Grain's environment: the sequences that its packers make of documents of given lengths."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import grain
import numpy as np
from grain.experimental import BestFitPackIterDataset, ConcatThenSplitIterDataset, FirstFitPackIterDataset

PACKERS = {"first_fit": FirstFitPackIterDataset, "best_fit": BestFitPackIterDataset}


def sequences_of(asked: dict[str, Any]) -> list[dict[str, list[int]]]:
    """Tokens, segments and positions of each sequence of an epoch; tokens are numbered through all documents."""
    ends = np.cumsum(asked["lengths"])
    documents = [
        {"tokens": np.arange(end - size, end)} for size, end in zip(asked["lengths"], ends.tolist(), strict=True)
    ]
    stored = grain.MapDataset.source(documents).to_iter_dataset(grain.ReadOptions(num_threads=0))
    length = {"tokens": asked["length"]}
    if asked["strategy"] == "concat":
        packed: Any = ConcatThenSplitIterDataset(stored, length_struct=length)
    else:
        packer = PACKERS[asked["strategy"]]
        packed = packer(stored, length_struct=length, num_packing_bins=asked["bins"], shuffle_bins=False)
    names = {"tokens": "tokens", "segment_ids": "tokens_segment_ids", "position_ids": "tokens_positions"}
    return [{ours: sequence[theirs].tolist() for ours, theirs in names.items()} for sequence in packed]


asked = json.loads(Path(sys.argv[1]).read_text())
Path(sys.argv[2]).write_text(json.dumps([sequences_of(each) for each in asked]))
