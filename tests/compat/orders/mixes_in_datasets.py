"""Runs in the environment of Hugging Face datasets: the ids of each mixture that is asked for, and of its sources.

``python mixes_in_datasets.py MIXTURES.json FOUND.json``
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
from datasets.distributed import split_dataset_by_node

FEATURES = datasets.Features({"id": datasets.Value("int64")})


def samples(shards: list[tuple[int, int]]) -> Iterator[dict[str, int]]:
    for start, stop in shards:
        for number in range(start, stop):
            yield {"id": number}


def source(wanted: dict[str, Any], first: int) -> Any:
    """One source, of which ids count from ``first``; the shards of one that is streamed have the given sizes."""
    shards = []
    for size in wanted["shards"]:
        shards.append((first, first + size))
        first += size
    if wanted["mapped"]:
        ids = [number for start, stop in shards for number in range(start, stop)]
        made = datasets.Dataset.from_dict({"id": ids}, features=FEATURES)
        return made if wanted["shuffled"] is None else made.shuffle(seed=wanted["shuffled"])
    if wanted["tables"]:  # in shards of equal length
        ids = list(range(shards[0][0], first))
        made = datasets.Dataset.from_dict({"id": ids}, features=FEATURES).to_iterable_dataset(len(shards))
        return made if wanted["shuffled"] is None else made.shuffle(seed=wanted["shuffled"], buffer_size=7)
    made = datasets.IterableDataset.from_generator(samples, features=FEATURES, gen_kwargs={"shards": shards})
    return made if wanted["shuffled"] is None else made.shuffle(seed=wanted["shuffled"], buffer_size=7)


def ids(made: Any, epoch: int) -> list[int]:
    if isinstance(made, datasets.Dataset):
        return list(made["id"])
    made.set_epoch(epoch)
    return [sample["id"] for sample in made]


def mixed(wanted: dict[str, Any]) -> dict[str, Any]:
    sources, first = [], 0
    for each in wanted["sources"]:
        sources.append(source(each, first))
        first += sum(each["shards"])
    if wanted["choice"] == "concatenate":
        mixture = datasets.concatenate_datasets(sources)
    else:
        more = {"probabilities": wanted["probabilities"], "seed": wanted["seed"]}
        mixture = datasets.interleave_datasets(sources, **more, stopping_strategy=wanted["stopping"])
    found: dict[str, Any] = {"mixture": ids(mixture, wanted["epoch"])}
    ranks = wanted["ranks"]
    if ranks > 1:
        found["ranks"] = [ids(split_dataset_by_node(mixture, rank, ranks), wanted["epoch"]) for rank in range(ranks)]
    return found | {"sources": [ids(each, wanted["source_epoch"]) for each in sources]}


if __name__ == "__main__":
    datasets.disable_progress_bars()
    asked = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps([mixed(each) for each in asked]))
