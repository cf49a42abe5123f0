"""The keys of a dataset's samples in storage order."""

from __future__ import annotations

from collections.abc import Iterator
from posixpath import splitext

from shoal.cli.progress import Progress
from shoal.errors import UsageError
from shoal.formats.folder.reader import Folder
from shoal.indexing.open_source import Opened
from shoal.stream.dataset import Dataset
from shoal.stream.dataset_spec import DatasetSpec

KEY = "__key__"
_PACKED_KEY = "key"  # for rows that `shoal pack` made from files


def keys_in_order(opened: Opened, *, label: str) -> Iterator[str]:
    """Yield the key of each sample by id; reads the dataset, unless it is a folder, and shows progress.

    Raises
    ------
    UsageError
        The samples have no keys.
    """
    index = opened.index
    if isinstance(opened.format, Folder):
        for shard in index.extent_shard.tolist():
            yield splitext(index.shard_names[shard])[0]
        return
    dataset = Dataset(DatasetSpec(opened)).partition(rank=0, world_size=1)
    with Progress(total=index.num_samples, label=label) as progress:
        for sample in dataset:
            key = sample.get(KEY, sample.get(_PACKED_KEY))
            if not isinstance(key, str):
                msg = f"samples of format {index.format} have no keys"
                raise UsageError(msg, hint="their ids are numbers from 0 in storage order, which `shoal head` shows")
            yield key
            progress.advance()
