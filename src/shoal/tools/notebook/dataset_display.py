"""Datasets and mixtures in notebooks: source, size, order, stages, batches, ranks and position.

A display reads no data, builds no index and packs no documents: it shows what the dataset knows already.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from shoal.errors import ShoalError, UsageError
from shoal.figures import counted, format_bytes
from shoal.index.table import Index
from shoal.pack.inputs.sample_fields import SampleFields
from shoal.pipeline.stages.stage import each_stage
from shoal.reading.checks.record_checksums import RECORD_CRCS
from shoal.reading.mixture.mix_request import FOREVER
from shoal.storage.urls import scheme_of
from shoal.stream.choosing.index_columns import column_names
from shoal.stream.dataset import Dataset
from shoal.stream.dataset_stream import Stream
from shoal.stream.mixing.mixed_dataset import MixedDataset
from shoal.tools.notebook.fragment import bar, chips, facts_list, fragment, heading, named_bars
from shoal.tools.notebook.order_display import order_facts, order_words
from shoal.tools.samples.preview import clipped, printable

_MOST_SOURCES = 12
_MOST_COLUMNS = 12
_STAGE_LETTERS = 60
_PATH_LETTERS = 160


def dataset_html(dataset: Dataset) -> str:
    """Return a dataset as HTML."""
    stream = dataset.stream
    indexes = _indexes(stream)
    facts = {"Source": escape(_place(stream)), **_contents(indexes), **_order(stream, is_indexed=bool(indexes))}
    return fragment(heading("Dataset", _size(stream, indexes)), facts_list({**facts, **_run(stream, indexes)}))


def mixture_html(dataset: MixedDataset) -> str:
    """Return a mixture as HTML: a bar for the share of each source at the position of the dataset."""
    stream = dataset.stream
    indexes = _indexes(stream)
    facts = facts_list({**_order(stream, is_indexed=True), **_run(stream, indexes)})
    beside = f"of {counted(len(dataset.sources), 'source')}, {_size(stream, indexes)}"
    return fragment(heading("Mixture", beside), _shares(dataset), facts)


def live_html(facts: Mapping[str, str | Sequence[str]]) -> str:
    """Return a live dataset as HTML, from the facts that it names; a sequence of texts becomes chips."""
    values = {name: escape(text) if isinstance(text, str) else chips(text) for name, text in facts.items()}
    return fragment(heading("Live dataset", "a stream without an index"), facts_list(values))


def _indexes(stream: Stream) -> list[Index]:
    """Return the indexes of all parts; empty if one is not made yet."""
    indexes = stream.spec.source.indexes.values()
    known = [index for index in indexes if index is not None]
    return known if len(known) == len(indexes) else []


def _size(stream: Stream, indexes: Sequence[Index]) -> str:
    """Return the number of samples, shards and bytes in words."""
    spec = stream.spec
    if not indexes:
        resolved = stream.__dict__.get("resolved")
        return (resolved.words if resolved is not None else "") or spec.source.words(lambda: "some samples")
    num_samples = spec.num_samples
    stored = sum(index.num_samples for index in indexes)
    noun = spec.rows.noun if num_samples != 1 else spec.rows.noun.removesuffix("s")
    samples = f"endless {noun}" if num_samples > FOREVER // 2 else f"{num_samples:,} {noun}"
    of_stored = f" in an epoch, of {stored:,} stored" if num_samples != stored else ""
    formats = " and ".join(dict.fromkeys(index.format for index in indexes))
    shards = counted(sum(index.num_shards for index in indexes), f"{formats} shard")
    return f"{samples}{of_stored}, {shards}, {format_bytes(sum(index.num_bytes for index in indexes))}"


def _place(stream: Stream) -> str:
    """Return where the shards lie: the only shard, or their first directory in common and their names."""
    source: Any = stream.spec.source
    paths = source.paths if hasattr(source, "paths") else source.making.what.source.paths
    shown = [_relative(paths[0]), _relative(paths[-1])] if len(paths) > 1 else [_relative(paths[0])]
    text = " to ".join([shown[0], *(path.rpartition("/")[2] for path in shown[1:])])
    return clipped(printable(text), _PATH_LETTERS)


def _relative(path: str) -> str:
    """Return a path below the working directory relative to it, and any other path or URL as it is."""
    if scheme_of(path):
        return path
    try:
        near = os.path.relpath(path)
    except (OSError, ValueError):  # the working directory was removed
        return path
    return path if near.startswith("..") else near


def _contents(indexes: Sequence[Index]) -> dict[str, str]:
    """Return the fields and the columns of a dataset, as far as its index has them."""
    if len(indexes) != 1:
        return {}
    fields = SampleFields.of_index(indexes[0])
    names = [] if fields is None else [printable(name) for name in fields.counts]
    columns = [printable(name) for name in column_names(indexes[0]) if name != RECORD_CRCS]
    return {
        "Fields": escape(_listed(names)),
        "Columns": escape(_listed(columns)),
    }


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*names[:_MOST_COLUMNS], *(["..."] if len(names) > _MOST_COLUMNS else [])])


def _order(stream: Stream, *, is_indexed: bool) -> dict[str, str]:
    """Return the order with its parameters, its memory, and the choice of samples."""
    spec = stream.spec
    facts = {} if spec.sampling is None else {"Sampled": escape(str(spec.repeats))}
    if not is_indexed and "resolved" not in stream.__dict__:  # resolving would need the index
        words = [] if spec.request is None else spec.request.words(lambda: "some samples")
        return {**facts, "Order": escape(", ".join(words))}
    try:
        resolved = stream.resolved
        parameters = order_facts(resolved)
    except ShoalError as error:  # an impossible order is an error when iterating, not here
        return {**facts, "Order": escape(error.message)}
    memory = {"Memory": escape(parameters.pop("Memory", ""))}
    details = [f"{name.lower()}: {text}" for name, text in parameters.items()]
    return {**facts, "Order": "<br>".join(map(escape, [order_words(resolved), *details])), **memory}


def _run(stream: Stream, indexes: Sequence[Index]) -> dict[str, str]:
    """Return stages, batches, ranks and position."""
    spec = stream.spec
    stages = [clipped(printable(repr(stage)), _STAGE_LETTERS) for stage in each_stage(spec.stages)]
    after = [clipped(printable(repr(stage)), _STAGE_LETTERS) for stage in spec.batch_stages]
    facts = {"Stages": chips(list(dict.fromkeys(stages))), "Rows": escape(", ".join(spec.rows.words))}
    batching = spec.batching
    if batching is not None:
        steps = _num_steps(stream, indexes)
        facts["Batches"] = escape(f"{batching.words}{steps}") + (f" {chips(after)}" if after else "")
    try:
        rank, world_size = spec.ranks.resolve()
    except UsageError as error:
        return {**facts, "Ranks": escape(error.message)}
    facts["Ranks"] = "1" if world_size == 1 else f"rank {rank:,} of {world_size:,}"
    return {**facts, "Position": _position(stream, indexes)}


def _num_steps(stream: Stream, indexes: Sequence[Index]) -> str:
    """Return the number of steps in an epoch, if it is known without reading and without packing."""
    if not indexes or stream.spec.rows.needs_index:
        return ""
    try:
        return f", {counted(stream.length(), 'step')} in an epoch on each rank"
    except (TypeError, ShoalError):
        return ""


def _position(stream: Stream, indexes: Sequence[Index]) -> str:
    epoch, number = stream.next_position
    text = f"epoch {epoch:,}, position {number:,}"
    if not indexes or stream.spec.rows.needs_index or (total := stream.spec.num_samples) > FOREVER // 2:
        return escape(text)
    return escape(f"{text} of {total:,}") + bar({"data": number / max(1, total)})


def _shares(dataset: MixedDataset) -> str:
    """Return the largest sources as bars: share, samples, and visits of each sample in an epoch."""
    request = dataset.resolved.request
    epoch, number = dataset.stream.next_position
    weights = dataset.weights_at(0 if request.varies else request.begin(epoch) + number)
    sizes = {source.name: source.num_samples for source in request.sources}
    length = dataset.stream.spec.num_samples
    rows = []
    for name in sorted(weights, key=lambda name: -weights[name])[:_MOST_SOURCES]:
        visits = weights[name] * length / max(1, sizes[name])
        words = f"{weights[name]:.1%}: {counted(sizes[name], 'sample')}"
        words += "" if length > FOREVER // 2 else f", each {visits:.2g} times an epoch"
        rows.append((printable(name), weights[name], words))
    if len(weights) > _MOST_SOURCES:
        rest = sum(weights.values()) - sum(share for _, share, _ in rows)
        rows.append((f"{len(weights) - _MOST_SOURCES} others", rest, f"{rest:.1%}"))
    return named_bars(rows)
