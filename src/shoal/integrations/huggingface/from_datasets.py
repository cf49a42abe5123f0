"""Datasets of Hugging Face ``datasets`` as shoal datasets: exactly the same rows, read from their files in place.

A `datasets.Dataset` has Arrow files in its cache or from ``save_to_disk``, and rows chosen by ``select``, ``filter``,
``shuffle`` and slices. A `datasets.IterableDataset` has the files that it would stream. Rows that a function computes
are in no file, and are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.integrations.huggingface.arrow_tables import Stored, datasets_library, refuse_decoding, refused, stored_rows
from shoal.stream.dataset import Dataset
from shoal.stream.open_dataset import open_dataset


@dataclass(frozen=True, slots=True)
class _Builder:
    """A builder of the library: the attribute with its files, their format, and settings that change rows."""

    files: str
    format: str
    changing: tuple[str, ...] = ()


_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_BUILDERS = {
    "Parquet": _Builder("files", "parquet", ("filters",)),
    "Arrow": _Builder("files", "arrow"),
    "Json": _Builder("base_files", "jsonl", ("field", "encoding_errors")),
    "WebDataset": _Builder("tar_paths", "tar"),
}


def from_hf(dataset: Any, *, storage_options: Mapping[str, Any] | None = None, cache: Any = None) -> Dataset:
    """Open the rows of a Hugging Face dataset in place, as a shoal dataset like any other.

    The result has exactly the rows of the argument, in the order of their files: use `Dataset.shuffle`, since the
    shuffled order of a `datasets.Dataset` is dropped. Values are as in the files: use ``decode`` and `map` again.

    Parameters
    ----------
    dataset
        A `datasets.Dataset` on disk, after any chain of ``select``, ``filter``, ``shuffle``, ``shard``,
        ``train_test_split``, ``select_columns``, ``rename_column`` and ``concatenate_datasets``; or a
        `datasets.IterableDataset` over Parquet, JSON Lines, Arrow or WebDataset files, also with ``select_columns``.
    storage_options, cache
        See `shoal.open`.

    Raises
    ------
    UsageError
        The result cannot be exact, since rows are in memory, repeated, computed by a function, dealt to nodes or
        shuffled in a buffer; the message names the reason and a remedy.

    Examples
    --------
    >>> import datasets
    >>> rows = datasets.load_dataset("json", data_files="web/*.jsonl", split="train", streaming=True)
    >>> shoal.huggingface.from_hf(rows).shuffle(seed=0)[7]
    {'text': 'web 7'}
    """
    datasets = datasets_library()
    options: dict[str, Any] = {"storage_options": storage_options, "cache": cache}
    if isinstance(dataset, Mapping):
        msg = f"from_hf() takes one split; got {type(dataset).__name__} with {', '.join(map(repr, dataset))}"
        raise UsageError(msg, hint=f"from_hf(dataset[{next(iter(dataset), 'train')!r}])")
    if isinstance(dataset, datasets.Dataset):
        return _of_stored(stored_rows([dataset]), options)
    if isinstance(dataset, datasets.IterableDataset):
        return _of_iterable(dataset, options)
    raise UsageError(f"from_hf() takes a datasets.Dataset or datasets.IterableDataset; got {type(dataset).__name__}")


def _of_stored(stored: Stored, options: Mapping[str, Any]) -> Dataset:
    """Open the rows of Arrow files."""
    opened = open_dataset(list(stored.paths), format="arrow", **options)
    index = opened.stream.opened.index
    counts = np.diff(index.extent_first_sample[index.shard_first_extent]).tolist()
    if counts != list(stored.num_rows):
        msg = f"the files have {counts[:8]} rows, but the library reports {list(stored.num_rows)[:8]}"
        raise UsageError(msg, hint="a file changed while it was in use: load the dataset again")
    if stored.rows is not None:
        opened = opened.select(stored.rows)
    return _named(opened, stored.names)


def _of_iterable(dataset: Any, options: Mapping[str, Any]) -> Dataset:
    """Open the files of a stream."""
    if dataset._distributed is not None:  # noqa: SLF001  # there is no other way to know
        msg = "it is the part of a single node"
        raise refused(msg, "leave out split_dataset_by_node(): a shoal dataset knows its rank")
    if dataset._starting_state_dict is not None:  # noqa: SLF001
        msg = "a state was loaded into it, and it counts rows in their order of arrival"
        raise refused(msg, "give from_hf() a dataset without a state; the shoal dataset has a state of its own")
    source, columns = dataset._ex_iterable, None  # noqa: SLF001
    if type(source).__name__ == "SelectColumnsIterable":
        source, columns = source.ex_iterable, list(source.column_names)
    function = getattr(source, "generate_tables_fn", None) or getattr(source, "generate_examples_fn", None)
    if function is None:
        raise refused(*_why(type(source).__name__))
    if function.__name__ == "_generate_tables_from_shards":
        return _chosen(_of_stored(stored_rows(source.kwargs["shards"]), options), columns)
    builder: Any = getattr(function, "__self__", None)
    known = _BUILDERS.get(type(builder).__name__)
    if known is None or not type(builder).__module__.startswith("datasets.packaged_modules."):
        name = type(builder).__name__ if builder is not None else function.__qualname__
        msg = f"its samples come from {name}"
        raise refused(msg, "open its files with shoal.open(), if it reads files")
    config = builder.config
    changed = [name for name in known.changing if getattr(config, name, None) is not None]
    if changed or getattr(config, "features", None) is not None:
        name = changed[0] if changed else "features"
        raise refused(f"{name}= changes the contents of the files", "use filter() and map() of the shoal dataset")
    if source.kwargs.get("row_groups_list") and any(group is not None for group in source.kwargs["row_groups_list"]):
        raise refused("reshard() split its files", "leave out reshard(): the window mixes parts of files")
    if known.format != "tar":
        refuse_decoding(dataset.features or {})
    paths = [str(path) for path in source.kwargs[known.files]]
    are_compressed = all(path.endswith(_COMPRESSED) for path in paths)  # suffixes then show compression and format
    opened = open_dataset(paths, format=None if are_compressed else known.format, **options)
    if known.format == "jsonl" and isinstance(opened[0].get("json"), list) and len(opened[0]) == 1:
        msg = "a line of the files is an array, which shoal reads as one value"
        raise refused(msg, "write one object per line, or one array with the suffix .json")
    return _chosen(opened, columns if columns is not None else getattr(config, "columns", None))


def _why(kind: str) -> tuple[str, str]:
    """Return the reason why a step of a stream cannot be exact, and a remedy."""
    steps = {
        "BufferShuffledExamplesIterable": ("it was shuffled in a buffer", "leave out shuffle(), and shuffle() here"),
        "MappedExamplesIterable": ("map() changes its rows", "give from_hf() the dataset before map(), and map() here"),
        "FilteredExamplesIterable": ("filter() chooses rows as they come", "filter() here"),
        "TakeExamplesIterable": ("take() counts rows as they come", "take() here"),
        "SkipExamplesIterable": ("skip() counts rows as they come", "skip() here"),
        "Examples": ("it was made by to_hf()", "use the dataset of that call"),
    }
    unknown = (f"{kind} stands between it and its files", "give from_hf() the dataset as load_dataset() made it")
    return steps.get(kind, unknown)


def _named(dataset: Dataset, names: Mapping[str, str] | None) -> Dataset:
    """Return the dataset with columns under new names; ``names`` is None for all columns of the files."""
    if names is None:
        return dataset
    chosen = dataset.columns(*names.values())
    renamed = {new: old for new, old in names.items() if new != old}
    return chosen.rename(**renamed) if renamed else chosen


def _chosen(dataset: Dataset, columns: list[str] | None) -> Dataset:
    return dataset if columns is None else dataset.columns(*columns)
