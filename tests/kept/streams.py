"""The calls of a user for each kind of state, over the datasets of `datasets`.

A function that a released set names keeps its calls for ever: it is the code of a user of that release.
"""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.kept.datasets import FORMATS

import shoal
from shoal import mixing, orders
from shoal.errors import ShuffleWarning

SIZE = 4
NUM_BATCHES_BEFORE = 3
NUM_BATCHES_AFTER = 6
MIXTURES = {
    "blend.yaml": """\
sources:
  web: {path: jsonl, weight: 0.7}
  other: {path: other, weight: 0.3, max_repeats: 4}
seed: 1
ends: all
shuffle: {window: 2KiB, seed: 1}
changes:
  - {at: 20, ramp: 10, weights: {web: 0.2, other: 0.8}}
""",
    "streams.yaml": """\
streams:
  first: {local: jsonl, proportion: 2}
  second: {local: other, proportion: 1}
epoch_size: 60
shuffle: true
shuffle_seed: 7
""",
}


def numbered(sample: Any) -> dict[str, int]:
    """The number of a sample in a field of its own, whatever the format."""
    fields = json.loads(sample["json"]) if "json" in sample else sample
    return {"n": int(np.ravel(fields["n"])[0])}


def document(sample: Any) -> dict[str, Any]:
    """A document whose tokens are its number, as often as its length."""
    return {"tokens": np.full(sample["length"], sample["n"])}


def lines(directory: Path, name: str = "jsonl") -> Any:
    """A dataset of lines, with the index of the set."""
    return shoal.open(directory / name)


def shuffled(directory: Path, order: Any = "window", **terms: Any) -> Any:
    """The lines, shuffled."""
    terms = {"window": "2KiB", **terms} if order == "window" else terms
    return lines(directory).shuffle(order, seed=3, **terms)


def mixed(directory: Path, **terms: Any) -> Any:
    """Two datasets of lines in a mixture."""
    terms = terms or {"weights": {"web": 0.7, "other": 0.3}}
    sources = {"web": lines(directory), "other": lines(directory, "other")}
    return shoal.mix(sources, seed=5, **terms).shuffle(seed=3, window="4KiB")


def nested(directory: Path) -> Any:
    """A mixture inside of a mixture."""
    parts = {name: lines(directory, name).map(numbered) for name in ("jsonl", "other", "tar")}
    inner = shoal.mix({"a": parts["jsonl"], "b": parts["other"]}, weights={"a": 1, "b": 3})
    whole = shoal.mix({"inner": inner, "tar": parts["tar"]}, weights={"inner": 2, "tar": 1})
    return whole.shuffle(seed=3, window="4KiB")


def refilled(directory: Path, rank: int = 0, world_size: int = 1) -> Any:
    """Batches that stay full behind a filter."""
    ds = shuffled(directory).filter(lambda sample: sample["n"] % 3 > 0, refill=True)
    return ds.batch(2, steps="apart").partition(rank=rank, world_size=world_size)


def packed_as_they_come(directory: Path, rank: int = 0, world_size: int = 1) -> Any:
    """Sequences of documents without known lengths."""
    ds = shuffled(directory).map(document).pack_sequences(8, lengths=None, block=4)
    return ds.batch(2, steps="apart").partition(rank=rank, world_size=world_size)


def weighted_sequences(directory: Path) -> Any:
    """Packed sequences of a mixture whose weights change at a sequence."""
    ds = mixed(directory).map(document).pack_sequences(8, lengths="length", block=8)
    return ds.reweight(at=8, weights={"web": 0.5, "other": 0.5}).batch(SIZE)


def followed(directory: Path) -> Any:
    """The lines as files that appear during a run."""
    pattern = f"{directory.as_posix()}/grown/*.jsonl"
    return shoal.follow(pattern, idle_seconds=0.0, poll_seconds=0.0).shuffle(seed=3, buffer=7).batch(SIZE)


def torch_part(directory: Path) -> Any:
    """The part of one worker of torch's own loader."""
    from shoal.torch import IterableDataset

    return IterableDataset(shuffled(directory).batch(SIZE))


def torch_loader(directory: Path) -> Any:
    """A loader with worker processes."""
    from shoal.torch import DataLoader

    return DataLoader(shuffled(directory).map(numbered).batch(SIZE), num_workers=2)


PEERS: dict[str, Any] = {
    "grain": orders.GrainShuffle(world_size=2),
    "grain-window": orders.GrainWindowShuffle(window_size=10, dataset="iter"),
    "huggingface-reservoir": "hf-reservoir",
    "huggingface-block": "hf-block",
    "litdata": orders.LitData(world_size=2, num_workers=2, batch_size=2),
    "streaming-py1e": "py1e",
    "streaming-py1s": "py1s",
    "torch-random": orders.TorchRandom(),
    "torch-distributed": orders.TorchDistributed(num_replicas=3),
    "webdataset-shuffle": orders.WebDatasetShuffle(bufsize=10, initial=3),
    "webdataset-detshuffle": orders.WebDatasetDetshuffle(bufsize=10, initial=3),
    "webdataset-resampled": orders.WebDatasetResampled(bufsize=10, initial=3),
}
CHOICES = {
    "random": mixing.Random(),
    "per-batch": mixing.PerBatch(8),
    "per-rank": mixing.PerRank(4),
    "hf-interleave": mixing.Interleave([0.6, 0.4]),
    "grain-concatenate": mixing.Concatenate(),
    "wds-random-mix": mixing.RandomMix([0.6, 0.4]),
    "wds-round-robin": mixing.RoundRobin(),
}

Maker = Callable[[Path], Any]


def _of_peer(order: Any) -> Maker:
    return lambda directory: shuffled(directory, order).batch(SIZE)


def _of_choice(choice: Any) -> Maker:
    peers = (mixing.Interleave, mixing.Concatenate, mixing.RandomMix, mixing.RoundRobin)
    weights = {} if isinstance(choice, peers) else {"weights": {"web": 0.7, "other": 0.3}}
    return lambda directory: mixed(directory, choice=choice, **weights).batch(SIZE)


def _of_format(name: str) -> Maker:
    return lambda directory: lines(directory, name).shuffle(seed=3, window="8KiB").map(numbered).batch(SIZE)


def _of_file(name: str) -> Maker:
    return lambda directory: shoal.open(directory / name).batch(SIZE)


MAKERS: dict[str, Maker] = {
    **{f"format-{name}": _of_format(name) for name in FORMATS},
    **{f"order-{name}": _of_peer(name) for name in ("window", "full", "none", "block", "buffer")},
    **{f"peer-{name}": _of_peer(order) for name, order in PEERS.items()},
    **{f"mixture-{name}": _of_choice(choice) for name, choice in CHOICES.items()},
    "canonical-nodes": lambda at: shuffled(at, num_canonical_nodes=2).batch(SIZE),
    "selected": lambda at: lines(at).select(np.arange(1, 40, 2)).shuffle(seed=3, window="2KiB").batch(SIZE),
    "taken": lambda at: shuffled(at).skip(3).take(30).batch(SIZE),
    "split": lambda at: (
        lines(at).split({"train": 0.7, "test": 0.3}, seed=2)["train"].shuffle(seed=3, window="2KiB").batch(SIZE)
    ),
    "split-by-column": lambda at: (
        lines(at).split({"train": 0.7, "test": 0.3}, by="length")["train"].shuffle(seed=3, window="2KiB").batch(SIZE)
    ),
    "sampled": lambda at: lines(at).sample("length", num_samples=90).shuffle(seed=3, window="2KiB").batch(SIZE),
    "balanced": lambda at: lines(at).sample(by="class", balanced=True).shuffle(seed=3, window="2KiB").batch(SIZE),
    "limited": lambda at: lines(at).sample(by="class", limit=5).shuffle(seed=3, window="2KiB").batch(SIZE),
    "without": lambda at: shuffled(at).without(positions=[(14, 22)]).batch(SIZE),
    "growing": lambda at: shoal.open(at / "grown", index="grow").shuffle(seed=3, window="2KiB").batch(SIZE),
    "refilled": refilled,
    "packed": lambda at: shuffled(at).map(document).pack_sequences(8, lengths="length").batch(SIZE),
    "packed-best-fit": lambda at: (
        shuffled(at).map(document).pack_sequences(12, strategy="best_fit", lengths="length", block=16).batch(SIZE)
    ),
    "packed-as-they-come": packed_as_they_come,
    "by-length": lambda at: shuffled(at).map(document).batch_by_length(4, lengths="length"),
    "mixture": lambda at: mixed(at).batch(SIZE),
    "mixture-repeats": lambda at: mixed(at, repeat={"web": 1, "other": 0.5}).batch(SIZE),
    "mixture-reweighted": lambda at: mixed(at).reweight(at=8, weights={"web": 0.5, "other": 0.5}, ramp=12).batch(SIZE),
    "mixture-of-tokens": lambda at: mixed(at, weights={"web": 0.7, "other": 0.3}, unit="tokens", length="length").batch(
        SIZE
    ),
    "mixture-nested": lambda at: nested(at).batch(SIZE),
    "mixture-of-sequences": weighted_sequences,
    **{f"mixture-file-{name.removesuffix('.yaml')}": _of_file(name) for name in MIXTURES},
    "live-iterable": lambda _: shoal.from_iterable(range(90)).shuffle(seed=3, buffer=7).batch(SIZE),
    "live-replayed": lambda _: (
        shoal.from_iterable(lambda: range(90), replay=True).shuffle(seed=3, buffer=7).batch(SIZE)
    ),
    "live-followed": followed,
    "live-with-contents": followed,
    "torch-part": torch_part,
    "torch-loader": torch_loader,
}
"""The stream of each kind."""

MERGED: dict[str, Callable[[Path, int, int], Any]] = {
    "refilled": refilled,
    "packed-as-they-come": packed_as_they_come,
}
"""Streams whose ranks each have a state, by rank and number of ranks."""


def numbers_of(batch: Any) -> Any:
    """The numbers of a batch's samples; the tokens of a batch of sequences or documents."""
    if isinstance(batch, dict):
        batch = batch["tokens"] if "tokens" in batch else batch["n"]
    return [np.asarray(row).tolist() for row in batch]


def state_of(kind: str, iterator: Any, stream: Any) -> dict[str, Any]:
    """The state of a stream under way."""
    if kind == "torch-part":
        return dict(iterator.state_dict())
    if kind == "live-with-contents":
        return dict(stream.state_dict(contents=True))
    return dict(stream.state_dict())


def after(stream: Any, num_batches: int = NUM_BATCHES_AFTER) -> list[Any]:
    """The next batches; fewer at the end of an epoch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShuffleWarning)
        return [numbers_of(batch) for batch in itertools.islice(stream, num_batches)]
