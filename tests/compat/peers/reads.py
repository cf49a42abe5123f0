"""What the readers of other packages give for shards that `shoal.pack` wrote.

``python reads.py PEER DIRECTORY``, in the environment of that peer, reads ``DIRECTORY/FORMAT`` for each format that the
peer reads, and writes ``DIRECTORY/read.json``: the rows of each, as `plainly.plain` has them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.compat.peers.plainly import plain

Rows = list[Any]


def _shards(directory: Path, suffix: str) -> list[str]:
    return [str(path) for path in sorted(directory.glob(f"*.{suffix}"))]


def polars(directory: Path) -> dict[str, Rows]:
    import polars as pl

    tables = (pl.read_parquet(shard) for shard in _shards(directory / "parquet", "parquet"))
    streams = (pl.read_ipc_stream(shard) for shard in _shards(directory / "arrow", "arrow"))
    return {
        "parquet": [row for table in tables for row in table.to_dicts()],
        "arrow": [row for table in streams for row in table.to_dicts()],
    }


def duckdb(directory: Path) -> dict[str, Rows]:
    import duckdb as db

    shards = _shards(directory / "parquet", "parquet")
    return {"parquet": [row for shard in shards for row in db.sql(f"FROM '{shard}'").to_arrow_table().to_pylist()]}


def pyarrow(directory: Path) -> dict[str, Rows]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = (pq.ParquetFile(shard).read() for shard in _shards(directory / "parquet", "parquet"))
    streams = (pa.ipc.open_stream(shard).read_all() for shard in _shards(directory / "arrow", "arrow"))
    return {
        "parquet": [row for table in tables for row in table.to_pylist()],
        "arrow": [row for table in streams for row in table.to_pylist()],
    }


def datasets(directory: Path) -> dict[str, Rows]:
    import datasets as hf

    shards = [hf.Dataset.from_file(shard) for shard in _shards(directory / "arrow", "arrow")]
    table = hf.Dataset.from_parquet(_shards(directory / "parquet", "parquet"), cache_dir=str(directory / "cache"))
    return {"arrow": [row for shard in shards for row in shard], "parquet": list(table)}


def tfrecord(directory: Path) -> dict[str, Rows]:
    import tfrecord as tf

    shards = _shards(directory / "tfrecord", "tfrecord")
    rows = (row for shard in shards for row in tf.tfrecord_loader(shard, None, None))
    # It gives bytes as bytes, and numbers as arrays.
    return {
        "tfrecord": [
            {name: bytes(value) if name in ("text", "bytes") else value.tolist() for name, value in sorted(row.items())}
            for row in rows
        ]
    }


def webdataset(directory: Path) -> dict[str, Rows]:
    import webdataset as wds

    def own(samples: Iterator[dict[str, Any]]) -> Rows:
        return [{name: row[name] for name in row if name not in ("__url__", "__local_path__")} for row in samples]

    return {"tar": own(iter(wds.WebDataset(_shards(directory / "tar", "tar"), shardshuffle=False)))}


def streaming(directory: Path) -> dict[str, Rows]:
    from streaming import LocalDataset

    read = LocalDataset(str(directory / "mds"))
    return {"mds": [read[row] for row in range(len(read))]}


PEERS: dict[str, Callable[[Path], dict[str, Rows]]] = {
    reader.__name__: reader for reader in (polars, duckdb, pyarrow, datasets, tfrecord, webdataset, streaming)
}


def main() -> None:
    name, directory = sys.argv[1], Path(sys.argv[2])
    found = {about: [plain(row) for row in rows] for about, rows in PEERS[name](directory).items()}
    (directory / "read.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
