"""Writer of MDS shards as MosaicML Streaming reads them; Streaming also needs an ``index.json`` beside the shards.

The head of a shard has the offsets of its samples, so a shard is held in memory until it is finished.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np

from shoal.errors import UsageError
from shoal.formats.mds.decode_values import fixed_bytes_of
from shoal.formats.mds.encode_values import encode_value, encoding_for
from shoal.formats.shard_format import Sample
from shoal.formats.writing.encoder import EncodedRecord, WrittenShard, check_names
from shoal.index.shard_scan import Buffer, ShardScan
from shoal.index.table import Index

_MOST_BYTES = (1 << 32) - 1
INDEX_NAME = "index.json"


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

        Raises
        ------
        UsageError
            It has other columns than the first, or a value does not fit its encoding.
        """
        columns = self.columns
        if columns is None:
            check_names(sample)
            columns = {name: encoding_for(value) for name, value in sample.items()}
        if not columns or sample.keys() != columns.keys():
            msg = f"this sample has the columns {list(sample)}, and the shards have {list(columns)}"
            raise UsageError(msg, hint="all samples of an MDS dataset have the same columns, at least one")
        sizes, values = [], []
        for name, encoding in columns.items():
            try:
                data = encode_value(encoding, sample[name])
            except ValueError as error:
                if isinstance(error, UsageError):
                    raise
                msg = f"the column {name!r} is written as {encoding}, and this value is none: {error}"
                raise UsageError(msg, hint="say the encoding of each column with options={'columns': {...}}") from None
            if fixed_bytes_of(encoding) is None:
                sizes.append(len(data))
            values.append(data)
        record = b"".join([np.array(sizes, dtype="<u4").tobytes(), *values])
        if not record:
            msg = "a sample of no bytes cannot be told from the next one"
            raise UsageError(msg, hint="give it a column of text, bytes or numbers")
        self.columns = columns  # not those of a sample that is refused
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
        self._records_bytes = 0
        self._head_bytes = 0
        self._head_crc = 0

    @property
    def num_samples(self) -> int:
        """Samples added so far."""
        return len(self._sizes)

    @property
    def num_bytes(self) -> int:
        """Size of the shard if it ended now."""
        description = len(_description(self._encoder.columns or {}))
        return 4 * (self.num_samples + 2) + description + self._records_bytes

    @property
    def held_bytes(self) -> int:
        """Size of all records, which are held in memory."""
        return self._records_bytes

    def add(self, record: EncodedRecord) -> Sequence[Buffer]:
        """Add a record; no bytes are ready before the end.

        Raises
        ------
        UsageError
            The shard would have 4 GiB, more than its offsets can address.
        """
        if self.num_bytes + record.num_bytes + 4 > _MOST_BYTES:
            msg = f"an MDS shard ends before 4 GiB, and this one would have {self.num_bytes + record.num_bytes} bytes"
            raise UsageError(msg, hint="make shards smaller")
        self._records += record.parts
        self._sizes.append(record.num_bytes)
        self._crcs.append(crc32(record.parts[0]))
        self._records_bytes += record.num_bytes
        return ()

    def finish(self) -> Sequence[Buffer]:
        """Return the whole shard."""
        description = _description(self._encoder.columns or {})
        table_bytes = 4 * (self.num_samples + 2)
        self._head_bytes = table_bytes + len(description)
        starts = self._starts()
        records, self._records = self._records, []
        head = np.array([self.num_samples, *starts], dtype="<u4").tobytes() + description
        self._head_crc = crc32(head)
        return [head, *records]

    def written(self) -> WrittenShard:
        """Return the description of the shard."""
        starts = self._starts()
        words = starts.astype("<u4")
        layout = [crc32(words[at : at + 2].tobytes()) for at in range(self.num_samples)]
        columns = [[name, encoding] for name, encoding in (self._encoder.columns or {}).items()]
        scan = ShardScan(starts, np.array(layout, dtype=np.uint32), head={"columns": columns})
        crcs = np.array(self._crcs, dtype=np.uint32)
        return WrittenShard(scan, int(starts[-1]), record_crcs=crcs, frame_crc=self._head_crc)

    def _starts(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.cumsum([self._head_bytes, *self._sizes], dtype=np.int64)


def mds_index(columns: Sequence[Sequence[str]], shards: Sequence[tuple[str, int, int]]) -> bytes:
    """Return the ``index.json`` of MosaicML Streaming; ``shards`` are names, bytes and numbers of samples."""
    about = _about(dict(map(tuple, columns)))  # type: ignore[arg-type]  # pairs
    entries = [
        {
            **about,
            "raw_data": {"basename": name, "bytes": num_bytes, "hashes": {}},
            "samples": num_samples,
            "zip_data": None,
        }
        for name, num_bytes, num_samples in shards
    ]
    return json.dumps({"version": 2, "shards": entries}, sort_keys=True).encode()


def mds_index_of(index: Index) -> bytes:
    """Return the ``index.json`` for the shards of an index.

    Raises
    ------
    UsageError
        They do not all have the same columns.
    """
    heads = [head["columns"] for _, head in sorted(index.shard_heads.items())]
    other = next((number for number, columns in enumerate(heads) if columns != heads[0]), None)
    if other is not None:
        msg = f"{index.shard_names[other]} has the columns {heads[other]}, and {index.shard_names[0]} has {heads[0]}"
        raise UsageError(msg, hint="say the encodings for all shards with options={'columns': {...}}")
    first = index.extent_first_sample[index.shard_first_extent]
    counts = (first[1:] - first[:-1]).tolist()
    return mds_index(heads[0], list(zip(index.shard_names, index.shard_bytes.tolist(), counts, strict=True)))


def _about(columns: Mapping[str, str]) -> dict[str, Any]:
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


def _description(columns: Mapping[str, str]) -> bytes:
    return json.dumps(_about(columns), sort_keys=True).encode()
