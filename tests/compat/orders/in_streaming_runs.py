"""Runs in Streaming's environment: real runs of a dataset and its loader, and checkpoints in the middle of an epoch."""

import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from streaming import StreamingDataLoader, StreamingDataset

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)


def ids_of(asked: dict[str, Any]) -> Any:
    names = ("shuffle_algo", "shuffle_seed", "shuffle_block_size", "num_canonical_nodes", "batch_size")
    own = {name: asked[name] for name in names}
    dataset = StreamingDataset(local=asked["directory"], shuffle=True, **own)
    loader = StreamingDataLoader(dataset, batch_size=asked["batch_size"], num_workers=asked["workers"])
    for _ in range(asked["epoch"]):
        for _ in loader:
            pass
    batches, state = [], None
    for batch in loader:
        batches.append(batch["id"].tolist())
        if len(batches) == asked["seen"]:
            state = loader.state_dict()
    return {"checkpoint": {"state": state, "before": batches[: asked["seen"]]}, "rest": batches[asked["seen"] :]}


os.chdir(Path(__file__).parents[3])
asked = json.loads(Path(sys.argv[1]).read_text())
Path(sys.argv[2]).write_text(json.dumps([ids_of(each) for each in asked]))
