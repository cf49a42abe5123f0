"""Readers for the ids or keys that `shoal audit` gets, and for the file or dataset that maps samples to keys."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.cli.audit.sample_keys import keys_in_order
from shoal.cli.options.source_options import open_with_samples
from shoal.errors import UsageError
from shoal.index.table import Index

ID_SUFFIXES = (".npy", ".txt", ".csv", ".ids")


@dataclass(frozen=True, slots=True, eq=False)
class KeyedSamples:
    """The key of each sample in storage order, and the index if a dataset was named."""

    keys: NDArray[Any]
    index: Index | None = None


def keyed_samples(arguments: argparse.Namespace) -> KeyedSamples:
    """Return the keys that ``--keys`` names: a file of all keys, or a dataset, which is read for them."""
    where: str = arguments.keys
    if Path(where).suffix in ID_SUFFIXES:
        return KeyedSamples(read_keys(where))
    opened = open_with_samples(argparse.Namespace(**{**vars(arguments), "source": [where]}))
    return KeyedSamples(np.array(list(keys_in_order(opened, label="reading keys"))), opened.index)


def read_ids(path: str) -> NDArray[Any]:
    """Read sample numbers: an array, or integers as text.

    Raises
    ------
    UsageError
        The file holds something else.
    """
    if Path(path).suffix == ".npy":
        return read_array(path)
    with Path(path).open(encoding="utf-8") as file:
        try:
            return np.array([int(word) for line in file for word in line.replace(",", " ").split()], dtype=np.int64)
        except (ValueError, OverflowError):
            msg = f"{path}: ids are integers with blanks, commas or line ends between"
            raise UsageError(msg, hint="keys of samples need --keys, which says where their order is found") from None


def read_keys(path: str) -> NDArray[Any]:
    """Read sample keys: an array of texts or integers, or one key per line.

    Raises
    ------
    UsageError
        The file holds something else.
    """
    if Path(path).suffix == ".npy":
        return read_array(path)
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        msg = f"{path}: keys are lines of UTF-8, and byte {error.start} is none"
        raise UsageError(msg) from None
    return np.array([line for line in lines if line])


def read_array(path: str) -> NDArray[Any]:
    """Return a numpy array, mapped and not read: it may be larger than memory.

    Raises
    ------
    UsageError
        The file holds something else.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError):
        msg = f"{path}: this is not an array as numpy.save() writes it"
        raise UsageError(msg, hint="object arrays are not read, since that would run code from the file") from None
    if not isinstance(array, np.ndarray):  # an .npz archive
        msg = f"{path}: one array is wanted, and this is an archive of several"
        raise UsageError(msg)
    return array
