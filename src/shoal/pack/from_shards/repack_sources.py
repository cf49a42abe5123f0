"""Sources of a repacking: shards by their path, or a dataset with its selected samples and its stages."""

from __future__ import annotations

import inspect
import logging
import os
import pickle
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from shoal.errors import UsageError
from shoal.formats.shard_format import Format
from shoal.indexing.open_source import open_source
from shoal.indexing.opened_dataset import Opened
from shoal.order.arrays.index_ranges import Runs
from shoal.pack.output.output_names import check_apart
from shoal.pipeline.stages.stage import Stage
from shoal.storage.sources.source import SourceLike
from shoal.storage.store_of_url import options_of_sides
from shoal.stream.dataset import Dataset
from shoal.stream.dataset_spec import DatasetSpec

_log = logging.getLogger("shoal")


@dataclass(frozen=True, slots=True)
class RepackSource:
    """Shards, storage options of the destination, selected samples (None for all), and the stages of each sample."""

    opened: Opened
    output_options: Mapping[str, Any] | None
    selected: Runs | None = None
    stages: tuple[Stage, ...] = ()


def repack_source(
    source: SourceLike | Dataset,
    url: str | os.PathLike[str],
    *,
    split: Any,
    index: str | os.PathLike[str] | None,
    source_format: str | Format | None,
    storage_options: Mapping[str, Any] | None,
) -> RepackSource:
    """Open the source of a repacking into ``url``; `UsageError` if ``url`` lies in it or the source is unfit."""
    if not isinstance(source, Dataset):
        check_apart(source, url)
        source_options, output_options = options_of_sides(source, os.fspath(url), storage_options)
        opened = open_source(source, split=split, index=index, format=source_format, storage_options=source_options)
        return RepackSource(opened, output_options)
    for name, value in {"split": split, "index": index, "source_format": source_format}.items():
        if value is not None:
            msg = f"{name}= chooses shards of a path, but the source is an open dataset"
            raise UsageError(msg, hint=f"shoal.open(..., {name.removeprefix('source_')}=...)")
    spec = source.stream.spec
    opened = spec.opened.one("repack()")
    refuse_to_repack(spec)
    check_apart(list(opened.paths), url)
    return RepackSource(replace(opened, stored=None), storage_options, spec.stored, spec.seeded_stages)


def keeps_stored_order(dataset: Dataset) -> bool:
    """Return True if a dataset can be repacked shard by shard: one source, in stored order, without batches."""
    spec = dataset.stream.spec
    try:
        spec.opened.one("repack()")
        refuse_to_repack(spec)
    except UsageError:
        return False
    return True


def refuse_to_repack(spec: DatasetSpec) -> None:
    """Raise `UsageError` if a dataset has an order, batches, repeats or a filter: new shards count stored samples."""
    reasons = {
        "shuffle()": (spec.request is not None, "repack(mix=True) mixes the samples"),
        "batch()": (spec.batching is not None, "leave batch() out: shards hold samples"),
        "pack_sequences()": (bool(spec.rows.verb), "leave it out: sequences are packed when they are read"),
        "flat_map()": (bool(spec.rows.divider), "pack() of a function that yields the parts"),
        "sample()": (spec.sampling is not None, "repack(oversample=) or repack(balance=) repeats samples"),
        "without()": (bool(spec.gaps), "select() chooses samples"),
        "filter()": (
            spec.has_filters,
            "select() by columns of the index, or pack() of the samples that the filter keeps",
        ),
    }
    for verb, (is_used, hint) in reasons.items():
        if is_used:
            msg = f"repack() takes samples in stored order, one by one, but this dataset has a {verb}"
            raise UsageError(msg, hint=hint)


def descriptions_of(stages: tuple[Stage, ...]) -> list[str]:
    """Return a text for each stage, with the source of its function, to detect changes."""
    texts = []
    for stage in stages:
        code = ""
        with suppress(TypeError, OSError):  # builtins and functions made at a prompt have no source
            code = inspect.getsource(getattr(stage, "function", None))  # type: ignore[arg-type]
        texts.append(f"{stage.identity} {code}".strip())
    return texts


def can_be_imported(stages: tuple[Stage, ...]) -> bool:
    """Return True if another interpreter can load the stages; otherwise, log the reason."""
    try:
        if b"__main__" not in pickle.dumps(stages):
            return True
        reason = "a function is defined in the script itself; from a module of its own, several processes can import it"
    except Exception as error:  # noqa: BLE001  # objects of users may raise anything
        reason = f"a function cannot be sent to another process ({error})"
    _log.warning("shards are made in one process: %s", reason)
    return False


def with_ids_from(stages: tuple[Stage, ...], first_id: int) -> tuple[Stage, ...]:
    """Return the stages for a part of a source from sample ``first_id`` on; samples keep their ids in the source."""
    return tuple(stage.moved(-first_id) for stage in stages)
