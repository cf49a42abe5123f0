"""What it takes to index tars that lie behind 20 ms of latency and 60 MB/s for each connection.

``python bench/far_index.py`` writes tars of small, middling and large members (payloads are holes of sparse files),
serves them from another process over http, and indexes them as `shoal.open` would, next to the same with either way
forced: a request for each span of headers, or all bytes; and by the indexes that Energon would leave beside them.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from shoal.formats.format_registry import format_named
from shoal.indexing.scan.costs import ReadCosts
from shoal.indexing.scan.remote_scans import ScanReads, scan_in_threads
from shoal.indexing.scan.scan_task import ScanTask
from shoal.storage.retry import with_retries
from shoal.storage.sources.source import expand
from shoal.storage.store_of_url import open_store
from shoal.testing import RangeServer

LATENCY_SECONDS, BYTES_PER_SECOND = 0.02, 60e6
NUM_SHARDS = 16
# Bytes of a member, members of a shard.
SHAPES = ((4096, 8000), (100_000, 640), (1_000_000, 300), (10_000_000, 100))
ROUNDS = 2
BY_INDEX = "by .tar.idx"


class Forced(ReadCosts):
    """Costs by which one of the ways always seems the cheaper one."""

    __slots__ = ("_request_bytes",)

    def __init__(self, request_bytes: int) -> None:
        super().__init__()
        self._request_bytes = request_bytes

    def request_bytes(self, num_at_once: int = 1) -> int:
        """Whatever is measured."""
        del num_at_once
        return self._request_bytes


def main() -> None:
    if len(sys.argv) == 3:
        serve(sys.argv[2])
        return
    ways = {
        "chosen": ReadCosts,
        "headers only": lambda: Forced(1),
        "all bytes": lambda: Forced(1 << 40),
        BY_INDEX: ReadCosts,
    }
    print(f"{NUM_SHARDS} shards, {LATENCY_SECONDS * 1000:.0f} ms, {BYTES_PER_SECOND / 1e6:.0f} MB/s a connection")
    print(f"{'members':24}{'way':14}{'requests':>10}{'MB read':>10}{'of MB':>10}{'seconds':>9}   (best of {ROUNDS})")
    for member_bytes, num_members in SHAPES:
        with tempfile.TemporaryDirectory() as directory:
            for shard in range(NUM_SHARDS):
                write(Path(directory, f"{shard:03d}.tar"), member_bytes, num_members)
            with subprocess.Popen(
                [sys.executable, __file__, "--serve", directory],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as server:
                assert server.stdout is not None
                url = server.stdout.readline().strip()
                for name, costs in ways.items():
                    runs = [
                        scan(url, costs(), member_bytes, num_members, by_index=name == BY_INDEX) for _ in range(ROUNDS)
                    ]
                    requests, read, whole, seconds = min(runs, key=lambda run: run[-1])
                    shape = f"{num_members:,} x {member_bytes:,}"
                    print(f"{shape:24}{name:14}{requests:10,}{read / 1e6:10,.1f}{whole / 1e6:10,.0f}{seconds:9.2f}")
                server.communicate("stop\n")


def serve(directory: str) -> None:
    with RangeServer(directory, latency_seconds=LATENCY_SECONDS, bytes_per_second=BYTES_PER_SECOND) as server:
        print(server.url, flush=True)
        sys.stdin.readline()


def write(path: Path, member_bytes: int, num_members: int) -> None:
    stride = 512 + (member_bytes + 511) // 512 * 512
    starts = range(0, stride * num_members + 1, stride)
    path.with_name(f"{path.name}.idx").write_bytes(struct.pack(f"<{num_members + 1}Q", *starts))
    with path.open("wb") as file:
        for number in range(num_members):
            info = tarfile.TarInfo(f"{number:06d}.bin")
            info.size = member_bytes
            file.write(info.tobuf(tarfile.USTAR_FORMAT))
            file.seek((member_bytes + 511) // 512 * 512, 1)
        file.truncate(file.tell() + 1024)


def scan(
    url: str, costs: ReadCosts, member_bytes: int, num_members: int, *, by_index: bool
) -> tuple[int, int, int, float]:
    """Requests, bytes read, bytes of the shards and seconds."""
    source = f"{url}/{{000..{NUM_SHARDS - 1:03d}}}.tar"
    store = with_retries(open_store(source))
    found = expand(source, suffixes=(".tar",), store=store)
    tasks = []
    for number, path in enumerate(found.paths):
        index = (f"{path}.idx", 8 * (num_members + 1)) if by_index else None
        tasks.append(ScanTask(number, found.names[number], path, store.stat(path).num_bytes, "", index=index))
    reads = ScanReads(store, costs)
    began = time.perf_counter()
    scans = list(scan_in_threads(tasks, format_named("tar"), reads, on_progress=lambda *_: None))
    seconds = time.perf_counter() - began
    assert sum(result.num_samples for _, result in scans) == NUM_SHARDS * num_members, member_bytes
    traffic = reads.traffic
    return traffic.num_requests, traffic.read_bytes, traffic.shard_bytes, seconds


if __name__ == "__main__":
    main()
