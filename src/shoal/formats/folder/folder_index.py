"""The index of a folder of single files, built at once from their names and sizes: a million take seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.formats.folder.reader import size_crcs
from shoal.index.assembly import fingerprint
from shoal.index.cutting import CUTTING_RULE, layout_of
from shoal.index.table import Index


def index_of_files(
    format_name: str,
    names: Sequence[str],
    num_bytes: NDArray[np.int64],
    versions: Sequence[str],
    *,
    rows: Mapping[str, Mapping[str, Any]],
    metadata: Mapping[str, Any],
) -> Index:
    """Return the index that scanning these files one by one would give; O(files), vectorised.

    Arrays have shape (num_files,). ``rows`` are those of the tables beside the files, by name of file. Empty files have
    no extent.
    """
    full = np.flatnonzero(num_bytes)
    sizes = num_bytes[full]
    shard = full.astype(np.int32)
    zeros, ones = np.zeros(len(full), dtype=np.int64), np.ones(len(full), dtype=np.int64)
    large = bool(len(sizes)) and int(sizes.max()) >= 1 << 32
    num_empty = len(names) - len(full)
    return Index(
        format=format_name,
        shard_names=tuple(names),
        shard_bytes=num_bytes,
        shard_versions=tuple(versions),
        shard_heads={number: {"row": dict(rows[name])} for number, name in enumerate(names) if name in rows},
        extent_shard=shard,
        extent_first_byte=zeros,
        extent_end_byte=sizes,
        extent_num_samples=ones,
        extent_decoded_bytes=sizes,
        extent_layout_crc=layout_of(size_crcs(sizes)),
        extent_checksum=None,
        sample_bytes=sizes.astype(np.uint64 if large else np.uint32),
        fingerprint=fingerprint(names, shard, zeros, sizes, ones),
        notes={"empty_files": num_empty} if num_empty else {},
        metadata={"cutting_rule": CUTTING_RULE, **metadata},
    )
