"""Parts of the index, merged as a tree: some hundred parts into a group, and groups, column by column, into a file.

A process holds one group of parts, and O(shards): names, digests and counts.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import IndexFileError, StorageError, UsageError
from shoal.index.assembly import MOST_SAMPLES_WITH_SIZES, joined
from shoal.index.index_file import USER_PREFIX, columns_of, encode, read_head, shard_columns
from shoal.index.streamed_index import StreamedColumn
from shoal.index.table import EXTENT_COLUMNS, Index
from shoal.indexing.jobs.job_units import missing_units
from shoal.pack.output.journal import Journal
from shoal.pack.shards.column_values import as_texts, codes_of, joined_columns
from shoal.processes.calls_in_threads import called_in_order
from shoal.storage.store_protocol import ObjectInfo

_GROUP_SHARDS, _GROUP_SAMPLES = 256, 1 << 20
_NUM_READS = 8  # groups whose column is read at the same time
_NOTHING = "nothing was committed"
_FIRST_SAMPLE = "extent_first_sample"


@dataclass(frozen=True, slots=True, eq=False)
class PartGroup:
    """The merged parts of consecutive shards; ``column`` returns a column by its name in an index file.

    ``metadata`` has lists with an entry a shard: ``names``, ``counts``, ``digests``, ``skipped``, ``skipped_places``,
    ``renamed`` and ``frames``; also ``texts``, and the ``kinds`` of user columns in shards with samples. ``types`` has
    the type and length of each column.
    """

    format: str
    notes: Mapping[str, int]
    metadata: Mapping[str, Any]
    shard_bytes: NDArray[np.int64]
    shard_heads: Mapping[int, Mapping[str, Any]]
    types: Mapping[str, tuple[np.dtype[Any], int]]
    column: Callable[[str], NDArray[Any]]

    @property
    def num_samples(self) -> int:
        """Number of samples in all shards of the group."""
        return sum(self.metadata["counts"])


def group_of(index: Index) -> PartGroup:
    """Return a group whose index, from `merged_index`, is in memory."""
    columns = dict(columns_of(index))
    types = {name: (column.dtype, len(column)) for name, column in columns.items()}
    heads = dict(index.shard_heads)
    return PartGroup(index.format, index.notes, index.metadata, index.shard_bytes, heads, types, columns.__getitem__)


def merged_index(parts: Sequence[Index]) -> Index:
    """Merge parts of consecutive shards into the index of a group; O(samples of the group)."""
    texts = [part.metadata["texts"] for part in parts]
    columns, words = joined_columns([part.columns for part in parts], texts)
    filled = [part for part in parts if part.num_samples]
    kinds = {
        name: sorted({part.columns[name].dtype.str for part in filled if name not in part.metadata["texts"]})
        for name in columns
    }
    metadata = {
        **{name: parts[0].metadata[name] for name in ("cutting_rule", "extent_bytes")},
        "names": [name for part in parts for name in part.shard_names],
        "counts": [part.num_samples for part in parts],
        "digests": [part.metadata["digest"] for part in parts],
        "skipped": [list(map(list, part.metadata["skipped"])) for part in parts],
        "skipped_places": [part.metadata["skipped_places"] for part in parts],
        "renamed": [part.metadata.get("num_renamed", 0) for part in parts],
        "frames": [part.metadata.get("frame") for part in parts],
        "texts": words,
        "kinds": kinds,
    }
    return joined(parts, columns=columns, metadata=metadata)


def spans_of_groups(cuts: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Cut units into groups of at most 256, and of about 10^6 samples if they are not larger alone.

    >>> spans_of_groups(np.array([0, 1 << 19, 1 << 20, 1 << 22]))
    [(0, 2), (2, 3)]
    """
    spans, first = [], 0
    for unit in range(len(cuts) - 1):
        too_many = int(cuts[unit + 1] - cuts[first]) > _GROUP_SAMPLES or unit - first >= _GROUP_SHARDS
        if unit > first and too_many:
            spans.append((first, unit))
            first = unit
    return [*spans, (first, len(cuts) - 1)]


def merged_groups(
    journal: Journal,
    names: Sequence[str],
    *,
    cuts: NDArray[np.int64],
    completed: Callable[[int, Sequence[Index]], Sequence[Index]],
) -> list[PartGroup]:
    """Merge the parts of all units into groups; large datasets keep groups in the journal, for later calls.

    ``names`` has the names of the shards, ``cuts`` the borders of their inputs. ``completed`` takes the number of the
    first unit and parts of consecutive units, and adds columns. Parts of a remote store are read side by side. Raises
    `UsageError` that names missing units, or a shard with more or fewer samples than planned.
    """
    finished = journal.finished()
    missing = [number for number, name in enumerate(names) if name not in finished]
    if missing:
        raise missing_units(missing, len(names), then=_NOTHING)

    def index_of(first: int, stop: int) -> Index:
        read = list(journal.parts([finished[name] for name in names[first:stop]]))
        if lost := [first + number for number, part in enumerate(read) if part is None]:
            raise missing_units(lost, len(names), then=_NOTHING)
        parts = [part for part in read if part is not None]
        for part, num_planned in zip(parts, np.diff(cuts[first : stop + 1]).tolist(), strict=True):
            num_inputs = part.num_samples + len(part.metadata["skipped"])
            if num_inputs != num_planned:
                msg = f"{part.shard_names[0]}: {num_planned} inputs were planned, but {num_inputs} packed or skipped"
                raise UsageError(msg, hint=_NOTHING)
        return merged_index(completed(first, parts))

    spans = spans_of_groups(cuts)
    if int(cuts[-1] - cuts[0]) <= _GROUP_SAMPLES:
        groups = [group_of(index_of(*span)) for span in spans]
    else:
        groups = [_kept_group(journal, index_of, span, [finished[name] for name in names[slice(*span)]])
                  for span in spans]  # fmt: skip
    if _is_ambiguous(groups):
        # The text of a number depends on its type in its shard, and merging has changed types.
        return [group_of(index_of(0, len(names)))]
    return groups


def _kept_group(
    journal: Journal, merge: Callable[[int, int], Index], span: tuple[int, int], parts: Sequence[ObjectInfo]
) -> PartGroup:
    """Return a group in the journal, merged now unless an earlier call has merged the same parts."""
    identity = hashlib.blake2b(digest_size=16)
    for part in parts:
        identity.update(f"{part.path}\0{part.num_bytes}\0{part.version}\0".encode())
    key = f"{span[0]}-{span[1]}-{identity.hexdigest()}"
    with suppress(IndexFileError):
        if (known := _group_in(journal, key)) is not None:
            return known
    journal.keep_group(key, encode(merge(*span)))
    known = _group_in(journal, key)
    if known is None:
        msg = f"{journal.directory}: records that were just written are missing"
        raise StorageError(msg, hint="does another process remove them?")
    return known


def _group_in(journal: Journal, key: str) -> PartGroup | None:
    stored = journal.group(key)
    if stored is None:
        return None
    num_bytes, read = stored
    head = read_head(read, num_bytes)

    def column(name: str) -> NDArray[Any]:
        kind, start, end = head.columns[name]
        return np.frombuffer(read(start, end), dtype=kind)

    types = {name: (kind, (end - start) // kind.itemsize) for name, (kind, start, end) in head.columns.items()}
    heads = json.loads(bytes(column("shard_heads"))) if "shard_heads" in types else {}
    by_number = {int(number): about for number, about in heads.items()}
    return PartGroup(head.format, head.notes, head.metadata, column("shard_bytes").copy(), by_number, types, column)


def _is_ambiguous(groups: Sequence[PartGroup]) -> bool:
    """Return True if a column has texts in some shards, and numbers of several types in others of one group."""
    texts = {name for group in groups for name in group.metadata["texts"]}
    return len(groups) > 1 and any(len(group.metadata["kinds"].get(name, ())) > 1 for group in groups for name in texts)


@dataclass(frozen=True, slots=True, eq=False)
class JoinedGroups:
    """The columns of the index of all groups, and the ``texts`` of columns with codes."""

    columns: list[StreamedColumn]
    texts: dict[str, list[str]]
    notes: dict[str, int]


def joined_groups(groups: Sequence[PartGroup], *, names: Sequence[str], versions: Sequence[str]) -> JoinedGroups:
    """Join groups into the index of all their shards, column by column; equals `shoal.index.assembly.joined` of parts.

    Memory: O(shards), and eight columns of a group while chunks are read.
    """
    firsts = [0, *accumulate(len(group.shard_bytes) for group in groups)][:-1]
    heads = {first + number: head for group, first in zip(groups, firsts, strict=True)
             for number, head in group.shard_heads.items()}  # fmt: skip
    num_bytes = np.concatenate([group.shard_bytes for group in groups])
    columns = [
        StreamedColumn(name, column.dtype, len(column), partial(iter, (column,)))
        for name, column in shard_columns(num_bytes, names, versions, heads)
    ]
    plain = {name: _plain(groups, name) for name in EXTENT_COLUMNS}
    plain["extent_shard"] = _shifted(groups, "extent_shard", firsts)
    columns += [_first_samples(groups), *plain.values()]
    if all("extent_checksum" in group.types for group in groups):
        columns.append(_plain(groups, "extent_checksum"))
    filled = [group for group in groups if group.num_samples]
    num_samples = sum(group.num_samples for group in groups)
    if all("sample_bytes" in group.types for group in filled) and num_samples <= MOST_SAMPLES_WITH_SIZES:
        columns.append(_plain(filled, "sample_bytes"))
    texts: dict[str, list[str]] = {}
    for name in (name for name in groups[0].types if name.startswith(USER_PREFIX)):
        own = name.removeprefix(USER_PREFIX)
        if any(own in group.metadata["texts"] for group in groups):
            column, texts[own] = _texts(filled, name)
        else:
            column = _plain(filled or groups[:1], name)
        columns.append(column)
    notes: Counter[str] = Counter()
    for group in groups:
        notes.update(group.notes)
    return JoinedGroups(columns, texts, dict(notes))


def _plain(groups: Sequence[PartGroup], name: str) -> StreamedColumn:
    def chunks() -> Iterator[NDArray[Any]]:
        return called_in_order(lambda group: group.column(name), groups, num_threads=min(_NUM_READS, len(groups)))

    kind = np.result_type(*(group.types[name][0] for group in groups))
    return StreamedColumn(name, kind, sum(group.types[name][1] for group in groups), chunks)


def _shifted(groups: Sequence[PartGroup], name: str, offsets: Sequence[int]) -> StreamedColumn:
    plain = _plain(groups, name)

    def chunks() -> Iterator[NDArray[Any]]:
        for chunk, offset in zip(plain.chunks(), offsets, strict=True):
            yield chunk + plain.kind.type(offset)

    return replace(plain, chunks=chunks)


def _first_samples(groups: Sequence[PartGroup]) -> StreamedColumn:
    """Return the first sample of each extent, and the number of samples, from the same column of each group."""
    offsets = [0, *accumulate(group.num_samples for group in groups)]
    shifted = _shifted(groups, _FIRST_SAMPLE, offsets[:-1])

    def chunks() -> Iterator[NDArray[Any]]:
        yield from (chunk[:-1] for chunk in shifted.chunks())
        yield np.array(offsets[-1:], dtype=shifted.kind)

    return replace(shifted, length=shifted.length - len(groups) + 1, chunks=chunks)


def _texts(groups: Sequence[PartGroup], name: str) -> tuple[StreamedColumn, list[str]]:
    """Return a column of codes for texts; numbers of some groups become texts, as within one shard."""
    own = name.removeprefix(USER_PREFIX)

    def coded(group: PartGroup) -> tuple[NDArray[np.int64], Sequence[str]]:
        return as_texts(group.column(name), group.metadata["texts"].get(own))

    known = [group.metadata["texts"].get(own) for group in groups]
    words = [texts if texts is not None else coded(group)[1] for texts, group in zip(known, groups, strict=True)]
    all_words = sorted({word for texts in words for word in texts})

    def chunks() -> Iterator[NDArray[Any]]:
        for group, texts in zip(groups, words, strict=True):
            yield codes_of(texts, all_words)[coded(group)[0]]

    length = sum(group.types[name][1] for group in groups)
    return StreamedColumn(name, np.dtype(np.int32), length, chunks), all_words
