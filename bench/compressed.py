"""Compressed shards in frames that end anywhere: what pieces of them mix, read twice, and take to be found.

    python bench/compressed.py [--megabytes 128]

Shards of lines in zstd frames of fixed sizes are cut with other limits of what two pieces may share; "none" cuts only
where a frame ends with a sample, which is next to never, and has a window of two chunks. Of each: the predicted
variance ratio of batches of 256 in the same window where all samples of a chunk are alike, and what one epoch in chunks
of a piece reads and decompresses, as parts of the dataset. Then the peak memory of a process that indexes one shard.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import zstandard

import shoal
from shoal.errors import UsageError
from shoal.formats.compressed import pieces
from shoal.orders import Window
from shoal.quality.prediction import ChunkLayout, predicted_variance_ratio

WORDS = [random.Random(number).randbytes(3).hex() for number in range(4000)]
WINDOW = "32MiB"
NUM_SHARDS = 4


def write(directory: Path, num_bytes: int, frame_bytes: int) -> int:
    """Lines of about 2 KB that compress to less than a half; how many bytes they have."""
    dice = random.Random(5)
    directory.mkdir()
    each, total = num_bytes // NUM_SHARDS, 0
    for shard in range(NUM_SHARDS):
        lines: list[bytes] = []
        size = 0
        while size < each:
            text = " ".join(dice.choices(WORDS, k=dice.randrange(100, 500)))
            lines.append(json.dumps({"label": shard, "text": text}).encode() + b"\n")
            size += len(lines[-1])
        inside = b"".join(lines)
        total += len(inside)
        compressor = zstandard.ZstdCompressor(level=3)
        frames = [compressor.compress(inside[at : at + frame_bytes]) for at in range(0, len(inside), frame_bytes)]
        (directory / f"{shard}.jsonl.zst").write_bytes(b"".join(frames))
    return total


def row(directory: Path, inside: int, own_bytes: int | None) -> str:
    pieces._OWN_BYTES_FOR_A_SHARED_ONE = own_bytes or 1 << 40  # noqa: SLF001
    with tempfile.TemporaryDirectory() as cache:
        os.environ["SHOAL_CACHE_DIR"] = cache
        ds = shoal.open(directory)
        index = ds.stream.opened.index
        decoded = int(index.extent_decoded_bytes.sum())
        mean = decoded // index.num_extents
        try:
            shuffled = ds.shuffle(seed=0, window=WINDOW, chunk=mean)
        except UsageError:  # it holds less than two
            shuffled = ds.shuffle(Window(2, 1), seed=0)
        layout = ChunkLayout.of(shuffled.resolved.chunks.num_samples)
        ratio = predicted_variance_ratio(shuffled.resolved.order, layout, 256, rho=1.0)
        before = time.process_time()
        num_samples = sum(1 for _ in shuffled)
        seconds = time.process_time() - before
        stored = sum(path.stat().st_size for path in directory.iterdir())
        stats = shuffled.stats()
    cells = (
        str(own_bytes or "none"),
        f"{index.num_extents}",
        f"{mean / 2**20:.2f} MiB",
        f"{shuffled.resolved.order.chunks}",
        f"{ratio:.2f}",
        f"{stats['read_bytes'] / stored:.3f}",
        f"{decoded / inside:.3f}",
        f"{1e6 * seconds / num_samples:.0f} us",
    )
    return "".join(f"{cell:>13}" for cell in cells)


SCAN = """
import re, sys, time
from pathlib import Path
from shoal.formats.format_registry import format_named
path = Path(sys.argv[1])
file = path.open("rb")
def read(first, end, /):
    file.seek(first)
    return file.read(end - first)
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
scan = format_named("jsonl.zst")
before = peak()
found = scan.scan(read, path.stat().st_size, shard="a")
print(peak() - before, time.process_time())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=128)
    num_bytes = parser.parse_args().megabytes << 20
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as place:
        for frame_bytes in (64 << 10, 128 << 10, 1 << 20):
            directory = Path(place, str(frame_bytes))
            inside = write(directory, num_bytes, frame_bytes)
            print(f"frames of {frame_bytes >> 10} KiB, window {WINDOW}")
            names = ("own : shared", "extents", "size", "window", "VR(256)", "read", "decompressed", "CPU/sample")
            print("".join(f"{name:>13}" for name in names))
            for own_bytes in (None, 4, 8, 16, 32):
                print(row(directory, inside, own_bytes))
        path = Path(place, str(128 << 10), "0.jsonl.zst")
        command = [sys.executable, "-c", SCAN, str(path)]
        for _ in range(3):
            told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            print(f"a scan of {path.stat().st_size / 1e6:.0f} MB that hold {num_bytes / NUM_SHARDS / 1e6:.0f}: "
                  f"{float(told[0]):.0f} MiB more at its peak, {float(told[1]):.2f} s of CPU")  # fmt: skip


if __name__ == "__main__":
    main()
