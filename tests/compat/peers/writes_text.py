"""Delimited files by their writers, and TFRecords of messages with lists; see `writes`."""

from __future__ import annotations

import csv
import io
import random
from pathlib import Path
from typing import Any

from tests.compat.peers.plainly import plain

Found = dict[str, tuple[str, list[Any]]]
_NUM_ODD = 40


def text_rows(num_rows: int) -> list[dict[str, str]]:
    """Rows of text with what has to be quoted."""
    odd = ['a "quoted" word', "two\nlines", "a,b;c\td", "", " spaces ", '"', "carriage\r\nreturn", "é\u4e2d"]
    return [{"n": str(row), "text": odd[row % len(odd)], "other": f"row {row}"} for row in range(num_rows)]


def as_pandas_reads(path: Path, **options: Any) -> list[dict[str, str]]:
    """The rows of a delimited file as text."""
    import pandas as pd

    found = pd.read_csv(path, dtype=str, keep_default_na=False, na_filter=False, index_col=False, **options)
    rows: list[dict[str, str]] = found.to_dict("records")
    return rows


def as_csv_reads(path: Path, **options: Any) -> list[dict[str, str]]:
    """The same by Python's csv."""
    with path.open(newline="", encoding="utf-8") as file:
        names, *rows = [row for row in csv.reader(file, **options) if row]
    return [dict(zip(names, row, strict=True)) for row in rows]


def delimited(directory: Path, num_rows: int) -> Found:
    """Files of several writers, and odd ones."""
    writers = (("pandas", _pandas), ("polars", _polars), ("duckdb", _duckdb))
    found: Found = {}
    for name, write in writers:
        (directory / name).mkdir()
        for source, (_, rows) in write(directory / name, num_rows).items():
            found[f"{name}/{source}"] = (f"{name}/{source}", rows)
    return found


def _pandas(directory: Path, num_rows: int) -> Found:
    """Files that pandas wrote, and generated ones that it and csv read alike, wherever quotes and returns stand."""
    import pandas as pd

    frame = pd.DataFrame(text_rows(num_rows))
    frame.to_csv(directory / "index.csv")
    frame.to_csv(directory / "all.csv", quoting=csv.QUOTE_ALL)
    frame.to_csv(directory / "returns.csv", lineterminator="\r", index=False, quoting=csv.QUOTE_ALL)
    frame.to_csv(directory / "tabs.tsv", sep="\t", lineterminator="\r\n")
    frame.set_axis(["a", "a", "a.1"], axis=1).to_csv(directory / "names.csv")
    frame.to_csv(directory / "packed.csv.gz")
    found: Found = {}
    for name in ("index.csv", "all.csv", "returns.csv", "tabs.tsv", "names.csv", "packed.csv.gz"):
        options = {"sep": "\t"} if name.endswith(".tsv") else {}
        found[name] = (name, [plain(row) for row in as_pandas_reads(directory / name, **options)])
    chosen = random.Random(16)
    while len(found) < _NUM_ODD + 6:
        text = "x,y\n" + "".join(chosen.choice('ab",,\n\r "') for _ in range(chosen.randrange(4, 30)))
        path = directory / f"odd-{len(found)}.csv"
        path.write_bytes(text.encode())
        rows = _alike(path)
        if rows and any('"' in value for row in rows for value in row.values()):
            found[path.name] = (path.name, [plain(row) for row in rows])
        else:
            path.unlink()
    return found


def _alike(path: Path) -> list[dict[str, str]] | None:
    """What csv and pandas read, where it is the same and no quote is open at the end."""
    import pandas as pd

    try:
        rows = as_pandas_reads(path)
        read = csv.reader(io.StringIO(path.read_bytes().decode(), newline=""))
        lines = [row for row in read if len(row) > 1 or "".join(row).strip()]
    except (pd.errors.ParserError, csv.Error):
        return None
    if any(len(line) != 2 for line in lines):
        return None
    return rows if [[*row.values()] for row in rows] == lines[1:] else None


def _polars(directory: Path, num_rows: int) -> Found:
    """Files that polars wrote, as csv reads them."""
    import polars as pl

    frame = pl.DataFrame(text_rows(num_rows))
    frame.write_csv(directory / "text.csv")
    frame.write_csv(directory / "always.csv", quote_style="always")
    frame.write_csv(directory / "tabs.tsv", separator="\t", line_terminator="\r\n")
    found: Found = {}
    for name in ("text.csv", "always.csv", "tabs.tsv"):
        options = {"delimiter": "\t"} if name.endswith(".tsv") else {}
        found[name] = (name, [plain(row) for row in as_csv_reads(directory / name, **options)])
    return found


def _duckdb(directory: Path, num_rows: int) -> Found:
    """Files that duckdb wrote, as csv reads them."""
    import duckdb

    connection = duckdb.connect()
    connection.execute("create table t (n varchar, text varchar, other varchar)")
    connection.executemany("insert into t values (?, ?, ?)", [[*row.values()] for row in text_rows(num_rows)])
    connection.execute(f"copy t to '{directory / 'text.csv'}' (header)")
    connection.execute(f"copy t to '{directory / 'forced.csv'}' (header, force_quote *)")
    return {name: (name, [plain(row) for row in as_csv_reads(directory / name)]) for name in ("text.csv", "forced.csv")}


def sequences(directory: Path, num_rows: int) -> Found:
    """Sequence examples, and examples in parts that protobuf merges, as protobuf reads them."""
    import tfrecord as tf
    from tfrecord import example_pb2

    records = []
    for row in range(num_rows):
        context = {"id": (f"video {row}".encode(), "byte"), "labels": ([row, 2], "int")}
        frames = [[row / 4] * (step % 3) for step in range(row % 5)]
        lists = {"rgb": (frames, "float"), "names": ([[b"x"] * step for step in range(row % 4)], "byte")}
        records.append(tf.TFRecordWriter.serialize_tf_sequence_example(context, lists))
    _write(directory / "sequences.tfrecord", records)
    merged = [_merged(row) for row in range(num_rows)]
    _write(directory / "merged.tfrecord", merged)
    found: Found = {}
    for name, chosen in (("sequences.tfrecord", records), ("merged.tfrecord", merged)):
        rows = []
        for record in chosen:
            message = example_pb2.SequenceExample()
            message.ParseFromString(record)
            features = {key: _value(value) for key, value in message.context.feature.items()}
            lists_read = {
                key: [_value(step, always_list=True) for step in value.feature]
                for key, value in message.feature_lists.feature_list.items()
            }
            rows.append(plain({**features, **lists_read}))
        found[name] = (name, rows)
    return found


def _merged(row: int) -> bytes:
    """An example whose features come in parts, some of another kind than the part before."""
    from tfrecord import example_pb2 as pb

    chosen = random.Random(row)
    kinds = (
        lambda: pb.Feature(int64_list=pb.Int64List(value=[chosen.randrange(-9, 300)])),
        lambda: pb.Feature(float_list=pb.FloatList(value=[chosen.random()] * chosen.randrange(3))),
        lambda: pb.Feature(bytes_list=pb.BytesList(value=[b"a" * chosen.randrange(3)])),
    )
    entries = b""
    for key in (b"x", b"y", b"x"):
        parts = [chosen.choice(kinds)().SerializeToString() for _ in range(chosen.randrange(1, 4))]
        halves = (b"".join(parts[:1]), b"".join(parts[1:]))
        entries += _field(1, _field(1, key) + b"".join(_field(2, half) for half in halves))
    return _field(1, entries) + _field(1, _field(1, _field(1, b"z") + _field(2, kinds[0]().SerializeToString())))


def _field(number: int, data: bytes) -> bytes:
    size = [len(data) & 127 | 128, len(data) >> 7] if len(data) > 127 else [len(data)]
    return bytes([number << 3 | 2, *size]) + data


def _value(feature: Any, *, always_list: bool = False) -> Any:
    import numpy as np

    kind = feature.WhichOneof("kind")
    if kind == "bytes_list":
        values = list(feature.bytes_list.value)
        return values[0] if len(values) == 1 and not always_list else values
    if kind is None:
        return None
    return np.array(getattr(feature, kind).value, dtype=np.float32 if kind == "float_list" else np.int64)


def _write(path: Path, records: list[bytes]) -> None:
    import tfrecord as tf

    writer = tf.TFRecordWriter(str(path))
    for record in records:
        size = len(record).to_bytes(8, "little")
        writer.file.write(size + tf.TFRecordWriter.masked_crc(size) + record + tf.TFRecordWriter.masked_crc(record))
    writer.close()
