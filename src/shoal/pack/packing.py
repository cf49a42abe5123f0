"""`shoal.pack.pack`: one function for everything that can be packed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

from shoal.errors import UsageError
from shoal.formats.shard_format import Sample
from shoal.index.cutting import EXTENT_BYTES
from shoal.order.window.sizing_by_bytes import parse_bytes
from shoal.pack.column_values import Column
from shoal.pack.engines.local_packing import PackRequest, bytes_of, inputs_of, pack_inputs, repeats_of
from shoal.pack.engines.packing_progress import Progress
from shoal.pack.inputs.required_fields import lacking_in
from shoal.pack.output_guard import check_apart
from shoal.pack.shard_sizes import shard_sizing
from shoal.pack.writer import PackSummary, Writer


def pack(
    source: str | os.PathLike[str] | Iterable[Sample],
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
    oversample_key: str = "label",
    balance: str | None = None,
    grouped: bool = False,
    labelled: bool | None = None,
    path_column: str | None = None,
    require: Sequence[str] = (),
    on_error: Literal["raise", "skip"] = "raise",
    num_workers: int | None = None,
    options: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> PackSummary:
    """Pack files, rows or samples from code into shards with an index; finished shards of a killed run are kept.

    Parameters
    ----------
    source
        A directory of files, a glob, a manifest, a dataset of Hugging Face's ``save_to_disk``; or any iterable of
        samples, which a `Writer` writes in its order: the parameters below about order, repeats, inputs and processes
        then do not apply.
    url
        A directory or URL that holds no shards yet.
    format, shard_bytes, columns, prefix, extent_bytes, options
        As for `Writer`. If ``shard_bytes`` is None, `shard_sizing` chooses it for ``num_readers`` readers.
    shuffle, seed
        Shuffle all samples globally; the same seed gives the same shards, with any number of processes.
    oversample, oversample_key, balance
        Repetition factor of each class, by the label or another column; or the column to balance by.
    grouped
        Join files whose names differ only after the first dot into one sample.
    labelled
        Take the first directory of a file as its class; None does so if all files lie in a directory.
    path_column
        The column of a manifest that holds the paths.
    require
        Fields that every sample must have, by the suffixes of files, and ``"cls"`` for its class; ``"jpg;png"`` means
        either. If samples lack one, nothing is packed, or they are left out, depending on ``on_error``.
    on_error
        ``"skip"`` leaves out inputs that cannot be read or written, or lack a required field; the summary lists them.
    num_workers
        Number of processes; None means one per processor, or fewer for small inputs.

    Returns
    -------
    PackSummary
        Shards with their digests, and the skipped inputs.

    Raises
    ------
    UsageError
        The output already holds something else, or an argument cannot be carried out.
    StorageError
        An input cannot be read, or a shard cannot be written.

    Examples
    --------
    >>> import tempfile, shoal
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     samples = ({"text": f"document {i}"} for i in range(1000))
    ...     summary = shoal.pack.pack(samples, directory, format="jsonl", shard_bytes="8KiB")
    ...     len(summary.shards), shoal.open(directory)[999]
    (3, {'text': 'document 999'})
    """
    if not isinstance(source, str | os.PathLike):
        _check_iterable(source)
        if shuffle or oversample or balance is not None or grouped or path_column or on_error == "skip":
            msg = "samples from code are packed in the order in which they come, each once"
            raise UsageError(msg, hint="mix or choose them before; `shoal repack` mixes shards, and leaves out samples")
        writer = Writer(
            url,
            format=format,
            shard_bytes=shard_bytes,
            columns=columns,
            prefix=prefix,
            extent_bytes=parse_bytes(extent_bytes, "extent_bytes"),
            options=options,
            storage_options=storage_options,
        )
        return _written(source, writer, require)
    check_apart(source, url)
    inputs = inputs_of(
        source, format=format, grouped=grouped, labelled=labelled, path_column=path_column, require=require,
        on_error=on_error, num_workers=num_workers,
    )  # fmt: skip
    repeats = repeats_of(inputs, oversample=oversample or {}, balance=balance, key=oversample_key, seed=seed)
    if shard_bytes is None:
        sized = shard_sizing(bytes_of(inputs, repeats), num_readers=num_readers).shard_bytes
    else:
        sized = parse_bytes(shard_bytes, "shard_bytes")
    request = PackRequest(
        format, sized, columns, prefix, parse_bytes(extent_bytes, "extent_bytes"), on_error=on_error, shuffle=shuffle,
        seed=seed, options=options or {}, num_workers=num_workers,
    )  # fmt: skip
    return pack_inputs(
        inputs, url, request, repeats=repeats, storage_options=storage_options, progress=progress
    ).summary


def _check_iterable(source: object) -> None:
    if not hasattr(source, "__iter__"):
        msg = f"what is packed is a path, or an iterable of samples; got {source!r:.80}"
        raise UsageError(msg, hint="a generator, for instance, of dicts")


def _written(samples: Iterable[Sample], writer: Writer, require: Sequence[str]) -> PackSummary:
    with writer:
        for number, sample in enumerate(samples):
            if missing := lacking_in(sample, require):
                msg = f"sample {number} lacks what require asks for: {', '.join(missing)}"
                raise UsageError(msg, hint=f"it has {', '.join(map(str, sample))}")
            writer.write(sample)
    return writer.close()
