"""`shoal.pack.plan` and `shoal.pack.plan_repack`: a packing as a job, for engines that run it on many machines."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

from shoal.formats.column_paths import Column
from shoal.formats.folder.class_directories import CLASS_FIELD
from shoal.formats.shard_format import Format
from shoal.index.cutting import EXTENT_BYTES
from shoal.order.window.sizing_by_bytes import parse_bytes
from shoal.pack.from_shards.repack_settings import MIX_MEMORY_BYTES, RepackRequest
from shoal.pack.from_shards.repack_sources import repack_source
from shoal.pack.from_shards.repacking import plan_repacking
from shoal.pack.inputs.duplicates import Dedup
from shoal.pack.pack_job import PackJob
from shoal.pack.packing import inputs_and_request, plan_inputs
from shoal.pipeline.stages.tokenizing import tokenize_with
from shoal.storage.sources.source import SourceLike
from shoal.stream.dataset import Dataset


def plan(
    source: str | os.PathLike[str],
    url: str | os.PathLike[str],
    *,
    format: str = "tar",  # noqa: A002  # the word of the public interface
    shard_bytes: int | str | None = None,
    num_readers: int = 1,
    extent_bytes: int | str = EXTENT_BYTES,
    columns: Sequence[str | Column] = (),
    prefix: str = "shard",
    shuffle: bool = False,
    seed: int = 0,
    oversample: Mapping[str, Fraction | int] | None = None,
    oversample_key: str = CLASS_FIELD,
    balance: str | None = None,
    grouped: bool = False,
    labelled: bool | None = None,
    path_column: str | None = None,
    require: Sequence[str] = (),
    dedup: Dedup | None = None,
    num_workers: int | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    options: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> PackJob:
    """Plan the job that `pack` would do: its units run anywhere, and one call commits them.

    The shards and the index are those of `pack` with the same arguments. The inputs are listed with their sizes, and
    the destination records which job may write there. Planned again, before or after it is finished, it is the same
    job.

    Parameters
    ----------
    source
        A directory of files, a glob, a manifest, or a dataset of ``save_to_disk``; every machine must find it under
        this name.
    url, format, shard_bytes, num_readers, extent_bytes, columns, prefix, options, storage_options
        As for `pack`.
    shuffle, seed, oversample, oversample_key, balance, grouped, labelled, path_column, require, dedup, on_error
        As for `pack`.
    num_workers
        Processes of this machine that list the inputs, and read them if they are compared by content; None means one
        per processor.

    Returns
    -------
    PackJob
        Call ``run(i)`` for each ``i`` in ``range(job.num_units)``, then ``finish()``. Pickled, it has the names and
        sizes of all inputs.

    Raises
    ------
    UsageError
        The destination already holds something else, or an argument cannot be carried out. Or its store cannot refuse
        to replace an object: fsspec's, and file systems without hard links.

    Examples
    --------
    >>> import tempfile, shoal
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     Path(directory, "in").mkdir()
    ...     for number in range(100):
    ...         size = Path(directory, "in", f"{number:03d}.txt").write_text(f"document {number}")
    ...     job = shoal.pack.plan(f"{directory}/in", f"{directory}/out", shard_bytes="32KiB")
    ...     counts = [job.run(number).num_samples for number in reversed(range(job.num_units))]
    ...     counts, job.finish().num_samples
    ([25, 25, 25, 25], 100)
    """
    inputs, request, repeats = inputs_and_request(
        source, url, format=format, shard_bytes=shard_bytes, num_readers=num_readers, extent_bytes=extent_bytes,
        columns=columns, prefix=prefix, shuffle=shuffle, seed=seed, oversample=oversample,
        oversample_key=oversample_key, balance=balance, grouped=grouped, labelled=labelled, path_column=path_column,
        require=require, dedup=dedup, on_error=on_error, num_workers=num_workers, options=options,
    )  # fmt: skip
    job = plan_inputs(inputs, url, request, repeats=repeats, storage_options=storage_options, shared=True)
    job.out.release()
    return job


def plan_repack(
    source: SourceLike | Dataset,
    url: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002  # the word of the public interface
    shard_bytes: int | str | None = None,
    mix: bool = False,
    seed: int = 0,
    memory: int | str = MIX_MEMORY_BYTES,
    decode: bool = False,
    tokenize: Any = None,
    text_field: str = "text",
    columns: Sequence[str | Column] = (),
    prefix: str = "shard",
    extent_bytes: int | str = EXTENT_BYTES,
    dedup: Dedup | None = None,
    oversample: Mapping[str, Fraction | int] | None = None,
    oversample_key: str = CLASS_FIELD,
    balance: str | None = None,
    num_workers: int | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    options: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    split: str | Sequence[str] | None = None,
    source_format: str | Format | None = None,
    index: str | os.PathLike[str] | None = None,
) -> PackJob:
    """Plan the job that `repack` would do, as `plan` does for `pack`.

    Where the format needs to know all columns first, and the source does not tell them, the samples are read once while
    it is planned.

    Parameters
    ----------
    source, split, source_format, index, storage_options
        As for `repack`.
    url, format, shard_bytes, columns, prefix, extent_bytes, options
        As for `repack`.
    mix, seed, memory, decode, tokenize, text_field, dedup, oversample, oversample_key, balance, on_error
        As for `repack`. With ``mix``, each unit reads a window of its own. Every machine must find the tokenizer under
        this name.
    num_workers
        Processes of this machine that read the samples while it is planned, if they must be read.

    Returns
    -------
    PackJob
        Call ``run(i)`` for each ``i`` in ``range(job.num_units)``, then ``finish()``.

    Raises
    ------
    UsageError
        The destination already holds something else, or an argument cannot be carried out. Or its store cannot refuse
        to replace an object: fsspec's, and file systems without hard links.

    Examples
    --------
    >>> import tempfile, shoal
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     samples = ({"text": f"document {i}"} for i in range(200))
    ...     old = shoal.pack.pack(samples, f"{directory}/old", format="jsonl")
    ...     job = shoal.pack.plan_repack(old.url, f"{directory}/new", shard_bytes="2KiB")
    ...     counts = [job.run(number).num_samples for number in range(job.num_units)]
    ...     counts, job.finish().num_samples
    ([69, 66, 65], 200)
    """
    prepared = repack_source(
        source, url, split=split, index=index, source_format=source_format, storage_options=storage_options
    )
    request = RepackRequest(
        selected=prepared.selected,
        stages=prepared.stages,
        format=format,
        shard_bytes=None if shard_bytes is None else parse_bytes(shard_bytes, "shard_bytes"),
        mix=mix,
        seed=seed,
        memory_bytes=parse_bytes(memory, "memory"),
        decode=decode,
        tokenize=None if tokenize is None else tokenize_with(tokenize, field=text_field),
        columns=columns,
        prefix=prefix,
        extent_bytes=parse_bytes(extent_bytes, "extent_bytes"),
        dedup=dedup,
        oversample=oversample or {},
        oversample_key=oversample_key,
        balance=balance,
        on_error=on_error,
        options=options or {},
        num_workers=num_workers,
    )
    job = plan_repacking(prepared.opened, url, request, storage_options=prepared.output_options, shared=True).job
    job.out.release()
    return job
