"""How long the ranks of a job take to open shards that nobody has indexed, behind latency, alone and together.

``python bench/shared_indexing.py`` writes tars (sparse), serves them by a process that answers each request after
``--latency-ms``, and opens them by processes that are ranks by their environment: those of one machine, which share a
cache directory, and those of machines that share nothing. Of members of 64 KiB all bytes are read, of 2 MiB headers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path

from far_index import write
from servers.quick import Quick

OPEN = """
import json, sys, time
import shoal
began, cpu = time.perf_counter(), time.process_time()
index = shoal.open(sys.argv[1]).stream.opened.index
print(json.dumps([time.perf_counter() - began, time.process_time() - cpu, index.fingerprint]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=256)
    parser.add_argument("--members", type=int, default=50)
    parser.add_argument("--member-kib", type=int, default=2048)
    parser.add_argument("--latency-ms", type=float, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory, "data")
        data.mkdir()
        for shard in range(arguments.shards):
            write(data / f"{shard:03d}.tar", arguments.member_kib << 10, arguments.members)
            (data / f"{shard:03d}.tar.idx").unlink()
        with Quick(data, arguments.latency_ms, 60) as server:
            caches = count()
            url = f"{server.url}/{{000..{arguments.shards - 1:03d}}}.tar"
            what = f"{arguments.members} members of {arguments.member_kib} KiB"
            print(f"{arguments.shards} shards of {what}, {arguments.latency_ms:.0f} ms")
            for _ in range(arguments.rounds):
                for ranks, shares in ((1, True), (2, True), (4, True), (4, False)):
                    homes = [next(caches)] * ranks if shares else [next(caches) for _ in range(ranks)]
                    server.seen()
                    seconds, cpu = opened(url, [Path(directory, f"cache-{home}") for home in homes])
                    what = "with one cache" if shares else "with nothing in common"
                    asked = len(server.seen()["ranges"])
                    cost = f"{asked:7,} requests  {cpu:6.2f} s of CPU  {seconds:6.2f} s until the last is open"
                    print(f"{ranks} ranks {what:24} {cost}", flush=True)


def opened(url: str, caches: list[Path]) -> tuple[float, float]:
    """Seconds until the last rank has opened the shards, and CPU seconds of all."""
    processes = []
    for rank, cache in enumerate(caches):
        environment = {"RANK": str(rank), "WORLD_SIZE": str(len(caches)), "SHOAL_CACHE_DIR": str(cache)}
        command = [sys.executable, "-c", OPEN, url]
        processes.append(subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.PIPE, text=True))
    said = [json.loads(process.communicate()[0]) for process in processes]
    assert len({fingerprint for _, _, fingerprint in said}) == 1
    return max(seconds for seconds, _, _ in said), sum(cpu for _, cpu, _ in said)


if __name__ == "__main__":
    main()
