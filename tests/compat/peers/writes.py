"""Shards by the writers of other packages, and what their own readers give for them.

``python writes.py PEER DIRECTORY [ROWS]``, in the environment of that peer, writes ``DIRECTORY/expected.json``: for
each name a source below the directory and the number of its list of rows, and these lists, as `plainly.plain` has them.

``tests/formats/data/peers`` was made by this with 8 rows.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.compat.peers import writes_text
from tests.compat.peers.plainly import plain

Found = dict[str, tuple[str, list[Any]]]
_ROWS = int(sys.argv[3]) if len(sys.argv) > 3 else 40


def table_rows() -> list[dict[str, Any]]:
    """Rows of what tables can hold, with gaps."""
    return [
        {
            "id": row,
            "real": row / 3,
            "yes": None if row % 9 == 0 else row % 2 == 0,
            "text": None if row % 7 == 0 else f"row {row} " + "é\u4e2d" * (row % 5),
            "long": "x" * row,
            "bytes": bytes(range(row % 6)),
            "list": None if row % 11 == 0 else list(range(row % 4)),
            "texts": [f"{place}" for place in range(row % 3)],
            "deep": {"x": row, "y": {"z": [str(row)]}},
            "day": dt.date(2026, 1, 1) + dt.timedelta(days=row),
            "when": dt.datetime(2026, 1, 1, 12) + dt.timedelta(seconds=row, microseconds=row),  # noqa: DTZ001
            "money": decimal.Decimal(row) / 4,
            "kind": "abc"[row % 3],
        }
        for row in range(_ROWS)
    ]


def polars(directory: Path) -> Found:
    import polars as pl

    frame = pl.DataFrame(table_rows()).with_columns(
        pl.col("kind").cast(pl.Categorical),
        pl.col("id").cast(pl.Int16).alias("small"),
        (pl.col("id").cast(pl.UInt64) + (1 << 63)).alias("wide"),
        pl.col("real").cast(pl.Float32).alias("short"),
    )
    for codec in ("zstd", "snappy", "uncompressed"):
        frame.write_parquet(directory / f"{codec}.parquet", compression=codec, row_group_size=7)
    frame.write_ipc(directory / "file.arrow", record_batch_size=7)
    with (directory / "stream.arrows").open("wb") as file:
        frame.write_ipc_stream(file)
    rows = [plain(row) for row in frame.to_dicts()]
    names = ("zstd.parquet", "snappy.parquet", "uncompressed.parquet", "file.arrow", "stream.arrows")
    return {name: (name, rows) for name in names}


def duckdb(directory: Path) -> Found:
    import duckdb as db

    query = """
        SELECT i AS id, i / 3.0 AS real, CASE WHEN i % 7 = 0 THEN NULL ELSE 'row ' || i END AS text,
            [i, NULL, i + 1] AS list, [i, i + 1]::INTEGER[2] AS pair, {'x': i, 'y': ['a', 'b']} AS deep,
            DATE '2026-01-01' + i::INTEGER AS day, TIMESTAMP '2026-01-01 12:00:00' + INTERVAL (i) SECOND AS moment,
            (i::DECIMAL(9, 2) / 4)::DECIMAL(9, 2) AS money, (i % 200)::UTINYINT AS small, encode('b' || i) AS bytes,
            MAP {'k': i} AS pairs, i % 2 = 0 AS yes
        FROM range(@) t(i)
    """.replace("@", str(40 * _ROWS))
    found = {}
    for codec in ("snappy", "zstd", "gzip", "lz4_raw", "brotli"):
        name = f"{codec}.parquet"
        db.execute(f"COPY ({query}) TO '{directory / name}' (FORMAT parquet, CODEC '{codec}', ROW_GROUP_SIZE 100)")
        read = db.execute(f"SELECT * FROM '{directory / name}'").to_arrow_table()
        found[name] = (name, [plain(row) for row in read.to_pylist()])
    db.execute(
        f"COPY (SELECT i AS id, i % 3 AS part, 'a b/' || (i % 2) AS name FROM range(60) t(i)) TO '{directory / 'hive'}'"
        " (FORMAT parquet, PARTITION_BY (part, name))"
    )
    files = sorted(path.relative_to(directory / "hive").as_posix() for path in (directory / "hive").rglob("*.parquet"))
    rows = []
    for file in files:
        sql = f"SELECT id, part, name FROM read_parquet('{directory / 'hive' / file}', hive_types_autocast = false)"
        rows += [plain(row) for row in db.execute(sql).to_arrow_table().to_pylist()]
    return {**found, "hive": ("hive", rows)}


def pyarrow(directory: Path) -> Found:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(table_rows())
    views = table.set_column(3, "text", table.column("text").cast(pa.string_view()))
    table = table.set_column(12, "kind", table.column("kind").dictionary_encode())
    for version in ("1.0", "2.4", "2.6"):
        pq.write_table(table, directory / f"v{version}.parquet", version=version, row_group_size=7)
    pq.write_table(table, directory / "pages.parquet", data_page_version="2.0", data_page_size=100, compression="gzip")
    rows = [plain(row) for row in table.to_pylist()]
    found = {name: (name, rows) for name in ("v1.0.parquet", "v2.4.parquet", "v2.6.parquet", "pages.parquet")}
    for name, kind in (("views.arrow", pa.ipc.new_file), ("views.arrows", pa.ipc.new_stream)):
        with kind(directory / name, views.schema) as writer:
            writer.write_table(views, max_chunksize=9)
        found[name] = (name, [plain(row) for row in views.to_pylist()])
    for codec in ("lz4", "zstd"):
        name = f"{codec}.feather"
        options = pa.ipc.IpcWriteOptions(compression=codec)
        with pa.ipc.new_file(directory / name, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=9)
        found[name] = (name, rows)
    return found


def spark(directory: Path) -> Found:
    """Timestamps are of its old kind of 96 bits, which is the default, and of the new one.

    Of the new ones the file says that they are instants, by UTC, which Spark's Python leaves out.
    """
    from pyspark.sql import SparkSession

    about = "id int, real double, yes boolean, text string, bytes binary, list array<int>, texts array<string>, deep "
    about += "struct<x:bigint,y:struct<z:array<string>>>, day date, when timestamp, money decimal(9,2), kind string"
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    names = [column.partition(" ")[0] for column in about.split(", ")]
    frame = session.createDataFrame([tuple(row[name] for name in names) for row in table_rows()], about).coalesce(1)
    found: Found = {}

    def write(source: str, *partitions: str, codec: str) -> None:
        frame.write.option("compression", codec).partitionBy(*partitions).parquet(str(directory / source))
        read = session.read.schema(about).parquet(str(directory / source)).sort(*partitions, "id").collect()
        rows = [row.asDict(recursive=True) for row in read]
        zone = None if source.startswith("INT96") else dt.UTC
        found[source] = (source, [plain({**row, "when": row["when"].replace(tzinfo=zone)}) for row in rows])

    for kind in ("INT96", "TIMESTAMP_MICROS"):
        session.conf.set("spark.sql.parquet.outputTimestampType", kind)
        for codec in ("snappy", "zstd", "gzip"):
            write(f"{kind}-{codec}", codec=codec)
    write("hive", "kind", codec="snappy")
    session.stop()
    return found


def datasets(directory: Path) -> Found:
    import datasets as hf

    rows = [{"id": row, "text": f"row {row}", "tokens": [row] * (row % 4), "label": row % 2} for row in range(_ROWS)]
    features = hf.Features(
        {
            "id": hf.Value("int32"),
            "text": hf.Value("large_string"),
            "tokens": hf.List(hf.Value("uint16")),
            "label": hf.ClassLabel(names=["cat", "dog"]),
        }
    )
    made = hf.Dataset.from_list(rows, features=features)
    made.save_to_disk(str(directory / "saved"), num_shards=3)
    made.to_parquet(str(directory / "rows.parquet"), batch_size=7)
    cached = str(directory / "cache.arrow")
    made.map(lambda row: row, cache_file_name=cached, writer_batch_size=5, load_from_cache_file=False)
    found = [plain(row) for row in hf.load_from_disk(str(directory / "saved"))]
    return {name: (name, found) for name in ("saved", "rows.parquet", "cache.arrow")} | _splits(directory, made)


def _splits(directory: Path, made: Any) -> Found:
    """Several splits in one directory: saved, as the Hub has them, and in files and directories named after them."""
    import datasets as hf

    parts = {"train": made, "validation": made.select(range(9, 20)), "test": made.select(range(7))}
    hf.DatasetDict({"first": parts["train"], "second": parts["test"]}).save_to_disk(str(directory / "splits"))
    layouts = {
        "pushed": "data/{}-00000-of-00001.parquet",
        "directories": "{}/rows.parquet",
        "files": "rows-{}.parquet",
    }
    found: Found = {}
    for layout, name in layouts.items():
        for split, rows in parts.items():
            path = directory / layout / name.format(split)
            path.parent.mkdir(parents=True, exist_ok=True)
            rows.to_parquet(str(path))
        loaded = hf.load_dataset(str(directory / layout), cache_dir=str(directory / "cache"))
        found |= {f"split {split} of {layout}": (layout, [plain(row) for row in loaded[split]]) for split in parts}
    loaded = hf.load_from_disk(str(directory / "splits"))
    return found | {f"split {split} of splits": ("splits", [plain(row) for row in loaded[split]]) for split in loaded}


def tfrecord(directory: Path) -> Found:
    import tfrecord as tf

    path = directory / "rows.tfrecord"
    writer = tf.TFRecordWriter(str(path))
    for row in range(_ROWS):
        writer.write(
            {
                "label": (row - 5, "int"),
                "scores": ([row / 4, -1.5], "float"),
                "data": (bytes(range(row % 7)) + b"x", "byte"),
                "many": ([1] * (row % 3 + 1), "int"),
            }
        )
    writer.close()
    read = list(tf.tfrecord_loader(str(path), None, None))
    rows = {"rows.tfrecord": ("rows.tfrecord", [plain(_features(row)) for row in read])}
    return rows | writes_text.sequences(directory, _ROWS)


def _features(row: dict[str, Any]) -> dict[str, Any]:
    """Numbers are arrays, as tfrecord gives them; its bytes come as an array of single ones."""
    return {name: bytes(value) if name == "data" else value for name, value in sorted(row.items())}


def delimited(directory: Path) -> Found:
    return writes_text.delimited(directory, _ROWS)


def webdataset(directory: Path) -> Found:
    import numpy as np
    import webdataset as wds
    from PIL import Image

    with wds.ShardWriter(str(directory / "s-%04d.tar"), maxcount=15, verbose=0) as writer:
        for row in range(_ROWS):
            pixels = (np.arange(60).reshape(4, 5, 3) + row).astype(np.uint8)
            writer.write(
                {
                    "__key__": f"sub.dir/{row:04d}",
                    "txt": f"row é {row}",
                    "cls": row,
                    "json": {"a": [row, None], "b": "x"},
                    "npy": np.arange(row % 4, dtype=np.int16),
                    "x.npz": {"a": np.arange(row % 3)},
                    "mp": {"n": row, "b": b"\x00"},
                    "seg.png": Image.fromarray(pixels),
                    "jpg": pixels,
                    "bin": bytes(range(row % 5)),
                    "mp4": b"video",
                    "txt.gz": f"row {row}",  # which the writer compresses
                }
            )
    urls = [str(path) for path in sorted(directory.glob("*.tar"))]
    found: Found = {}
    for spec in ("rgb8", "rgb", "pil", "l8", "rgba8"):
        read = wds.WebDataset(urls, shardshuffle=False).decode(spec)
        found[f"decoded {spec}"] = ("*.tar", [plain(_own(sample)) for sample in read])
    read = wds.WebDataset(urls, shardshuffle=False)
    found["raw"] = ("*.tar", [plain(_own(sample)) for sample in read])
    return found


def _own(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sample.items() if name not in ("__url__", "__local_path__")}


def streaming(directory: Path) -> Found:
    import numpy as np
    from streaming import CSVWriter, JSONWriter, LocalDataset, MDSWriter, XSVWriter

    columns = {"n": "int", "s": "str", "b": "bytes", "u": "uint16", "f": "float32", "a": "ndarray", "j": "json"}
    fixed = {"n": "int", "tokens": "ndarray:uint16:8", "f": "float64"}
    found: Found = {}
    for name, codec in (("plain", None), ("zstd", "zstd:3"), ("gz", "gz"), ("br", "br"), ("snappy", "snappy")):
        with MDSWriter(out=str(directory / name), columns=columns, size_limit=900, compression=codec) as writer:
            for row in range(_ROWS):
                array = np.arange(row % 5 + 1, dtype=np.int32)  # it refuses empty ones
                values = {"n": row - 3, "s": "é" * (row % 4), "b": bytes(row % 3), "u": np.uint16(row), "a": array}
                writer.write({**values, "f": np.float32(row / 3), "j": {"x": [row]}})
        suffix = {"plain": "mds", "zstd": "mds.zstd", "gz": "mds.gz", "br": "mds.br", "snappy": "mds.snappy"}[name]
        if codec is None:
            read = LocalDataset(str(directory / name))
            rows = [plain(read[row]) for row in range(_ROWS)]
        found[name] = (f"{name}/*.{suffix}", rows)
    with MDSWriter(out=str(directory / "fixed"), columns=fixed, size_limit=900) as writer:
        for row in range(_ROWS):
            writer.write({"n": row, "tokens": np.arange(8, dtype=np.uint16) + row, "f": np.float64(row / 7)})
    read = LocalDataset(str(directory / "fixed"))
    found["fixed"] = ("fixed/*.mds", [plain(read[row]) for row in range(_ROWS)])
    with JSONWriter(out=str(directory / "json"), columns={"n": "int", "s": "str"}) as writer:
        for row in range(_ROWS):
            writer.write({"n": row, "s": f"text {row}"})
    with CSVWriter(out=str(directory / "csv"), columns={"n": "int", "s": "str"}) as writer:
        for row in range(_ROWS):
            writer.write({"n": row, "s": f"text {row}"})
    with XSVWriter(out=str(directory / "xsv"), columns={"n": "int", "s": "str"}, separator=";") as writer:
        for row in range(_ROWS):
            writer.write({"n": row, "s": f"text {row}"})
    odd = ["", "x", "return\r", "\r", " ", '"', "a\rb", "é"]
    for name, separator, newline in (("long", "::", "\n"), ("returns", "\t", "\n"), ("both", "|é", "\r\n")):
        columns = {"n": "int", "s": "str", "t": "str"}
        options = {"columns": columns, "separator": separator, "newline": newline}
        with XSVWriter(out=str(directory / name), size_limit=200, **options) as writer:
            for row in range(_ROWS):
                writer.write({"n": row, "s": odd[row % 8], "t": odd[row // 8 % 8]})
    for name, codec in (("empty", None), ("empty-gz", "gz")):
        with CSVWriter(out=str(directory / name), columns={"s": "str"}, compression=codec) as writer:
            for row in range(_ROWS):
                writer.write({"s": odd[row % 3 % 2]})
    for name in ("json", "csv", "xsv", "long", "returns", "both", "empty"):
        read = LocalDataset(str(directory / name))
        found[name] = (name, [plain(read[row]) for row in range(_ROWS)])
    found["empty-gz"] = ("empty-gz", found["empty"][1])  # which LocalDataset does not decompress
    return found


def _litdata_items() -> dict[str, list[dict[str, Any]]]:
    """What LitData keeps as leaves, as rows of a table, as nested leaves, and as lists of images."""
    import io

    import numpy as np
    from PIL import Image

    def picture(number: int) -> Image.Image:
        file = io.BytesIO()
        Image.fromarray(np.arange(number, number + 108, dtype=np.uint8).reshape(4, 9, 3)).save(file, "JPEG")
        return Image.open(file)

    items, rows, nested, images = [], [], [], []
    for row in range(_ROWS):
        array = np.arange(row % 5, dtype=np.int16)
        texts = [f"{place}" for place in range(row % 3)]
        records = [
            {"role": "user", "text": "é" * place, "n": place, "x": place / 3, "no": None} for place in range(row % 4)
        ]
        deep = {"y": [row, None, "mixed"], "yes": [True, False], "reals": [row / 7], "records": records}
        common = {"i": row, "s": f"text é {row}", "b": b"ab" * row}
        items.append({**common, "a": array})
        rows.append({**common, "list": list(range(row % 4)), "texts": texts, "records": records, "deep": {"x": row}})
        nested.append(
            {**common, "a": array, "list": list(range(row % 4)), "texts": texts, "deep": {"x": row, "of": [deep]}}
        )
        images.append({"i": row, "images": [picture(row), picture(row + 9)]})
    return {"items": items, "rows": rows, "nested": nested, "images": images}


def litdata(directory: Path) -> Found:
    import numpy as np
    import torch
    from litdata import StreamingDataset, TokensLoader
    from litdata.streaming.writer import BinaryWriter
    from PIL import Image

    def written(name: str, items: list[Any], **options: Any) -> str:
        """Where a copy lies for LitData to read, as its reader replaces compressed chunks."""
        writer = BinaryWriter(str(directory / name), **options)
        for row, item in enumerate(items):
            writer[row] = item
        writer.done()
        writer.merge()
        return str(shutil.copytree(directory / name, Path(tempfile.mkdtemp(), "copy")))

    def with_pictures(sample: dict[str, Any]) -> dict[str, Any]:
        images = [Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0))) for image in sample.get("images", [])]
        return {**sample, **({"images": images} if images else {})}

    known = _litdata_items()
    found: Found = {}
    of_items: list[tuple[str, str, dict[str, Any]]] = [
        *((kind, kind, {}) for kind in known),
        ("rows-zstd", "rows", {"compression": "zstd"}),
        ("batch", "nested", {"compression": "zstd", "compression_batch_size": 4}),
        ("sample", "nested", {"compression": "zstd:3", "compression_level": "sample"}),
        ("chunk", "nested", {"compression": "zstd", "compression_level": "chunk"}),
    ]
    for name, kind, options in of_items:
        read = StreamingDataset(written(name, known[kind], chunk_size=15, **options), shuffle=False)
        found[name] = (name, [plain(with_pictures(read[row])) for row in range(_ROWS)])
    documents = [np.arange(row % 7 + 1, dtype=np.uint16) + row for row in range(_ROWS)]
    tensors = [torch.from_numpy(row.astype(np.int32)) for row in documents]
    packed = {"compression": "zstd", "compression_level": "chunk"}
    of_tokens: list[tuple[str, list[Any], int, dict[str, str]]] = [
        ("numpy", documents, 60, {}),
        ("tensor", tensors, 60, {}),
        ("packed", documents, 60, packed),
        ("many", [tokens + place for place in range(8) for tokens in documents], 2 * _ROWS, {}),  # chunks: 11 and more
    ]
    for name, tokens, chunk_size, options in of_tokens:
        copy = written(name, tokens, chunk_size=chunk_size, item_loader=TokensLoader(), **options)
        read = StreamingDataset(copy, shuffle=False, item_loader=TokensLoader(block_size=8))
        found[f"blocks of 8 {name}"] = (name, [plain({"tokens": read[row]}) for row in range(len(read))])
    return found


def _members(repeats: int) -> Iterator[tuple[str, bytes]]:
    for row in range(_ROWS):
        key = f"{'deep/' * (row % 3)}{'long-name-' * (row % 2) * repeats}{row:04d}"
        yield f"{key}.txt", f"row {row}".encode()
        yield f"{key}.bin", bytes(range(row)) * (100 if row == 7 else 1)


def _archives(directory: Path, program: str, *formats: str, repeats: int = 12) -> Found:
    """Archives by a program, which is given the members in the order of samples."""
    directory.mkdir(exist_ok=True)
    files = directory / "files"
    names: list[str] = []
    rows: list[dict[str, Any]] = []
    for name, data in _members(repeats):
        (files / name).parent.mkdir(parents=True, exist_ok=True)
        (files / name).write_bytes(data)
        names.append(name)
        if name.endswith(".bin"):
            rows.append({"__key__": name.removesuffix(".bin"), "txt": f"row {len(rows)}".encode(), "bin": data})
    (directory / "names").write_text("\n".join(names) + "\n")
    found: Found = {}
    for kind in formats:
        archive = directory / f"{kind}.tar"
        command = [program, f"--format={kind}", "-cf", str(archive), "-C", str(files), "-T", str(directory / "names")]
        subprocess.run(command, check=True)
        found[kind] = (archive.name, [plain(row) for row in rows])
    return found


def gnutar(directory: Path) -> Found:
    return _archives(directory, "tar", "gnu", "pax", "oldgnu")


def bsdtar(directory: Path) -> Found:
    found = _archives(directory, "bsdtar", "pax", "gnutar")
    short = _archives(directory / "short", "bsdtar", "ustar", repeats=2)  # which has no place for longer names
    return found | {name: (f"short/{source}", rows) for name, (source, rows) in short.items()}


PEERS: dict[str, Callable[[Path], Found]] = {
    writer.__name__: writer
    for writer in (
        polars,
        duckdb,
        pyarrow,
        delimited,
        spark,
        datasets,
        tfrecord,
        webdataset,
        streaming,
        litdata,
        gnutar,
        bsdtar,
    )
}


def main() -> None:
    name, directory = sys.argv[1], Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    found = PEERS[name](directory)
    lists: list[Any] = []
    sources = {}
    for about, (source, rows) in found.items():
        if rows not in lists:
            lists.append(rows)
        sources[about] = [source, lists.index(rows)]
    (directory / "expected.json").write_text(json.dumps({"sources": sources, "rows": lists}) + "\n")


if __name__ == "__main__":
    main()
