"""Makes tests/formats/data/found: directories that are found by their index.json, as the peers' own writers leave them.

    python tests/formats/data/make_found.py streaming   # where mosaicml-streaming 0.13.0 is installed
    python tests/formats/data/make_found.py litdata     # where litdata 0.2.76 and zstd are

Two streams of hashed MDS shards below a merged index, XSV shards, TSV shards compressed with zstd, and LitData chunks
compressed as wholes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent / "found"
COLUMNS = {"n": "int", "t": "str"}


def rows(first: int) -> Iterator[dict[str, Any]]:
    for number in range(50):
        yield {"n": first + number, "t": f"row {number} \u00e9"}


def item(number: int) -> dict[str, Any]:
    return {"i": number, "a": np.arange(number % 5), "s": f"item {number}"}


def streaming() -> None:
    from streaming import MDSWriter, TSVWriter, XSVWriter
    from streaming.base.util import merge_index

    for number in range(2):
        out = str(HERE / "merged" / f"s{number}")
        with MDSWriter(out=out, columns=COLUMNS, hashes=["sha1", "xxh64"], size_limit=1000) as writer:
            for row in rows(100 * number):
                writer.write(row)
    merge_index(str(HERE / "merged"))
    with XSVWriter(out=str(HERE / "xsv"), columns=COLUMNS, separator="|", size_limit=1000) as writer:
        for row in rows(0):
            writer.write(row)
    with TSVWriter(out=str(HERE / "tsv_zstd"), columns=COLUMNS, compression="zstd", size_limit=1000) as writer:
        for row in rows(0):
            writer.write(row)


def litdata() -> None:
    import litdata

    litdata.optimize(
        fn=item, inputs=list(range(30)), output_dir=str(HERE / "litdata_zstd"), chunk_size=7, num_workers=1,
        compression="zstd", compression_level="chunk",
    )  # fmt: skip


if __name__ == "__main__":
    {"streaming": streaming, "litdata": litdata}[sys.argv[1]]()
