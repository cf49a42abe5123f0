"""The kinds of streams that one table of laws is about: how each is made, and what an epoch of it holds."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tests.stream.made import check_batch, check_sample, open_finely, text, write_tars

import shoal
from shoal.indexing.generations.subset_of_shards import with_shards
from shoal.mixing import PerBatch, PerRank
from shoal.orders import Block, Buffer, Full, Order, Sequential, Window
from shoal.stream.dataset import Dataset
from shoal.stream.dataset_spec import DatasetSpec

SHARDS = [30, 1, 0, 47, 9]
NUM_SAMPLES = sum(SHARDS)
LENGTH, GROUP = 48, 8
"""Tokens of a sequence, and documents that a rank packs together as they come."""

ORDERS: dict[str, Order] = {
    "sequential": Sequential(),
    "full": Full(),
    "window": Window(chunks=4, num_canonical_nodes=1),
    "nodes": Window(chunks=12, num_canonical_nodes=3),
    "block": Block(chunks=3),
    "buffer": Buffer(samples=20),
}
WITH_LENGTHS = ("jsonl", "mds", "parquet")
FORMATS = ("tar", *WITH_LENGTHS)


def tokens_of(number: int) -> list[int]:
    """Tokens that say their document and their place in it; some documents have none."""
    return [number * 100 + place for place in range(number * 37 % 71)]


def open_sources(home: Path) -> dict[str, Dataset]:
    """Write the same samples in each format, and open them with small extents."""
    sources = {"tar": open_finely(write_tars(home / "tar" / "data", SHARDS))}
    for name in WITH_LENGTHS:
        numbers = range(NUM_SAMPLES)
        samples = ({"id": n, "text": text(n), "num_tokens": len(tokens_of(n))} for n in numbers)
        sizes: Any = {"shard_bytes": "16KiB", "extent_bytes": 3000}
        shoal.pack.pack(samples, home / name, format=name, columns=["num_tokens"], **sizes)
        sources[name] = shoal.open(home / name)
    return sources


def with_tokens(sample: dict[str, Any]) -> dict[str, Any]:
    """The tokens of a document, whose own contents are checked here."""
    return {"tokens": np.array(tokens_of(check_sample(sample)), dtype=np.int32)}


def with_labels(sample: dict[str, Any]) -> dict[str, Any]:
    """The tokens of a document, with labels and a mask that follow from them."""
    tokens = with_tokens(sample)["tokens"]
    return {"tokens": tokens, "labels": tokens + 1, "loss_mask": tokens % 3 > 0}


def keeps(number: int) -> bool:
    """Whether the filters of this table keep a sample."""
    return number % 5 not in (1, 3)


def keeps_sample(sample: dict[str, Any]) -> bool:
    return keeps(int(sample["cls"] if "cls" in sample else sample["id"]))


def ids_in(batch: dict[str, Any]) -> list[int]:
    """The ids in a batch, or of a single sample, without repeats; the bytes of all samples are checked.

    Ids of a mixture count the samples of one source, and then those of the other.
    """
    contents = {name: values for name, values in batch.items() if name not in ("__id__", "__source__", "__pad__")}
    if np.ndim(batch["__id__"]) == 0:
        assert check_sample(contents) == batch["__id__"] % NUM_SAMPLES
        return [int(batch["__id__"])]
    assert check_batch(contents) == (batch["__id__"] % NUM_SAMPLES).tolist()
    ids: list[int] = batch["__id__"][~repeats_in(batch)].tolist()
    return ids


MOST_PARTS = 3


def divides(sample: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts of a sample; some samples have none."""
    number = int(sample["cls"] if "cls" in sample else sample["id"])
    return [{**sample, "part": part} for part in range(num_parts(number))]


def num_parts(number: int) -> int:
    """The number of parts of a sample; of every fifth sample, too, some have parts: a rank may get these alone."""
    return (number * 7 + number // 5) % (MOST_PARTS + 1)


def parts_of(number: int) -> list[int]:
    """The parts of a sample, numbered over all samples."""
    return [number * MOST_PARTS + part for part in range(num_parts(number))]


def parts_in(batch: dict[str, Any]) -> list[int]:
    """The parts in a batch, without repeats; the bytes of all samples are checked."""
    contents = {name: values for name, values in batch.items() if name not in ("__part__", "part")}
    ids_in(contents)
    assert np.array_equal(batch["__part__"], batch["part"])
    kept: list[int] = (batch["__id__"] * MOST_PARTS + batch["part"])[~repeats_in(batch)].tolist()
    return kept


def numbers_in(batch: dict[str, Any]) -> list[int]:
    """The numbers in a batch, or of a single sample, without repeats: the ids of a growing order are others."""
    if not isinstance(batch["__key__"], list):
        return [check_sample(batch)]
    contents = {name: values for name, values in batch.items() if name != "__pad__"}
    return [number for number, again in zip(check_batch(contents), repeats_in(batch), strict=True) if not again]


def repeats_in(batch: dict[str, Any]) -> Any:
    """Which samples or sequences of a batch are marked as repeats."""
    return batch.get("__pad__", np.zeros(len(next(iter(batch.values()))), dtype=bool))


def windows_in(batch: dict[str, Any]) -> list[int]:
    """The ids of the windows in a batch, or of a single one, without repeats; the bytes of all rows are checked."""
    is_single = np.ndim(batch["__id__"]) == 0
    windows = {name: [values] if is_single else values for name, values in batch.items()}
    for number, mask in enumerate(windows["is_pad"]):
        rows: dict[str, Any] = {name: windows[name][number] for name in ("id", "text", "bin", "cls") if name in windows}
        if "bin" in rows:
            rows["__key__"] = [f"{int(row):05d}" for row in rows["cls"]]
            assert rows["__key__"][0] == windows["__key__"][number]
        numbers = [check_sample({name: values[place] for name, values in rows.items()}) for place in range(len(mask))]
        assert np.array_equal(numbers, np.minimum(numbers[0] + np.arange(len(mask)), max(np.array(numbers)[~mask])))
    if is_single:
        return [int(batch["__id__"])]
    ids: list[int] = batch["__id__"][~repeats_in(batch)].tolist()
    return ids


def tokens_in(batch: dict[str, Any]) -> list[int]:
    """The tokens in a batch, or of a single sequence, that are no padding and in no repeat."""
    tokens, mask = batch["tokens"], batch["segment_ids" if "segment_ids" in batch else "attention_mask"] > 0
    if "labels" in batch:
        assert np.array_equal(batch["labels"], np.where(mask, tokens + 1, -100))
        assert np.array_equal(batch["loss_mask"], mask & (tokens % 3 > 0))
    if tokens.ndim == 2:
        mask = mask & ~repeats_in(batch)[:, None]
    kept: list[int] = tokens[mask].tolist()
    return kept


def _all(_: Dataset, __: int) -> Iterable[int]:
    return range(NUM_SAMPLES)


def _kept(_: Dataset, __: int) -> Iterable[int]:
    return filter(keeps, range(NUM_SAMPLES))


def _by_order(stream: Dataset, epoch: int) -> Iterable[int]:
    ids: list[int] = stream.ids(epoch).tolist()
    return ids


@dataclass(frozen=True)
class Kind:
    """A kind of streams.

    Attributes
    ----------
    make
        The stream of a source in an order, without batches.
    ids
        The samples that an epoch of a stream holds.
    items
        What a batch, or what comes without `batch`, delivers: ids, or tokens.
    gaps
        Positions of an epoch that are left out.
    fills
        Whether ranks fill their batches, and so have a state each.
    comes_again
        Samples that each rank may repeat behind a stop, at another world size or batch size.
    batching
        Further arguments of `batch`; None for a stream that makes its batches itself.
    """

    make: Callable[[Dataset, Order], Dataset]
    ids: Callable[[Dataset, int], Iterable[int]] = _all
    items: Callable[[dict[str, Any]], list[int]] = ids_in
    is_filtered: bool = False
    gaps: Mapping[int, range] = field(default_factory=dict)
    fills: bool = False
    comes_again: int = 0
    batching: Mapping[str, Any] | None = field(default_factory=dict)
    formats: Sequence[str] = FORMATS
    orders: Sequence[str] = tuple(ORDERS)

    def items_of_epoch(self, stream: Dataset, epoch: int) -> Counter[int]:
        """What an epoch holds, whoever reads it."""
        ids = self.ids(stream, epoch)
        return Counter(itertools.chain.from_iterable(map(tokens_of, ids)) if self.items is tokens_in else ids)

    def items_by_position(self, stream: Dataset, epoch: int) -> dict[int, list[int]]:
        """The items at each position: the ids of the order, or what a scan says where positions have others."""
        if self.items is not ids_in:
            stream.set_epoch(epoch)
            return {position: self.items(group) for position, group in enumerate(stream)}
        gap = self.gaps.get(epoch, range(0))
        ids = enumerate(stream.ids(epoch).tolist())
        return {at: [i] if keeps(i) or not self.is_filtered else [] for at, i in ids if at not in gap}


def shuffled(source: Dataset, order: Order) -> Dataset:
    return source.shuffle(order, seed=3)


def _plain(source: Dataset, order: Order) -> Dataset:
    return (source if isinstance(order, Sequential) else shuffled(source, order)).with_ids()


def _chosen(source: Dataset, order: Order) -> Dataset:
    return shuffled(source.select(np.arange(0, NUM_SAMPLES, 2)).skip(3), order).take(31).with_ids()


def _split(source: Dataset, order: Order) -> Dataset:
    parts = source.split({"a": 0.7, "b": 0.2}, by=np.arange(NUM_SAMPLES) // 2, seed=1)
    return shuffled(parts["a"], order).with_ids()


def _sampled(source: Dataset, order: Order) -> Dataset:
    chosen = source.select(np.arange(NUM_SAMPLES) % 3 != 1)
    copies = chosen.sample(1.0 / (1 + np.arange(NUM_SAMPLES)), num_samples=110)
    return shuffled(copies, order).skip(20).with_ids()


def _balanced(source: Dataset, order: Order) -> Dataset:
    return shuffled(source.sample(by=np.arange(NUM_SAMPLES) < 3, balanced=True), order).with_ids()


_GAPS = {0: range(20, 33), 1: range(50, 71)}


def _left_out(source: Dataset, order: Order) -> Dataset:
    stream = shuffled(source, order)
    for epoch, gap in _GAPS.items():
        stream = stream.without(positions=[(gap.start, gap.stop)], epoch=epoch)
    return stream.with_ids()


def _outside_of_gaps(stream: Dataset, epoch: int) -> Iterable[int]:
    return np.delete(stream.ids(epoch), _GAPS.get(epoch, range(0))).tolist()


def _filtered(source: Dataset, order: Order, *, refill: bool = False) -> Dataset:
    return shuffled(source, order).filter(keeps_sample, refill=refill).with_ids()


def _divided(source: Dataset, order: Order) -> Dataset:
    return shuffled(source, order).flat_map(divides, most=MOST_PARTS).with_ids()


def _divided_and_filtered(source: Dataset, order: Order) -> Dataset:
    stream = shuffled(source, order).without(positions=[(20, 33)]).without(positions=[(50, 71)], epoch=1)
    return stream.filter(_is_no_ninth).flat_map(divides, most=MOST_PARTS).filter(_is_no_second).with_ids()


def _is_no_ninth(sample: dict[str, Any]) -> bool:
    # Scattered samples: a rank must keep some of the few samples that it may get.
    return int(sample["cls"] if "cls" in sample else sample["id"]) % 9 != 4


def _is_no_second(part: dict[str, Any]) -> bool:
    return bool(part["part"] != 1)


def _all_parts(_: Dataset, __: int) -> Iterable[int]:
    return itertools.chain.from_iterable(map(parts_of, range(NUM_SAMPLES)))


def _some_parts(stream: Dataset, epoch: int) -> Iterable[int]:
    kept = (number for number in _outside_of_gaps(stream, epoch) if number % 9 != 4)
    return (part for number in kept for part in parts_of(number) if part % MOST_PARTS != 1)


def _parts_by_order(stream: Dataset, epoch: int) -> Iterable[int]:
    return (
        (i * MOST_PARTS + part) for i in stream.ids(epoch).tolist() for part in range(len(parts_of(i % NUM_SAMPLES)))
    )


def _mixed(source: Dataset, order: Order) -> Dataset:
    sources = {"low": source.take(50), "high": source.skip(50)}
    choice: Any = "random" if order == ORDERS["full"] else PerRank(samples=4) if order == ORDERS["window"] else "even"
    choice = PerBatch(samples=12) if order == ORDERS["nodes"] else choice
    mixture = shoal.mix(sources, weights={"low": 2, "high": 1}, epoch_size=100, choice=choice)
    return mixture.shuffle(order, seed=3).reweight(at=40, weights={"low": 1, "high": 1}, ramp=20).with_ids()


def _growing(source: Dataset, _: Order) -> Dataset:
    directory = Path(source.stream.opened.paths[0]).parent
    return shoal.open(directory, index="grow").shuffle(seed=3, window="16KiB")


_FEW = 3
"""Shards of the first epoch of a dataset that is extended."""


def _extended(source: Dataset, order: Order) -> Dataset:
    opened = source.stream.opened
    few = shuffled(Dataset(DatasetSpec.of(with_shards(opened, range(_FEW)))), order)
    few.load_state_dict(few.state_at(1))
    return few.extended(source).with_ids()


def _grown(stream: Dataset, epoch: int) -> Iterable[int]:
    opened = stream.stream.spec.in_epoch(epoch).opened.one("this law")
    assert (opened.index.num_shards == _FEW) == (epoch == 0)
    return range(opened.index.num_samples)


def _packed(source: Dataset, order: Order, strategy: str = "best_fit", **how: Any) -> Dataset:
    documents = shuffled(source, order).map(with_labels if "fields" in how else with_tokens)
    return documents.pack_sequences(LENGTH, strategy=strategy, **{"block": 32, **how})


def _labelled(source: Dataset, order: Order, **how: Any) -> Dataset:
    return _packed(source, order, fields=["labels", "loss_mask"], **how)


def _by_length(source: Dataset, order: Order) -> Dataset:
    return shuffled(source, order).map(with_tokens).batch_by_length(5, max_tokens=160, block=32)


_TOKENS: dict[str, Any] = {"items": tokens_in, "formats": WITH_LENGTHS}
_AS_THEY_COME: dict[str, Any] = {"items": tokens_in, "fills": True, "comes_again": GROUP}

_DIVIDED: dict[str, Any] = {"items": parts_in, "fills": True}


def _by_shard(source: Dataset, order: Order, size: Any = 5, **how: Any) -> Dataset:
    return _plain(source, order).batch(size, by="shard", **how)


def _shards_and_samples(source: Dataset, order: Order) -> Dataset:
    return _plain(source.skip(1), order).batch(2, 3, by="shard", too_small="drop", look_ahead=40)


def _of_sampled(source: Dataset, order: Order) -> Dataset:
    copies = source.select(np.arange(NUM_SAMPLES) % 3 != 1).sample(num_samples=110)
    return shuffled(copies, order).with_ids().batch(4, by="shard", alike=2)


def _within_limits(source: Dataset, order: Order) -> Dataset:
    return _plain(source, order).batch(6, limits={"num_tokens": 150.5}, block=32)


def _mixture_by_shard(source: Dataset, order: Order) -> Dataset:
    return _mixed(source, order).batch(4, by="shard", alike=3)


def _ids_of_group(batch: dict[str, Any]) -> list[int]:
    """The ids in a batch that the index determines: a position of its order has several."""
    return ids_in(batch)


def _windows(source: Dataset, order: Order) -> Dataset:
    return _plain(source.windows(3, stride=2, by="shard", pad="edge"), order)


def _windows_that_grow(source: Dataset, order: Order) -> Dataset:
    few = Dataset(DatasetSpec.of(with_shards(source.stream.opened, range(_FEW))))
    begun = shuffled(few.windows(3, stride=2, by="shard", pad="edge"), order)
    begun.load_state_dict(begun.state_at(1))
    return begun.extended(source.windows(3, stride=2, by="shard", pad="edge")).with_ids()


_BY_COLUMN: dict[str, Any] = {"ids": _by_order, "items": _ids_of_group, "batching": None}

KINDS: dict[str, Kind] = {
    "plain": Kind(_plain),
    "chosen": Kind(_chosen, _by_order),
    "split": Kind(_split, _by_order),
    "one": Kind(lambda source, order: shuffled(source.select([17]), order).with_ids(), _by_order),
    "sampled": Kind(_sampled, _by_order),
    "balanced": Kind(_balanced, _by_order),
    "limited": Kind(lambda source, order: shuffled(source.sample(by="shard", limit=3), order).with_ids(), _by_order),
    "left out": Kind(_left_out, _outside_of_gaps, gaps=_GAPS),
    "filtered": Kind(_filtered, _kept, is_filtered=True),
    "refilled": Kind(lambda source, order: _filtered(source, order, refill=True), _kept, fills=True),
    "divided": Kind(_divided, _all_parts, **_DIVIDED),
    "divided and filtered": Kind(_divided_and_filtered, _some_parts, gaps=_GAPS, is_filtered=True, **_DIVIDED),
    "divided and sampled": Kind(
        lambda source, order: _sampled(source, order).flat_map(divides, most=MOST_PARTS).with_ids(),
        _parts_by_order,
        **_DIVIDED,
    ),
    "divided mixture": Kind(
        lambda source, order: _mixed(source, order).flat_map(divides, most=MOST_PARTS).with_ids(),
        _parts_by_order,
        orders=("full", "window", "nodes", "block"),
        **_DIVIDED,
    ),
    "windows of rows": Kind(_windows, _by_order, windows_in),
    "windows that grow": Kind(_windows_that_grow, _grown, windows_in),
    "mixture": Kind(_mixed, _by_order, orders=("full", "window", "nodes", "block")),
    "growing": Kind(_growing, items=numbers_in, formats=("tar",), orders=("window",)),
    "extended": Kind(_extended, _grown),
    "packed": Kind(_packed, **_TOKENS),
    "laid end to end": Kind(lambda source, order: _packed(source, order, "concat"), **_TOKENS),
    "packed and balanced": Kind(_packed, batching={"balance": "attention", "neighbours": 3}, **_TOKENS),
    "packed with labels": Kind(_labelled, **_TOKENS),
    "by length": Kind(_by_length, batching=None, **_TOKENS),
    "by column": Kind(_by_shard, **_BY_COLUMN),
    "by column, alike": Kind(lambda s, o: _by_shard(s, o, alike=4), **_BY_COLUMN),
    "by column, of copies": Kind(_of_sampled, **_BY_COLUMN),
    "by column, mixed": Kind(_mixture_by_shard, orders=("full", "window", "nodes", "block"), **_BY_COLUMN),
    "classes and samples": Kind(_shards_and_samples, **_BY_COLUMN),
    "within limits": Kind(_within_limits, **_BY_COLUMN, formats=WITH_LENGTHS),
    "balanced by column": Kind(_plain, batching={"balance": "num_tokens", "neighbours": 3}, formats=WITH_LENGTHS),
    "packed as they come": Kind(lambda s, o: _packed(s, o, lengths=None, block=GROUP), **_AS_THEY_COME),
    "labels as they come": Kind(lambda s, o: _labelled(s, o, lengths=None, block=GROUP), **_AS_THEY_COME),
    "laid as they come": Kind(lambda s, o: _packed(s, o, "concat", lengths=None, block=GROUP), **_AS_THEY_COME),
}
