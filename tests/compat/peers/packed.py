"""What `shoal.pack` writes, read back by the peers' own readers: ``python -m tests.compat.peers.packed``.

One line for each peer and format; exit code 1 if any of them reads something else than was written.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.compat.peers.environments import in_own_cache, python_of, run_in
from tests.environments import CannotHaveError

from shoal.pack import pack

READERS = {
    "webdataset": ["tar"],
    "gnutar": ["tar"],
    "streaming": ["mds"],
    "datasets": ["parquet", "arrow", "jsonl"],
    "polars": ["parquet", "arrow"],
    "duckdb": ["parquet"],
    "tfrecord": ["tfrecord"],
}
NUM_SAMPLES = 500
_SCRIPT = Path(__file__).parent / "reads_packed.py"


def rows() -> list[list[Any]]:
    """Of each sample its number, text, label, a float, a list of numbers, and bytes as hex."""
    return [
        [n, f"|document {n} é" * (n % 5 + 1), n % 7, n / 4, list(range(n % 4)), bytes(range(n % 256, 256))[:9].hex()]
        for n in range(NUM_SAMPLES)
    ]


def write(directory: Path, name: str) -> None:
    """Pack the samples into several shards."""
    if name == "tar":
        samples = [
            {
                "__key__": f"{n:06d}",
                "txt": _one_line(text),
                "cls": c,
                "json": {"score": x, "tags": t},
                "bin": bytes.fromhex(b),
            }
            for n, text, c, x, t, b in rows()
        ]
    else:
        names = ["id", "text", "label", "score", "tags", *([] if name == "jsonl" else ["blob"])]
        samples = [
            dict(zip(names, [*row[:5], bytes.fromhex(row[5])], strict=False))  # JSON has no bytes
            for row in rows()
        ]
    options = {"group_bytes": 4096} if name in ("parquet", "arrow") else {}
    pack(samples, directory, format=name, shard_bytes=12_000, options=options)


def _one_line(text: str) -> str:
    """With a bar at its beginning alone, by which what GNU tar prints is cut."""
    return f"|{text[1:].replace('|', '/')}"


def check(peer: str, name: str, scratch: Path) -> str:
    """What to say of a peer and a format: "" where all is well."""
    directory = scratch / f"{peer}-{name}"
    write(directory, name)
    found = scratch / f"{peer}-{name}.json"
    run_in(python_of(peer), _SCRIPT, peer, directory, found)
    read = json.loads(found.read_text())
    wanted = rows()
    if name == "tar":
        wanted = [[number, _one_line(text), *rest] for number, text, *rest in wanted]
    pairs = zip(read, wanted, strict=False)
    wrong = next((number for number, (one, other) in enumerate(pairs) if one != other[: len(one)]), None)
    if len(read) != len(wanted):
        return f"{len(read)} samples were read, {len(wanted)} written"
    return "" if wrong is None else f"sample {wrong} is {read[wrong]}, and was {wanted[wrong]}"


def main() -> int:
    """All peers; 1 if one of them reads something else."""
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        for peer, names in READERS.items():
            for name in names:
                try:
                    said = check(peer, name, Path(scratch))
                except CannotHaveError as error:
                    print(f"{peer:12} {name:9} skipped: {error}", flush=True)
                    continue
                failed += bool(said)
                print(f"{peer:12} {name:9} {said or f'reads all {NUM_SAMPLES} samples'}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(in_own_cache(main))
