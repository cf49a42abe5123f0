"""The keys of samples without reading samples: from the names of files, or from tar headers."""

from __future__ import annotations

from collections.abc import Iterator
from posixpath import splitext

from shoal.errors import ShardError, UsageError
from shoal.formats.folder.reader import Folder
from shoal.formats.rows.tar.reader import Tar
from shoal.indexing.opened_dataset import Opened
from shoal.indexing.scan.costs import ReadCosts
from shoal.indexing.scan.remote_scans import reading_one


def sample_keys(opened: Opened) -> Iterator[list[str]]:
    """Yield the keys of all samples by id, in lists of any length; tar shards cost as much as indexing them one by one.

    Raises `UsageError`: keys of this format are not in headers; `ShardError`: a shard has changed; `StorageError`: it
    cannot be read.
    """
    index, costs = opened.index, ReadCosts()
    if isinstance(opened.format, Folder):
        yield [splitext(index.shard_names[shard])[0] for shard in index.extent_shard.tolist()]
        return
    if not isinstance(opened.format, Tar):
        msg = f"the keys of {index.format} samples are known only by reading the samples"
        raise UsageError(msg, hint='split by a column: shoal.open(..., index_columns=["id"])')
    num_samples = index.extent_first_sample[index.shard_first_extent].tolist()
    for shard, (name, path) in enumerate(zip(index.shard_names, opened.paths, strict=True)):
        opened.check.check(shard)
        num_bytes = int(index.shard_bytes[shard])
        with reading_one(opened.store, path, num_bytes, costs=costs) as read:
            keys = opened.format.keys(read, num_bytes, shard=name)
        if len(keys) != (expected := num_samples[shard + 1] - num_samples[shard]):
            msg = f"its headers have {len(keys)} samples, but the index has {expected}"
            raise ShardError(msg, shard=name, hint="the index of another tool is wrong: make one with `shoal index`")
        yield keys
