"""Reads a packed directory with a peer's own reader and writes what it found as JSON; runs in the peer's environment.

``python reads_packed.py PEER DIRECTORY OUTPUT``: for each sample, in order, a list of its key or number, text, label, a
float, a list of numbers, and bytes as hex; as far as the format holds them, and the reader gives them.
"""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = list[Any]


def paths(directory: str, suffix: str) -> list[str]:
    """The shards, in their order."""
    return sorted(str(path) for path in Path(directory).glob(f"*.{suffix}"))


def named(row: dict[str, Any]) -> Row:
    """A row of a table."""
    found = [row["id"], row["text"], row["label"], row["score"], list(row["tags"])]
    return [*found, row["blob"].hex()] if "blob" in row else found


def webdataset(directory: str) -> Iterator[Row]:
    """Tars, decoded as WebDataset does."""
    import webdataset as wds

    shards = paths(directory, "tar")
    for sample in wds.WebDataset(shards, shardshuffle=False).decode():
        about = sample["json"]
        yield [int(sample["__key__"]), sample["txt"], sample["cls"], about["score"], about["tags"], sample["bin"].hex()]


def streaming(directory: str) -> Iterator[Row]:
    """MDS, through its index.json."""
    from streaming import StreamingDataset

    dataset = StreamingDataset(local=directory, shuffle=False, batch_size=1)
    for number in range(len(dataset)):
        sample = dataset[number]
        score, tags = float(sample["score"]), list(map(int, sample["tags"]))
        yield [sample["id"], sample["text"], int(sample["label"]), score, tags, sample["blob"].hex()]


def datasets(directory: str) -> Iterator[Row]:
    """Parquet, Arrow and JSON Lines, by the loaders of Hugging Face."""
    from datasets import load_dataset

    kind = {"parquet": "parquet", "arrow": "arrow", "jsonl": "json"}[directory.rsplit("-", 1)[-1]]
    found = load_dataset(kind, data_files=f"{directory}/*.{'jsonl' if kind == 'json' else kind}", split="train")
    for row in found:
        yield named(row)


def polars(directory: str) -> Iterator[Row]:
    """Parquet and Arrow."""
    import polars as pl

    for path in [*paths(directory, "parquet"), *paths(directory, "arrow")]:
        frame = pl.read_parquet(path) if path.endswith("parquet") else pl.read_ipc_stream(path)
        yield from map(named, frame.iter_rows(named=True))


def duckdb(directory: str) -> Iterator[Row]:
    """Parquet."""
    import duckdb

    found = duckdb.sql(f"select id, text, label, score, tags, blob from '{directory}/*.parquet' order by id")
    for *row, blob in found.fetchall():
        yield [*row, blob.hex()]


def tfrecord(directory: str) -> Iterator[Row]:
    """TFRecord, by a reader that is not TensorFlow's and checks no sums."""
    from tfrecord.reader import tfrecord_loader

    for path in paths(directory, "tfrecord"):
        for row in tfrecord_loader(path, None):
            tags = [int(tag) for tag in row["tags"]]
            blob = bytes(row["blob"]).hex()
            yield [
                int(row["id"][0]),
                bytes(row["text"]).decode(),
                int(row["label"][0]),
                float(row["score"][0]),
                tags,
                blob,
            ]


def gnutar(directory: str) -> Iterator[Row]:
    """Tars, listed and read by the program."""
    for path in paths(directory, "tar"):
        names = subprocess.run(["tar", "tf", path], check=True, capture_output=True, text=True).stdout.split()
        data = subprocess.run(["tar", "xOf", path, "--wildcards", "*.txt"], check=True, capture_output=True).stdout
        labels = subprocess.run(["tar", "xOf", path, "--wildcards", "*.cls"], check=True, capture_output=True).stdout
        keys = [int(name.split(".")[0]) for name in names if name.endswith(".txt")]
        texts = data.decode().split("|")[1:]
        for key, text, label in zip(keys, texts, labels.decode(), strict=True):
            yield [key, f"|{text}", int(label)]


if __name__ == "__main__":
    peer, where, output = sys.argv[1:]
    Path(output).write_text(json.dumps(list(globals()[peer](where))))
