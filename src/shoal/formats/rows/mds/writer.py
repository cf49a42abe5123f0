"""Writer of MDS shards as MosaicML Streaming reads them; Streaming also needs an ``index.json`` beside the shards.

The head of a shard has the offsets of its samples, so a shard is held in memory until it is finished.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.rows.mds.encodings import encode_value, encoding_for, fixed_bytes_of
from shoal.formats.rows.offset_table import offset_crcs, table_bytes
from shoal.formats.shard_format import Sample
from shoal.formats.writing.encoder import EncodedRecord, WrittenShard, check_names
from shoal.index.shard_scan import Buffer, ShardScan
from shoal.index.table import Index

INDEX_NAME = "index.json"
_MOST_BYTES = (1 << 32) - 1


class MdsEncoder:
    """The format of MosaicML Streaming.

    ``columns`` maps the names of columns to their encodings (``{"image": "jpeg", "label": "int"}``); without it the
    first sample decides: integers are ``int``, floats ``float64``, arrays ``ndarray``, texts ``str``, bytes ``bytes``,
    anything else ``json``. Every sample has these columns and no others.
    """

    name: str = "mds"
    suffix: str = ".mds"

    def __init__(self, *, columns: Mapping[str, str] | None = None) -> None:
        self.columns = dict(columns) if columns else None
        for encoding in (self.columns or {}).values():
            fixed_bytes_of(encoding)

    def record(self, sample: Sample) -> EncodedRecord:
        """Encode a sample: the sizes of its values of variable size, and the values.

        Raises `UsageError` if the sample lacks a column or has another, or a value does not fit its encoding.
        """
        columns = self.columns
        if columns is None:
            check_names(sample)
            columns = {name: encoding_for(value) for name, value in sample.items()}
        if not columns or sample.keys() != columns.keys():
            msg = f"this sample has the columns {list(sample)}, but the shards have {list(columns)}"
            raise UsageError(msg, hint="all samples of an MDS dataset have the same columns, at least one")
        sizes, values = [], []
        for name, encoding in columns.items():
            try:
                data = encode_value(encoding, sample[name])
            except ValueError as error:
                if isinstance(error, UsageError):
                    raise
                msg = f"the column {name!r} is written as {encoding}, which cannot hold this value: {error}"
                raise UsageError(msg, hint="name the encoding of each column with options={'columns': {...}}") from None
            if fixed_bytes_of(encoding) is None:
                sizes.append(len(data))
            values.append(data)
        record = b"".join([np.array(sizes, dtype="<u4").tobytes(), *values])
        if not record:
            msg = "a sample without bytes cannot be distinguished from the next one"
            raise UsageError(msg, hint="give it a column of text, bytes or numbers")
        self.columns = columns  # a refused sample sets none
        return EncodedRecord((record,), len(record))

    def begin(self) -> MdsShard:
        """Begin a new shard."""
        return MdsShard(self)


class MdsShard:
    """One shard being written."""

    def __init__(self, encoder: MdsEncoder) -> None:
        self._encoder = encoder
        self._records: list[Buffer] = []
        self._sizes: list[int] = []
        self._crcs: list[int] = []
        self._head = b""
        self.held_bytes = 0  # of all records

    @property
    def num_samples(self) -> int:
        """Samples added so far."""
        return len(self._sizes)

    @property
    def num_bytes(self) -> int:
        """Size of the shard if it ended now."""
        return table_bytes(self.num_samples) + len(self._description()) + self.held_bytes

    def add(self, record: EncodedRecord) -> Sequence[Buffer]:
        """Add a record; no bytes are ready before the end.

        Raises `UsageError` if the shard would have 4 GiB, more than its offsets can address.
        """
        if self.num_bytes + record.num_bytes + 4 > _MOST_BYTES:
            msg = f"an MDS shard ends before 4 GiB, but this shard would have {self.num_bytes + record.num_bytes} bytes"
            raise UsageError(msg, hint="make shards smaller")
        self._records += record.parts
        self._sizes.append(record.num_bytes)
        self._crcs.append(crc32(record.parts[0]))
        self.held_bytes += record.num_bytes
        return ()

    def finish(self) -> Sequence[Buffer]:
        """Return the whole shard."""
        self._head = np.array([self.num_samples, *self._starts()], dtype="<u4").tobytes() + self._description()
        records, self._records = self._records, []
        return [self._head, *records]

    def written(self) -> WrittenShard:
        """Return the description of the shard."""
        starts = self._starts()
        columns = [[name, encoding] for name, encoding in (self._encoder.columns or {}).items()]
        scan = ShardScan(starts, offset_crcs(starts), head={"columns": columns})
        crcs = np.array(self._crcs, dtype=np.uint32)
        return WrittenShard(scan, int(starts[-1]), record_crcs=crcs, frame_crc=crc32(self._head))

    def _starts(self) -> NDArray[np.int64]:
        head_bytes = table_bytes(self.num_samples) + len(self._description())
        return np.cumsum([head_bytes, *self._sizes], dtype=np.int64)

    def _description(self) -> bytes:
        return json.dumps(_described(self._encoder.columns or {}), sort_keys=True).encode()


def mds_index_of(index: Index) -> bytes:
    """Return the ``index.json`` of MosaicML Streaming for the shards of an index.

    Raises `UsageError` if the shards do not all have the same columns, or the index lacks the columns of a shard.
    """
    counts = np.diff(index.extent_first_sample[index.shard_first_extent]).tolist()
    shards = list(zip(index.shard_names, index.shard_bytes.tolist(), counts, strict=True))
    return mds_index(shards, [index.shard_heads.get(number, {}).get("columns") for number in range(index.num_shards)])


def mds_index(shards: Sequence[tuple[str, int, int]], heads: Sequence[Any]) -> bytes:
    """Return `mds_index_of` for shards by name, bytes and number of samples; ``heads`` are their columns."""
    for (name, _, _), columns in zip(shards, heads, strict=True):
        if columns is None:
            raise UsageError(f"the index does not say which columns {name} has", hint="index the shards again")
        if columns != heads[0]:
            msg = f"{name} has the columns {columns}, but {shards[0][0]} has {heads[0]}"
            raise UsageError(msg, hint="name the encodings for all shards with options={'columns': {...}}")
    described = _described(dict(map(tuple, heads[0] or ()))) if heads else {}
    entries = [
        {
            **described,
            "raw_data": {"basename": name, "bytes": num_bytes, "hashes": {}},
            "samples": num_samples,
            "zip_data": None,
        }
        for name, num_bytes, num_samples in shards
    ]
    return json.dumps({"version": 2, "shards": entries}, sort_keys=True).encode()


def _described(columns: Mapping[str, str]) -> dict[str, Any]:
    return {
        "column_encodings": list(columns.values()),
        "column_names": list(columns),
        "column_sizes": [fixed_bytes_of(encoding) for encoding in columns.values()],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": None,
        "version": 2,
    }
