"""Makes tests/formats/data/seekable: shards in blocks that end anywhere, as the usual tools write them.

    python tests/formats/data/make_seekable.py   # where pyzstd 0.20.0 and bgzip 1.16 (Debian's tabix) are

Lines of JSON in the seekable format of zstd, in frames of 8 KiB with the table of them behind, and a tar in blocks of
gzip. Their samples are those of `rows`.
"""

from __future__ import annotations

import importlib
import io
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "seekable"
NUM_ROWS = 2000
NUM_MEMBERS = 200


def rows() -> list[dict[str, Any]]:
    """What the lines say."""
    return [{"n": number, "text": "the same again and again " * (number % 23)} for number in range(NUM_ROWS)]


def members() -> list[tuple[str, bytes]]:
    """Names and contents of the members of the tar."""
    return [(f"{number:04d}.txt", b"%d " % number * (1000 + number % 7 * 700)) for number in range(NUM_MEMBERS)]


def main() -> None:
    pyzstd: Any = importlib.import_module("pyzstd")
    HERE.mkdir(exist_ok=True)
    lines = "".join(json.dumps(row) + "\n" for row in rows()).encode()
    with pyzstd.SeekableZstdFile(HERE / "pyzstd.jsonl.zst", "w", max_frame_content_size=8192) as shard:
        shard.write(lines)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in members():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    packed = subprocess.run(["bgzip", "-c"], input=out.getvalue(), capture_output=True, check=True).stdout
    (HERE / "bgzip.tar.gz").write_bytes(packed)


if __name__ == "__main__":
    main()
