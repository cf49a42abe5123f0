"""What it costs to index each format: processor time, bytes read, and memory; and what indexes of other tools save.

``python bench/index_formats.py`` makes of the same samples (a number, a text of 200 bytes, 4 KiB of noise) one shard of
every format, scans each in this process, and prints the best CPU time of three scans, the bytes and requests that the
scan asked for, and the most memory that Python and numpy held meanwhile. It does so also with the indexes that Energon,
DALI and MXNet leave beside shards; and for a folder of single files it opens it, and streams it.
"""

from __future__ import annotations

import argparse
import base64
import bz2
import gc
import gzip
import io
import json
import struct
import tarfile
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Self

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

import shoal
from shoal.formats.format_registry import format_named
from shoal.formats.metadata.third_party_index import scan_by_index
from shoal.formats.shard_format import Format
from shoal.index.cutting import cut_extents
from shoal.index.shard_scan import ShardScan

Row = tuple[int, str, bytes]


def rows(count: int) -> Iterator[Row]:
    noise = np.random.default_rng(0)
    for number in range(count):
        yield number, f"{number:08d} " + "some words " * 17, noise.bytes(4096)


def framed(data: bytes) -> bytes:
    parts = (struct.pack("<Q", len(data)), data)
    crcs = [(google_crc32c.value(part) >> 15 | google_crc32c.value(part) << 17) + 0xA282EAD8 for part in parts]
    return parts[0] + struct.pack("<I", crcs[0] & 0xFFFFFFFF) + data + struct.pack("<I", crcs[1] & 0xFFFFFFFF)


def as_tar(count: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for number, text, noise in rows(count):
            for suffix, data in (("cls", b"%d" % number), ("txt", text.encode()), ("bin", noise)):
                info = tarfile.TarInfo(f"{number:08d}.{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def as_lines(count: int) -> list[bytes]:
    texts = ({"n": n, "t": text, "b": base64.b64encode(noise).decode()} for n, text, noise in rows(count))
    return [json.dumps(text).encode() + b"\n" for text in texts]


def as_csv(count: int) -> bytes:
    lines = (f'{n},"{text}",{base64.b64encode(noise).decode()}\n'.encode() for n, text, noise in rows(count))
    return b"n,t,b\n" + b"".join(lines)


def as_tfrecord(count: int) -> bytes:
    return b"".join(framed(struct.pack("<q", n) + text.encode() + noise) for n, text, noise in rows(count))


def as_recordio(count: int) -> bytes:
    def part(data: bytes) -> bytes:
        return struct.pack("<II", 0xCED7230A, len(data)) + data + bytes(-len(data) % 4)

    return b"".join(part(struct.pack("<IfQQ", 0, n, n, 0) + text.encode() + noise) for n, text, noise in rows(count))


def as_mds(count: int) -> bytes:
    about = {
        "column_names": ["b", "n", "t"],
        "column_encodings": ["bytes", "int", "str"],
        "column_sizes": [None, 8, None],
    }
    config = json.dumps(about).encode()
    samples = [
        struct.pack("<II", len(noise), len(text)) + noise + struct.pack("<q", n) + text.encode()
        for n, text, noise in rows(count)
    ]
    starts = 4 * (count + 2) + len(config) + np.cumsum([0, *map(len, samples)])
    return struct.pack("<I", count) + starts.astype("<u4").tobytes() + config + b"".join(samples)


def as_litdata(count: int) -> bytes:
    leaves = [(struct.pack("<q", n), text.encode(), noise) for n, text, noise in rows(count)]
    samples = [struct.pack("<III", *map(len, parts)) + b"".join(parts) for parts in leaves]
    starts = 4 * (count + 2) + np.cumsum([0, *map(len, samples)])
    return struct.pack("<I", count) + starts.astype("<u4").tobytes() + b"".join(samples)


def litdata_format() -> Format:
    leaf: dict[str, object] = {"type": None, "context": None, "children_spec": []}
    tree = {"type": "builtins.tuple", "context": "null", "children_spec": [leaf] * 3}
    config = {"data_format": ["int", "str", "bytes"], "data_spec": json.dumps([1, tree])}
    return format_named("litdata", {"config": config})


def table(count: int) -> pa.Table:
    numbers, texts, noise = zip(*rows(count), strict=True)
    return pa.table({"n": numbers, "t": texts, "b": pa.array(noise, pa.binary())})


def as_parquet(count: int) -> bytes:
    out = io.BytesIO()
    pq.write_table(table(count), out, row_group_size=256)
    return out.getvalue()


def as_arrow(count: int) -> bytes:
    out = io.BytesIO()
    found = table(count)
    with pa.ipc.new_file(out, found.schema) as writer:
        writer.write_table(found, max_chunksize=256)
    return out.getvalue()


def as_frames(count: int) -> bytes:
    lines = as_lines(count)
    return b"".join(zstandard.compress(b"".join(lines[at : at + 64])) for at in range(0, count, 64))


FORMATS: dict[str, tuple[str | Format, Callable[[int], bytes]]] = {
    "tar": ("tar", as_tar),
    "jsonl": ("jsonl", lambda count: b"".join(as_lines(count))),
    "csv": ("csv", as_csv),
    "tsv": ("tsv", lambda count: as_csv(count).replace(b",", b"\t")),
    "text": ("text", lambda count: b"".join(as_lines(count))),
    "tfrecord": ("tfrecord", as_tfrecord),
    "recordio": ("recordio", as_recordio),
    "mds": ("mds", as_mds),
    "litdata": (litdata_format(), as_litdata),
    "parquet, groups of 256": ("parquet", as_parquet),
    "arrow, batches of 256": ("arrow", as_arrow),
    "tar.gz": ("tar.gz", lambda count: gzip.compress(as_tar(count), 1)),
    "tar.zst": ("tar.zst", lambda count: zstandard.compress(as_tar(count))),
    "jsonl.gz": ("jsonl.gz", lambda count: gzip.compress(b"".join(as_lines(count)), 1)),
    "jsonl.bz2": ("jsonl.bz2", lambda count: bz2.compress(b"".join(as_lines(count)))),
    "mds.zst": ("mds.zst", lambda count: zstandard.compress(as_mds(count))),
    "jsonl.zst": ("jsonl.zst", lambda count: zstandard.compress(b"".join(as_lines(count)))),
    "jsonl.zst, frames of 64": ("jsonl.zst", as_frames),
}


class Counted:
    """Reads of one shard in memory, counted."""

    def __init__(self, data: bytes) -> None:
        self.data, self.num_bytes, self.num_reads = data, 0, 0

    def __call__(self, first_byte: int, end_byte: int, /) -> bytes:
        """A range, and one more read."""
        self.num_reads += 1
        self.num_bytes += end_byte - first_byte
        return self.data[first_byte:end_byte]


def measured(data: bytes, scan: Callable[[Counted], ShardScan | None]) -> tuple[float, Counted, int, ShardScan]:
    """Best CPU seconds, what was read, the most bytes of memory, and the scan."""
    seconds = []
    for _ in range(3):
        read = Counted(data)
        began = time.process_time()
        found = scan(read)
        seconds.append(time.process_time() - began)
    tracemalloc.start()
    scan(Counted(data))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is not None
    return min(seconds), read, peak, found


def line(name: str, data: bytes, scan: Callable[[Counted], ShardScan | None]) -> None:
    seconds, read, peak, found = measured(data, scan)
    extents = len(cut_extents(found).first_byte)
    print(
        f"{name:26} {len(data) / 1e6:8.1f} {1e3 * seconds:9.1f} {1e6 * seconds / found.num_samples:8.2f} "
        f"{read.num_bytes / 1e6:9.2f} {read.num_reads:7} {peak / 1e6:8.1f} {extents:8}"
    )


def whole_scan(reader: Format, read: Counted) -> ShardScan:
    return reader.scan(read, len(read.data), shard="shard")


def index_scan(reader: Format, index: bytes, read: Counted) -> ShardScan | None:
    return scan_by_index(reader, index, read, len(read.data), shard="shard")


def foreign(name: str, found: ShardScan) -> bytes:
    starts = found.sample_starts.tolist()
    if name == "tar":
        return found.sample_starts.astype("<u8").tobytes()
    if name == "tfrecord":
        return "".join(f"{a} {b - a}\n" for a, b in pairwise(starts)).encode()
    return "".join(f"{n}\t{start}\n" for n, start in enumerate(starts[:-1])).encode()


def of_folder(count: int, directory: Path) -> None:
    for number in range(count):
        path = directory / "files" / f"class {number % 100:03d}" / f"{number:07d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number % 20_000 == 0:
            first_of_many = path
            path.write_bytes(b"x" * 1000)
        else:  # links, so that a million do not take 4 GB
            path.hardlink_to(first_of_many)
    with SecondsOfCPU() as first:
        shoal.open(directory / "files", format="folder")
    with SecondsOfCPU() as again:
        shoal.open(directory / "files", format="folder")
    gc.collect()
    tracemalloc.start()
    ds = shoal.open(directory / "files", format="folder").shuffle(seed=0)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    for _ in ds:
        pass
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    seconds = f"{first.seconds:.1f} s of CPU, with a cached index {again.seconds:.1f} s"
    print(f"folder of {count:,} files: opened in {seconds}")
    print(f"  {held / count:.0f} bytes held for a file, {after / count:.0f} after an epoch")
    shuffled = iter(shoal.open(directory / "files", format="folder").shuffle(seed=0))
    wanted = min(count, 50_000)
    began = time.perf_counter()
    with SecondsOfCPU() as used:
        for _ in range(wanted):
            next(shuffled)
    elapsed = time.perf_counter() - began
    each = (1e6 * used.seconds / wanted, 1e6 * elapsed / wanted)
    print(f"  a shuffled sample takes {each[0]:.0f} us of CPU, {each[1]:.0f} us elapsed, warm")


class SecondsOfCPU:
    """How long a block took, in seconds of this process."""

    seconds = 0.0

    def __enter__(self) -> Self:
        self.began = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.process_time() - self.began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--files", type=int, default=100_000)
    arguments = parser.parse_args()
    print(f"{'':26} {'MB':>8} {'CPU ms':>9} {'us each':>8} {'MB read':>9} {'reads':>7} {'MB held':>8} {'extents':>8}")
    for title, (name, make) in FORMATS.items():
        data = make(arguments.samples)
        reader = format_named(name) if isinstance(name, str) else name
        line(title, data, partial(whole_scan, reader))
        if name in ("tar", "tfrecord", "recordio"):
            index = foreign(name, reader.scan(Counted(data), len(data), shard="shard"))
            line(f"{title}, by its .idx", data, partial(index_scan, reader, index))
    with tempfile.TemporaryDirectory() as directory:
        of_folder(arguments.files, Path(directory))


if __name__ == "__main__":
    main()
