"""TRL: documents packed by ``pack_dataset``; runs in TRL's environment.

python trl_sequences.py SIZES.json LENGTH STRATEGY BATCH_SIZE, with 0 for all documents at once; prints JSON
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import datasets
import numpy as np
from trl import pack_dataset

sizes = json.loads(Path(sys.argv[1]).read_text())
length, strategy, batch_size = int(sys.argv[2]), sys.argv[3], int(sys.argv[4]) or None
datasets.disable_progress_bars()
tokens = np.split(np.arange(sum(sizes)) % 50_000, np.cumsum(sizes)[:-1])
data = datasets.Dataset.from_dict({"input_ids": tokens})
began = time.process_time()
packed = pack_dataset(data, length, strategy, map_kwargs={"batch_size": batch_size})
cpu = time.process_time() - began
num_tokens = sum(map(len, packed["input_ids"]))
print(json.dumps({"sequences": len(packed), "tokens": num_tokens, "cpu": cpu}))
