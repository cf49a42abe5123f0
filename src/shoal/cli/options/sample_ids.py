"""Read ids and keys of samples from files or from a dataset."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.cli.display.progress_bar import Progress
from shoal.cli.options.source_options import open_with_samples
from shoal.errors import UsageError
from shoal.formats.folder.reader import Folder
from shoal.formats.rows.tar.reader import Tar
from shoal.index.table import Index
from shoal.indexing.opened_dataset import Opened
from shoal.indexing.scan.sample_keys import sample_keys
from shoal.stream.dataset import Dataset
from shoal.stream.dataset_spec import DatasetSpec

ID_SUFFIXES = (".npy", ".txt", ".csv", ".ids")
KEY = "__key__"
_PACKED_KEY = "key"  # field of rows that `shoal pack` wrote


def keyed_samples(arguments: argparse.Namespace) -> tuple[NDArray[Any], Index | None]:
    """Return the key of each sample in storage order, and the index if ``--keys`` names a dataset."""
    source: str = arguments.keys
    if Path(source).suffix in ID_SUFFIXES:
        return read_keys(source), None
    opened = open_with_samples(argparse.Namespace(**{**vars(arguments), "source": [source]}))
    return np.array(list(keys_in_order(opened, label="reading keys"))), opened.index


def keys_in_order(opened: Opened, *, label: str) -> Iterator[str]:
    """Yield the key of each sample by id; reads the samples unless names of files are keys."""
    index = opened.index
    with Progress(total=index.num_samples, label=label) as progress:
        if isinstance(opened.format, Folder | Tar):
            for keys in sample_keys(opened):
                yield from keys
                progress.advance(len(keys))
            return
        for sample in Dataset(DatasetSpec(opened)).partition(rank=0, world_size=1):
            key = sample.get(KEY, sample.get(_PACKED_KEY))
            if not isinstance(key, str):
                msg = f"samples of format {index.format} have no keys"
                raise UsageError(msg, hint="their ids are numbers from 0 in storage order; `shoal head` shows them")
            yield key
            progress.advance()


def read_ids(path: str) -> NDArray[Any]:
    """Read sample ids from an array or from integers as text."""
    if Path(path).suffix == ".npy":
        return read_array(path)
    with Path(path).open(encoding="utf-8") as file:
        try:
            return np.array([int(word) for line in file for word in line.replace(",", " ").split()], dtype=np.int64)
        except (ValueError, OverflowError):
            msg = f"{path}: ids are integers, separated by blanks, commas or line ends"
            raise UsageError(msg, hint="keys of samples need --keys, the file or dataset with all keys") from None


def read_keys(path: str) -> NDArray[Any]:
    """Read sample keys from an array of texts or integers, or from lines."""
    if Path(path).suffix == ".npy":
        return read_array(path)
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: keys are lines of UTF-8, but byte {error.start} is not") from None
    return np.array([line for line in lines if line])


def read_array(path: str) -> NDArray[Any]:
    """Map a numpy array; the array may be larger than memory."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError):
        msg = f"{path}: this is not an array as numpy.save() writes it"
        raise UsageError(msg, hint="object arrays are not read: they can run code from the file") from None
    if not isinstance(array, np.ndarray):  # an .npz archive
        raise UsageError(f"{path}: this is an archive of several arrays; one array is needed")
    return array
