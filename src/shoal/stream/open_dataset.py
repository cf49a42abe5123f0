"""`shoal.open`: from what a user names to a dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shoal.errors import UsageError
from shoal.figures import counted
from shoal.formats.shard_format import Format
from shoal.indexing.open_source import open_source
from shoal.reading.cached_ranges import chunk_cache_of
from shoal.storage.sources.source import SourceLike, printed
from shoal.stream.dataset import Dataset
from shoal.stream.spec import DatasetSpec

__all__ = ["Dataset", "open_dataset"]


def open_dataset(
    source: SourceLike,
    *,
    split: str | Sequence[str] | None = None,
    index: str | os.PathLike[str] | None = None,
    format: str | Format | None = None,  # noqa: A002  # the word of the public interface
    storage_options: Mapping[str, Any] | None = None,
    publish_index: bool = False,
    cache: str | os.PathLike[str] | Mapping[str, Any] | bool | None = None,
) -> Dataset:
    """Open shards where they lie: a file, directory, glob, braces, list of those, or an index file.

    Parameters
    ----------
    source
        ``"data/train-{000000..000099}.tar"``, ``"data/*.jsonl"``, a directory (all shards below it), a `pathlib.Path`,
        a list of shards, or a ``shoal.index`` beside its shards. On this machine or remote:
        ``"s3://bucket/train/*.tar"``, ``gs://``, ``az://``, ``https://``, ``hf://`` (docs/guides/remote-data.md).
    split
        Which of the splits of a directory: ``"train"``, several as a list, or ``"all"``. Needed where there are
        several: directories or files named ``train``, ``val``, ``test`` and the like, or what ``dataset_dict.json``
        (Hugging Face) or ``.nv-meta/split.yaml`` (Energon) lists.
    index
        An index kept elsewhere, by path or URL. Otherwise ``shoal.index`` beside the shards is used, else one is made
        and cached.
    format
        "tar", "jsonl", "parquet" ..., where suffixes do not say it, or an object of `shoal.formats` with options.
    storage_options
        What the store should know of: credentials, an endpoint, headers, time limits; never kept with a state or shown.
        For files of this machine ``max_open_files``, at most: by default half of the descriptors of the process, or
        256.
    publish_index
        Whether an index made for a whole directory of an object store is also put beside its shards, as
        ``shoal.index``, for other machines to find. By default nothing is written there.
    cache
        Where this machine keeps what was read, for all of its processes (docs/guides/chunk-cache.md). A directory on a
        local disk: chunks stay there for later epochs and runs. ``{"directory": ..., "budget": "200GiB"}`` says how
        much that may be; without, half of what is free. True: 1 GiB in shared memory, else among temporary files, for
        as long as the run lasts. Default: none; each process reads for itself, from memory alone.

    Raises
    ------
    SourceError
        The source names nothing, shards nobody can tell the format of, or several splits of which none was asked for.
    IndexFileError, ShardError, StorageError
        What `shoal.errors` says of them.
    """
    opened = open_source(
        source,
        split=split,
        index=index,
        format=format,
        storage_options=storage_options,
        publish_index=publish_index,
    )
    if not opened.index.num_samples:
        met = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in opened.index.notes.items())
        msg = f"{printed(source)}: {counted(opened.index.num_shards, 'shard')} without a single sample"
        msg += met and f"; met: {met}"
        raise UsageError(msg, hint="is this the right format, with the right options?")
    kept = chunk_cache_of(cache, dataset=opened.index.fingerprint)
    return Dataset(DatasetSpec.of(opened if kept is None else replace(opened, cache=kept)))
