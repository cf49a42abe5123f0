"""Writer of JSON Lines: one compact object a line, in UTF-8, with no needless escapes."""

from __future__ import annotations

import json
from zlib import crc32

from shoal.errors import UsageError
from shoal.formats.rows.lines.json_values import check_keys, plain_value
from shoal.formats.shard_format import Sample
from shoal.formats.writing.encoder import AppendedShard, EncodedRecord, check_names

_HINT = (
    "JSON holds text, numbers, lists and objects: fields of a tar are bytes until they are decoded (`shoal repack "
    "--decode`); for images and other bytes take another format"
)


class JsonLinesEncoder:
    """The format of one JSON object a line.

    Values are JSON values; numpy arrays and numbers become lists and numbers, tuples lists. Bytes are refused.
    """

    name: str = "jsonl"
    suffix: str = ".jsonl"

    def record(self, sample: Sample) -> EncodedRecord:
        """Encode a sample as a line.

        Raises `UsageError`: JSON cannot hold a value.
        """
        check_names(sample)
        try:
            line = _dumps(sample).encode("utf-8") + b"\n"
            if line.find(b"{", 1) > 0:  # probably an object inside
                check_keys(sample)
        except (TypeError, ValueError, RecursionError) as error:
            msg = f"the sample {_named(sample)} cannot be written as JSON: {error}"
            if fields := [name for name, value in sample.items() if isinstance(value, bytes)]:
                msg += f" (the fields {', '.join(map(repr, fields))})"
            raise UsageError(msg, hint=_HINT) from None
        return EncodedRecord((line,), len(line), crc32(line))

    def begin(self) -> AppendedShard:
        """Begin a new shard."""
        return AppendedShard()


# Created once: json.dumps with options creates an encoder for each call.
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=plain_value).encode


def _named(sample: Sample) -> str:
    return repr(sample.get("__key__", sample.get("key", f"with the fields {', '.join(sample)}")))
