"""Runs in the environment of WebDataset: the ids of each mixture that is asked for.

``python mixes_in_webdataset.py MIXTURES.json FOUND.json``
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

from webdataset.mix import RandomMix, RoundRobin


def mixed(wanted: dict[str, Any]) -> list[int]:
    sources, first = [], 0
    for size in wanted["lengths"]:
        sources.append(range(first, first + size))
        first += size
    if wanted["choice"] == "round_robin":
        return list(RoundRobin(sources, longest=wanted["longest"]))
    random.seed(wanted["random_seed"])
    return list(RandomMix(sources, probs=wanted["probs"], longest=wanted["longest"]))


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps([mixed(each) for each in asked]))
