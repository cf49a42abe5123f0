"""Runs in axolotl's environment: ``in_axolotl.py ASKED ANSWERED`` gives the samples in each bin of its sampler."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from axolotl.utils.samplers.multipack import MultipackBatchSampler
from torch.utils.data import SequentialSampler


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Bins of samples, and how full the sampler says that they are."""
    sampler = MultipackBatchSampler(
        SequentialSampler(range(len(asked["sizes"]))),
        batch_size=1,
        batch_max_len=asked["length"],
        lengths=np.array(asked["sizes"]),
        drop_last=False,
        num_count_samples=1,
        **asked["arguments"],
    )
    bins = [bins[0] for bins in sampler.generate_batches(set_stats=True)]
    return {"bins": [[int(sample) for sample in each] for each in bins], "fill": sampler.efficiency()}


asked = json.loads(Path(sys.argv[1]).read_text())
Path(sys.argv[2]).write_text(json.dumps([answer(each) for each in asked]))
