"""What it takes to index tars behind 20 ms of latency and 60 MB/s for each connection, many at a time or a single one.

``python bench/far_index.py`` writes tars of small, middling and large members (payloads are holes of sparse files),
serves them from another process over http, and indexes them as `shoal.open` would, next to the same with either way
forced: a request for each span of headers, or all bytes; by a process for each processor; by the indexes that Energon
would leave beside them; and next to reading every byte with as many requests at a time, which is the most that the
client and this machine can do.

``--shards 1 --megabytes 1000`` is one large shard, whose requests are all for it.
"""

from __future__ import annotations

import argparse
import resource
import struct
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from servers.quick import Quick

from shoal.formats.format_registry import format_named
from shoal.indexing.build import scans_of_tasks
from shoal.indexing.scan import processes
from shoal.indexing.scan.costs import ReadCosts
from shoal.indexing.scan.remote_scans import BLOCK_BYTES, ScanReads, scan_in_threads
from shoal.indexing.scan.scan_task import ScanTask
from shoal.processes.interpreters import usable_processors
from shoal.storage.retry import with_retries
from shoal.storage.sources.source import expand
from shoal.storage.store_of_url import open_store

NUM_REQUESTS = 32
BY_INDEX, RAW, PROCESSES = "by .tar.idx", "bytes alone", "processes"


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


WAYS = {
    "chosen": ReadCosts,
    "headers only": lambda: Forced(1),
    "all bytes": lambda: Forced(1 << 40),
    PROCESSES: ReadCosts,
    BY_INDEX: ReadCosts,
    RAW: ReadCosts,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--megabytes", type=int, default=64, help="MB of a shard")
    parser.add_argument("--members", type=int, nargs="+", default=[4096, 100_000, 1_000_000, 4_000_000, 10_000_000])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--connection-mb", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    print(f"{given.shards} shards, {given.latency_ms:g} ms, {given.connection_mb:g} MB/s a connection")
    print(f"{'members':20}{'way':14}{'requests':>10}{'MB read':>10}{'of MB':>8}{'seconds':>9}{'CPU':>7}{'MB/s':>8}")
    for member_bytes in given.members:
        num_members = max(1, given.megabytes * 1_000_000 // member_bytes)
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            for shard in range(given.shards):
                write(directory / f"{shard:04d}.tar", member_bytes, num_members)
            with Quick(directory, given.latency_ms, given.connection_mb) as server:
                for way in given.ways:
                    runs = [scan(server.url, way, given.shards, num_members) for _ in range(given.rounds)]
                    requests, read, whole, seconds, cpu_seconds = min(runs, key=lambda run: run[3])
                    print(
                        f"{f'{num_members:,} x {member_bytes:,}':20}{way:14}{requests:10,}{read / 1e6:10,.1f}"
                        f"{whole / 1e6:8,.0f}{seconds:9.2f}{cpu_seconds:7.2f}{whole / 1e6 / seconds:8,.0f}",
                        flush=True,
                    )


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


def scan(url: str, way: str, num_shards: int, num_members: int) -> tuple[int, int, int, float, float]:
    """Requests, bytes read, bytes of the shards, and seconds of wall and of processors."""
    source = f"{url}/{{0000..{num_shards - 1:04d}}}.tar"
    store = with_retries(open_store(source))
    found = expand(source, suffixes=(".tar",), store=store)
    tasks = []
    for number, path in enumerate(found.paths):
        index = (f"{path}.idx", 8 * (num_members + 1)) if way == BY_INDEX else None
        tasks.append(ScanTask(number, found.names[number], path, store.stat(path).num_bytes, "", index=index))
    reads = ScanReads(store, WAYS[way]())
    began, cpu_began = time.perf_counter(), cpu_seconds_so_far()
    if way == RAW:
        read_all(tasks, reads)
    elif way == PROCESSES:
        processes.MUCH_BYTES = 0
        scans = scans_of_tasks(
            tasks, store=store, format=format_named("tar"), workers=usable_processors(), traffic=reads.traffic
        )
        assert sum(result.num_samples for _, result in scans) == num_shards * num_members
    else:
        scans = scan_in_threads(tasks, format_named("tar"), reads, on_progress=lambda *_: None)
        assert sum(result.num_samples for _, result in scans) == num_shards * num_members
    seconds, cpu_seconds = time.perf_counter() - began, cpu_seconds_so_far() - cpu_began
    whole = sum(task.num_bytes for task in tasks)
    return reads.traffic.num_requests, reads.traffic.read_bytes, whole, seconds, cpu_seconds


def cpu_seconds_so_far() -> float:
    """Seconds of processors of this process and of those that it has waited for."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def read_all(tasks: list[ScanTask], reads: ScanReads) -> None:
    """Every byte of every shard, and nothing else."""
    ranges = [(task, first) for task in tasks for first in range(0, task.num_bytes, BLOCK_BYTES)]
    with ThreadPoolExecutor(NUM_REQUESTS) as threads:
        for _ in threads.map(
            lambda of: len(reads.fetch(of[0].path, of[1], min(of[1] + BLOCK_BYTES, of[0].num_bytes))), ranges
        ):
            pass


if __name__ == "__main__":
    main()
