"""`shoal.open`: from a source named by the user to a dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from shoal.arguments import as_flag
from shoal.errors import UsageError
from shoal.formats.shard_format import Format
from shoal.indexing.generations.relisted_source import RelistedSource
from shoal.indexing.open_source import find_source
from shoal.indexing.opened_dataset import refuse_empty
from shoal.indexing.tables.snapshot_protocol import WantedVersion
from shoal.pipeline.sample_columns.added_columns import ColumnsLike, opened_with_columns
from shoal.pipeline.sample_columns.appended_columns import columns_as_in
from shoal.reading.cache.cached_ranges import check_cacheable, chunk_cache_of
from shoal.storage.sources.source import SourceLike, printed
from shoal.stream.dataset import Dataset
from shoal.stream.dataset_spec import DatasetSpec
from shoal.stream.mixing.mixture_from_file import MixtureOpener, is_mixture_file
from shoal.stream.ranks import job_rank
from shoal.stream.states.growing_states import BEGINNINGS, begins_early, whole_of


def open_dataset(
    source: SourceLike,
    *,
    split: str | Sequence[str] | None = None,
    index: str | os.PathLike[str] | None = None,
    format: str | Format | None = None,  # noqa: A002  # the word of the public interface
    storage_options: Mapping[str, Any] | None = None,
    publish_index: bool = False,
    index_columns: ColumnsLike = (),
    cache: str | os.PathLike[str] | Mapping[str, Any] | bool | None = None,
    version: int | str | None = None,
    timestamp: str | None = None,
    predicate: Any = None,
    follow: bool = False,
) -> Dataset:
    """Open shards in place: a file, a directory, a glob, a brace pattern, a list, an index file, or a mixture file.

    Parameters
    ----------
    source
        ``"data/train-{000000..000099}.tar"``, ``"data/*.jsonl"``, a directory (all shards below it), a `pathlib.Path`,
        a list of shards, or a ``shoal.index`` beside its shards. Local or remote: ``"s3://bucket/train/*.tar"``,
        ``gs://``, ``az://``, ``https://``, ``hf://`` (docs/guides/remote-data.md). Or a table or dataset by its
        directory or name: ``delta://``, ``iceberg://``, ``hudi://``, ``lance://``, ``lerobot://``,
        ``hf://datasets/OWNER/NAME@REVISION#CONFIG``. A ``.yaml`` file that names sources and shares gives a
        `shoal.mixing.MixedDataset` (docs/mixture-files.md); arguments then apply to its sources.
    split
        Split of a directory to open: ``"train"``, several as a list, or ``"all"``. Required if there are several:
        directories or files named ``train``, ``val``, ``test`` and the like, or the splits listed in
        ``dataset_dict.json`` (Hugging Face) or ``.nv-meta/split.yaml`` (Energon).
    index
        Path or URL of an index stored elsewhere. By default ``shoal.index`` beside the shards is used; if there is
        none, an index is built and cached. ``"grow"`` starts before the index is complete: `Dataset.shuffle` first
        shuffles a few shards that are indexed in seconds, and indexes the other shards meanwhile
        (docs/guides/first-batch.md). ``"wait"`` always builds the whole index first. By default, a process that is the
        only rank grows the index if building it would take more than a few seconds; a log line says so.
    format
        "tar", "jsonl", "parquet" ..., if suffixes do not show the format, or an object of `shoal.formats` with options.
    storage_options
        Options of the store: credentials, an endpoint, headers, timeouts; never saved in a state or shown. For local
        files ``max_open_files``, the maximum number of open files: by default half of the descriptors of the process,
        or 256.
    publish_index
        If true, an index built for a whole directory of an object store is also written beside its shards, as
        ``shoal.index``, for other machines. By default nothing is written beside the shards.
    index_columns
        Columns of the index, for `select`, `index_column`, `quality` and other choices of samples: fields, paths into
        JSON and lengths, ``["label", "lang=meta.lang", "tokens:len"]``. Columns that the index lacks are read from all
        samples once, and cached on this machine; ``shoal index --columns`` writes columns into an index. A mapping
        gives the value for samples without a value: ``{"score": -1}``. Orders and states do not depend on columns.
    cache
        Cache of the data read, shared by all processes of this machine (docs/guides/chunk-cache.md). A directory on a
        local disk: chunks stay there for later epochs and runs. ``{"directory": ..., "budget": "200GiB"}`` limits its
        size, which defaults to half of the free space. True: 1 GiB for the duration of the run, in shared memory or,
        without it, in temporary files. Default: no cache; each process reads its own data, and keeps the data only in
        memory.
    version
        Version of a table to open: a number, the id of a snapshot, an instant, or the name of a tag, branch or
        revision. Default: the current version.
    timestamp
        Instead of ``version``: the version of a table that was current at this time (``"2026-11-01T12:00:00Z"``).
    predicate
        Rows of a table that are needed, ``[("day", ">=", "2026-01-01")]``: files whose statistics exclude such rows are
        not read. Files with some such rows are read as wholes. Conditions of a list hold together, lists in a list are
        alternatives; operators are ``= != < <= > >=``, ``in`` and ``not in``.
    follow
        If true, the source is looked at again at the beginning of each epoch: new shards take part from then on, after
        all known shards, so sample ids stay (docs/guides/a-dataset-that-grows.md). All ranks take the same shards. A
        running epoch never changes.

    Raises
    ------
    UsageError
        The mixture file is invalid; the message names the line.
    SourceError
        The source matches nothing, the format of its shards cannot be determined, or no split was chosen and the source
        has several.
    IndexFileError, ShardError, StorageError
        See `shoal.errors`.

    Examples
    --------
    >>> shoal.open("data")
    <shoal.Dataset: 200 samples of 4 tar shards>
    >>> shoal.open("data/train-{000000..000001}.tar").num_samples
    100
    >>> shoal.open("data", index_columns=["txt:len"]).index_column("txt:len")[:3]
    array([5, 5, 5])
    """
    shards = partial(
        _open_shards, wanted=WantedVersion(version, timestamp, predicate), publish_index=publish_index,
        index_columns=index_columns, cache=cache, follow=as_flag("open(follow=)", follow),
    )  # fmt: skip
    if format is None and is_mixture_file(source):
        if index is not None:
            msg = f"{printed(source)}: index= belongs to one dataset, but this is a mixture file"
            raise UsageError(msg, hint="name the index in the file, at its source")
        opener = MixtureOpener(shards, split, storage_options)
        return opener.opened(cast("str | os.PathLike[str]", source))
    return shards(source, split=split, index=index, format=format, storage_options=storage_options)


def _open_shards(
    source: SourceLike,
    *,
    index: Any = None,
    publish_index: bool,
    index_columns: ColumnsLike,
    cache: Any,
    follow: bool,
    wanted: WantedVersion,
    **arguments: Any,
) -> Dataset:
    beginning = index if index in BEGINNINGS else None
    if follow and beginning == "grow":
        msg = 'open(follow=True) looks for new shards between epochs, but index="grow" begins before all are indexed'
        raise UsageError(msg, hint='index="wait" indexes all shards first; or leave out follow=')
    if follow and wanted.never_moves:
        msg = "open(follow=True) takes the newest version of a table at each epoch, but a version is given"
        raise UsageError(msg, hint="leave out follow=, or version= and timestamp=; a branch (version=) may move")
    shards = find_source(
        source, publish_index=publish_index, job_rank=job_rank(), index=None if beginning else index,
        add_columns=columns_as_in, wanted=wanted, **arguments,
    )  # fmt: skip
    grows = not follow and begins_early(shards, beginning)
    if grows and shards.can_grow and not index_columns:
        kept = chunk_cache_of(cache, dataset=shards.identity)
        return Dataset(DatasetSpec.of(shards if kept is None else replace(shards, cache=kept), grows=True))
    opened = whole_of(shards, is_chosen=beginning is not None)
    refuse_empty(opened.index, printed(source))
    if index_columns:
        opened = opened_with_columns(opened, index_columns)
    if cache:
        check_cacheable(opened.format)
    kept = chunk_cache_of(cache, dataset=opened.index.fingerprint)
    latest = RelistedSource(source, index=None if beginning else index, add_columns=columns_as_in, **arguments)
    opened = replace(opened, cache=opened.cache if kept is None else kept, latest=opened.latest or latest)
    return Dataset(replace(DatasetSpec.of(opened, grows=grows), follows=(True,) if follow else ()))
