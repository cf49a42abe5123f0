"""axolotl: documents packed by its sampler; runs in axolotl's environment.

python axolotl_sequences.py SIZES.json LENGTH '{"sequential": true}'; prints JSON
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from axolotl.utils.samplers.multipack import MultipackBatchSampler
from torch.utils.data import SequentialSampler

sizes = np.array(json.loads(Path(sys.argv[1]).read_text()))


def bins(chosen: np.ndarray) -> list[list[int]]:
    """Samples of each sequence, with axolotl's defaults of a configuration."""
    sampler = MultipackBatchSampler(
        SequentialSampler(range(len(chosen))),
        batch_size=1,
        batch_max_len=int(sys.argv[2]),
        lengths=chosen,
        bin_size=200,
        drop_last=False,
        num_count_samples=1,
        **json.loads(sys.argv[3]),
    )
    return [each[0] for each in sampler.generate_batches()]


bins(sizes[:100])  # compiles
began = time.process_time()
packed = bins(sizes)
cpu = time.process_time() - began
print(json.dumps({"sequences": len(packed), "tokens": int(sum(sizes[each].sum() for each in packed)), "cpu": cpu}))
