"""Small shards of every format with the samples in them, for the conformance suite and for the fuzzer."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
from tests.formats import writers

from shoal.formats.folder.reader import Folder
from shoal.formats.format_registry import FORMATS, format_named
from shoal.formats.rows.lines.delimited import Delimited
from shoal.formats.rows.lines.reader import JsonLines, Text
from shoal.formats.rows.mds.reader import Mds
from shoal.formats.rows.tar.reader import Tar
from shoal.formats.rows.tfrecord.reader import TFRecord
from shoal.formats.rows.tfrecord.recordio import RecordIO
from shoal.formats.shard_format import Format, Sample
from shoal.formats.tables.arrow import Arrow
from shoal.formats.tables.parquet import Parquet

Shards = dict[str, tuple[bytes, list[Sample]]]

HUGE_BYTES = 5_000_000  # more than a window of any format
_HUGE = "0123456789" * (HUGE_BYTES // 10)
_WORDS = ["", "one", "two words", "d\u00e9j\u00e0 vu \U0001f41f", "three"]


@dataclass(frozen=True)
class Made:
    """One format: its shards, others that must find the same, and whether all of its bytes have checksums."""

    format: Format
    shards: Shards
    same_as: tuple[Format, ...] = ()
    detects_damage: bool = False


def _tar() -> Made:
    def shard(texts: list[str]) -> tuple[bytes, list[Sample]]:
        members: dict[str, bytes] = {}
        samples: list[Sample] = []
        for number, text in enumerate(texts):
            sample: Sample = {"__key__": f"a b/{number:03d}", "txt": text.encode(), "cls": b"%d" % number}
            members |= {f"{sample['__key__']}.{ext}": sample[ext] for ext in ("txt", "cls")}
            samples.append(sample)
        return writers.tar_of(members), samples

    long = "d\u00e9/" * 60 + "key"
    shards: Shards = {
        "some.tar": shard(_WORDS),
        "none.tar": shard([]),
        "huge.tar": shard([_HUGE]),
        "many \u00e9.tar": shard([str(n) for n in range(40)]),
        "pax.tar": (writers.tar_of({f"{long}.txt": b"long name"}), [{"__key__": long, "txt": b"long name"}]),
    }
    return Made(Tar(), shards, tuple(Tar(window_bytes=size) for size in (512, 1024, 8192)))


def _lines(name: str, encode: Callable[[str], str], decode: Callable[[str], Sample], head: str = "") -> Shards:
    words = [word for word in _WORDS if word]

    def shard(texts: list[str], end: str = "\n") -> tuple[bytes, list[Sample]]:
        data = head + end.join(map(encode, texts)) + (end if texts and end == "\r\n" else "")
        return data.encode(), [decode(text) for text in texts]

    return {
        f"some.{name}": shard(words),
        f"windows.{name}": shard(words, "\r\n"),
        f"none.{name}": shard([]),
        f"blank.{name}": ((head + "\n \n\n").encode(), []),
        f"marked.{name}": (b"\xef\xbb\xbf" + shard(["x"])[0], [decode("x")]),
        f"huge.{name}": shard([_HUGE]),
        f"many \u00e9.{name}": shard([str(n) for n in range(40)]),
    }


def _jsonl() -> Made:
    shards = _lines("jsonl", lambda text: json.dumps({"t": text, "n": [1.5]}), lambda text: {"t": text, "n": [1.5]})
    shards["empty file.jsonl"] = (b"", [])
    array = [{"t": text, "n": [1.5]} for text in _WORDS]
    shards["some in an array.jsonl"] = (json.dumps(array, indent=1).encode(), list[Sample](array))
    return Made(JsonLines(), shards, tuple(JsonLines(window_bytes=size) for size in (7, 64, 4096)))


def _delimited(name: str, delimiter: str) -> Made:
    def make(window_bytes: int) -> Format:
        suffixes = (f".{name}",)
        return Delimited(name=name, suffixes=suffixes, delimiter=delimiter, window_bytes=window_bytes)

    head = f"t{delimiter}u\n"
    shards = _lines(name, lambda text: f'"{text}"{delimiter}1', lambda text: {"t": text, "u": "1"}, head)
    shards[f"quotes.{name}"] = (
        (head + f'"a\n""b""{delimiter}"{delimiter}x\n{delimiter}\n').encode(),
        [{"t": f'a\n"b"{delimiter}', "u": "x"}, {"t": "", "u": ""}],
    )
    return Made(format_named(name), shards, tuple(make(size) for size in (7, 64, 4096)))


def _text() -> Made:
    shards = _lines("txt", str, lambda text: {"text": text})
    return Made(Text(), shards, tuple(Text(window_bytes=size) for size in (7, 64, 4096)))


def _tfrecord() -> Made:
    def shard(samples: list[Sample]) -> tuple[bytes, list[Sample]]:
        as_lists = [{k: [v] if isinstance(v, bytes) else v for k, v in sample.items()} for sample in samples]
        return b"".join(writers.framed(writers.example(sample)) for sample in as_lists), samples

    rows = [
        {"image": text.encode(), "label": np.array([n, -n]), "x": np.array([0.5] * n, dtype=np.float32)}
        for n, text in enumerate(_WORDS)
    ]
    records = [b"", b"\x07 no example", b"another"]
    shards: Shards = {
        "some.tfrecord": shard(rows),
        "none.tfrecord": (b"", []),
        "huge.tfrecord": shard([{"image": _HUGE.encode()}]),
        "many \u00e9.tfrecord": shard([{"label": np.arange(n, n + 40)} for n in range(40)]),
        "records.tfrecord": (b"".join(map(writers.framed, records)), [{"record": record} for record in records]),
    }
    same_as = tuple(TFRecord(window_bytes=size) for size in (12, 40, 4096))
    return Made(TFRecord(), shards, same_as, detects_damage=True)


def _mds() -> Made:
    columns = {"n": ("int32", 4), "t": ("str", None), "a": ("ndarray:float32:2", 8), "b": ("bytes", None)}

    def shard(texts: list[str]) -> tuple[bytes, list[Sample]]:
        values, samples = [], []
        for number, text in enumerate(texts):
            array = np.array([number, 0.5], dtype=np.float32)
            values.append([struct.pack("<i", number), text.encode(), array.tobytes(), text.encode()[:3]])
            samples.append({"a": array, "b": text.encode()[:3], "n": np.int32(number), "t": text})
        return writers.mds_of(columns, values), samples

    fixed = [[struct.pack("<q", n), np.arange(n, n + 4, dtype=np.uint16).tobytes()] for n in range(5)]
    shards: Shards = {
        "some.mds": shard(_WORDS),
        "none.mds": shard([]),
        "huge.mds": shard([_HUGE]),
        "many \u00e9.mds": shard([str(n) for n in range(40)]),
        "fixed.mds": (
            writers.mds_of({"n": ("int", 8), "x": ("ndarray:uint16:4", 8)}, fixed),
            [{"n": n, "x": np.arange(n, n + 4, dtype=np.uint16)} for n in range(5)],
        ),
    }
    return Made(Mds(), shards)


def _recordio() -> Made:
    def shard(texts: list[bytes]) -> tuple[bytes, list[Sample]]:
        records, samples = [], []
        for number, text in enumerate(texts):
            labels = np.arange(number, dtype=np.float32)
            head = struct.pack("<IfQQ", number, 0.0 if number else 7.0, 100 + number, 0) + labels.tobytes()
            records.append(writers.recordio_record(head + text))
            samples.append({"label": labels if number else 7.0, "id": 100 + number, "data": text})
        return b"".join(records), samples

    shards: Shards = {
        "some.rec": shard([text.encode() for text in _WORDS]),
        "cut.rec": shard([writers.RECORDIO_MAGIC * 3 + b"x", b"y" + writers.RECORDIO_MAGIC]),
        "none.rec": (b"", []),
        "huge.rec": shard([_HUGE.encode()]),
        "many \u00e9.rec": shard([b"%d" % n for n in range(40)]),
    }
    return Made(RecordIO(), shards, tuple(RecordIO(window_bytes=size) for size in (8, 40, 4096)))


def _rows() -> list[Sample]:
    return [
        {"n": n, "t": text, "x": np.array([n, 1], dtype=np.int16), "many": [text] * n}
        for n, text in enumerate([*_WORDS, *_WORDS])
    ]


def _tables(suffix: str, write: Callable[[Any, int], bytes]) -> Shards:
    import pyarrow as pa

    schema = pa.schema(
        [("n", pa.int64()), ("t", pa.string()), ("x", pa.list_(pa.int16())), ("many", pa.list_(pa.string()))]
    )

    def shard(rows: list[Sample], per_piece: int) -> tuple[bytes, list[Sample]]:
        return write(pa.Table.from_pylist(rows, schema=schema), per_piece), rows

    rows = _rows()
    return {
        f"some.{suffix}": shard(rows, 3),
        f"single.{suffix}": shard(rows[:4], 1),
        f"none.{suffix}": shard([], 3),
        f"huge.{suffix}": shard([{"n": 1, "t": _HUGE, "x": np.zeros(0, np.int16), "many": []}], 3),
        f"many \u00e9.{suffix}": shard(rows * 4, 1),
    }


def _parquet() -> Made:
    import pyarrow.parquet as pq

    def write(table: Any, per_piece: int) -> bytes:
        out = io.BytesIO()
        pq.write_table(table, out, row_group_size=per_piece)
        return out.getvalue()

    return Made(Parquet(), _tables("parquet", write))


def _arrow() -> Made:
    import pyarrow as pa

    def write(open_writer: Any, table: Any, per_piece: int) -> bytes:
        out = io.BytesIO()
        with open_writer(out, table.schema) as writer:
            writer.write_table(table, max_chunksize=per_piece)
        return out.getvalue()

    files = _tables("arrow", partial(write, pa.ipc.new_file))
    return Made(Arrow(), files | _tables("stream.arrow", partial(write, pa.ipc.new_stream)))


def _folder() -> Made:
    shards: Shards = {
        f"a b/{word}.jpg": (word.encode(), [{"__key__": f"a b/{word}", "jpg": word.encode()}]) for word in _WORDS[1:]
    }
    return Made(Folder(), shards | {"none.jpg": (b"", [])})


_PLAIN: Mapping[str, Callable[[], Made]] = {
    "folder": _folder,
    "tar": _tar,
    "jsonl": _jsonl,
    "tfrecord": _tfrecord,
    "mds": _mds,
    "recordio": _recordio,
    "csv": partial(_delimited, "csv", ","),
    "tsv": partial(_delimited, "tsv", "\t"),
    "text": _text,
    "parquet": _parquet,
    "arrow": _arrow,
}


@cache
def _plain(name: str) -> Made:
    """The shards of a format without compression, which all tests share and none changes."""
    return _PLAIN[name]()


_CODECS_WITH_CHECKSUMS = ("gz", "zlib", "bz2", "xz")


def made(name: str, *, huge: bool = True) -> Made:
    """The shards of a format by its name, compressed ones too; without the huge one if it is not wanted."""
    inner, _, codec = name.partition(".")
    plain = _plain(inner)
    chosen = {shard: known for shard, known in plain.shards.items() if huge or not shard.startswith("huge")}
    if not codec:
        return replace(plain, shards=chosen)
    shards = {f"{shard}.{codec}": (writers.COMPRESS[codec](data), samples) for shard, (data, samples) in chosen.items()}
    if name == "jsonl.zst":  # of several frames, which are pieces
        lines = [b'{"n": %d, "x": "%s"}\n' % (number, b"x" * 33_000) for number in range(7)]
        data = b"".join(map(writers.COMPRESS[codec], lines))
        shards[f"some frames.{name}"] = (data, [{"n": number, "x": "x" * 33_000} for number in range(7)])
    return Made(FORMATS[name], shards, detects_damage=codec in _CODECS_WITH_CHECKSUMS)
