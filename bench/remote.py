"""How fast tars stream from far away, next to the limit: the same ranges, by as many raw GETs at a time.

``python bench/remote.py`` makes three datasets of tars in a temporary directory (members of 4 KiB, 100 KB and 1 MB) and
serves each from a process of its own (`shoal.testing.RangeServer`) that answers after 20 ms and sends 60 MB/s over each
connection. Then, several times in turn, it streams an epoch with shoal (one process, a window of 64 MiB, sample by
sample; the index was made before), and fetches the very ranges that shoal asked for, in the order in which it did, with
as many threads as shoal had requests under way at most: urllib3, the client that shoal uses for http, and nothing done
with the bytes. ``--client obstore`` does all of it by S3, through obstore. The ratio is taken within each round; its
median is printed, and the medians of the rates.

Amplification is counted by the server: bytes sent for each byte of the shards, and for each byte of payload (a member
of 4 KiB has a header of 512 bytes, which is the format's). The peak of memory is that of a process that does nothing
else.

What other loaders reached (64 MiB too, 20 ms, an unlimited connection to `s3mini`) was measured elsewhere, on a like
machine, and is printed for orientation only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any, Self

import numpy as np
import obstore
import urllib3
from obstore.store import S3Store

import shoal
from shoal.testing import RangeServer

MEASURED_ELSEWHERE = {"litdata": 197, "HF datasets (Parquet)": 82, "MosaicML Streaming": 69, "WebDataset": 53}
MEMBER_BYTES = (4096, 100_000, 1_000_000)
NUM_SHARDS = 8
BUCKET = "bucket"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=1000, help="payload of each dataset")
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--connection-mb", type=float, default=60.0, help="MB/s of each connection")
    parser.add_argument("--window", default="64MiB")
    parser.add_argument("--chunk", help="bytes of a request (default: what shoal takes for this window)")
    parser.add_argument("--client", choices=["urllib3", "obstore"], default="urllib3", help="http, or S3")
    parser.add_argument("--members", type=int, nargs="+", default=MEMBER_BYTES, help="bytes of a member")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--serve", metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--peak", metavar="URL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments)
    elif arguments.peak:
        print_peak(arguments)
    else:
        measure_all(arguments)


def measure_all(arguments: argparse.Namespace) -> None:
    measured = []
    with tempfile.TemporaryDirectory() as directory:
        os.environ["SHOAL_CACHE_DIR"] = str(Path(directory, "cache"))
        for member_bytes in arguments.members:
            shards = Path(directory, str(member_bytes), BUCKET)
            make_tars(shards, member_bytes, arguments.megabytes * 10**6 // member_bytes)
            with Server(shards.parent, arguments) as server:
                measured.append(measure(server, member_bytes, arguments))
            show(measured[-1])
            for path in shards.iterdir():
                path.unlink()
    others = ", ".join(f"{name} {rate}" for name, rate in MEASURED_ELSEWHERE.items())
    print(f"\nmeasured elsewhere, on a like machine, in MB/s: {others}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(measured, indent=2) + "\n")


def make_tars(directory: Path, member_bytes: int, num_members: int) -> None:
    """Write ustar shards of one member a sample, with random bytes."""
    directory.mkdir(parents=True)
    random = np.random.default_rng(0)
    for shard, numbers in enumerate(np.array_split(np.arange(num_members), NUM_SHARDS)):
        with tarfile.open(directory / f"train-{shard:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in numbers:
                info = tarfile.TarInfo(f"{number:08d}.bin")
                info.size = member_bytes
                tar.addfile(info, BytesIO(random.bytes(member_bytes)))


class Server:
    """A server in a process of its own: its work must not count as the client's."""

    def __init__(self, shards: Path, arguments: argparse.Namespace) -> None:
        self.shards = shards
        speed = ["--latency-ms", str(arguments.latency_ms), "--connection-mb", str(arguments.connection_mb)]
        self._command = [sys.executable, __file__, "--serve", str(shards), *speed]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = self.told()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # its end of input is what ends it

    def told(self) -> Any:
        """The next thing it says."""
        assert self._process.stdout
        return json.loads(self._process.stdout.readline())

    def seen(self) -> dict[str, Any]:
        """What was asked of it since this was last called."""
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return dict(self.told())


def serve(arguments: argparse.Namespace) -> None:
    """Be the server: a line with the URL, then one with what was seen for each line that comes in."""
    rate = arguments.connection_mb * 1e6
    with RangeServer(arguments.serve, latency_seconds=arguments.latency_ms / 1000, bytes_per_second=rate) as server:
        print(json.dumps(server.url), flush=True)
        for _ in sys.stdin:
            ranges = [(seen.path, seen.first_byte, seen.num_bytes) for seen in server.exchanges]
            print(json.dumps({"ranges": ranges, "concurrency": server.peak_concurrency}), flush=True)
            server.clear()


def measure(server: Server, member_bytes: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One dataset: rounds of an epoch with shoal, then the same ranges raw."""
    dataset = opened(server.url, arguments.client).shuffle(seed=0, window=arguments.window, chunk=arguments.chunk)
    payload = dataset.num_samples * member_bytes
    rounds = []
    for number in range(arguments.rounds):
        server.seen()
        with clock() as shoals:
            assert sum(len(sample["bin"]) for sample in dataset) == payload
        seen = server.seen()
        with clock() as raws:
            FETCHES[arguments.client](server.url, seen["ranges"], num_threads=seen["concurrency"])
        sent = sum(num_bytes for _, _, num_bytes in seen["ranges"])
        rounds.append({"epoch": number, "sent": sent, "requests": len(seen["ranges"])})
        rounds[-1] |= {"concurrency": seen["concurrency"], "shoal": dict(shoals), "raw": dict(raws)}
    command = [
        sys.executable,
        __file__,
        "--peak",
        server.url,
        "--window",
        arguments.window,
        "--client",
        arguments.client,
    ]
    command += ["--chunk", arguments.chunk] if arguments.chunk else []
    peak = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    shard_bytes = sum(path.stat().st_size for path in server.shards.rglob("*.tar"))
    stats = {name: value for name, value in dataset.stats().items() if name.startswith("num_")}
    return {
        "client": arguments.client,
        "member_bytes": member_bytes,
        "payload_bytes": payload,
        "shard_bytes": shard_bytes,
        "num_samples": dataset.num_samples,
        "resolved": str(dataset.resolved),
        "rounds": rounds,
        "stats_of_all_rounds": stats,
        "latency_ms": arguments.latency_ms,
        "connection_mb": arguments.connection_mb,
        **peak,
    }


@contextlib.contextmanager
def clock() -> Iterator[dict[str, float]]:
    """Seconds of the wall and of the processor."""
    taken: dict[str, float] = {}
    wall, cpu = time.perf_counter(), time.process_time()
    yield taken
    taken |= {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}


def fetch_raw(url: str, ranges: list[tuple[str, int, int]], *, num_threads: int) -> None:
    """The ranges, with so many threads, each taking the next."""
    with (
        urllib3.PoolManager(maxsize=num_threads, block=True, retries=False) as pool,
        ThreadPoolExecutor(num_threads) as threads,
    ):

        def get(one: tuple[str, int, int]) -> None:
            path, first, num_bytes = one
            answer = pool.request("GET", f"{url}/{path}", headers={"Range": f"bytes={first}-{first + num_bytes - 1}"})
            assert len(answer.data) == num_bytes

        for _ in threads.map(get, ranges):
            pass


def fetch_by_s3(url: str, ranges: list[tuple[str, int, int]], *, num_threads: int) -> None:
    """The same, through obstore."""
    store = S3Store(BUCKET, endpoint=url, skip_signature=True, region="us-east-1", client_options={"allow_http": True})
    with ThreadPoolExecutor(num_threads) as threads:

        def get(one: tuple[str, int, int]) -> None:
            path, first, num_bytes = one
            data = obstore.get_range(store, path.partition("/")[2], start=first, end=first + num_bytes)
            assert len(bytes(data)) == num_bytes

        for _ in threads.map(get, ranges):
            pass


FETCHES = {"urllib3": fetch_raw, "obstore": fetch_by_s3}


def opened(url: str, client: str) -> shoal.Dataset:
    """The tars of a server, read by one of the clients."""
    shards = f"train-{{000000..{NUM_SHARDS - 1:06d}}}.tar"
    if client == "urllib3":
        return shoal.open(f"{url}/{BUCKET}/{shards}")
    options = {"endpoint": url, "anonymous": True, "region": "us-east-1"}
    return shoal.open(f"s3://{BUCKET}/{shards}", storage_options=options)


def show(measured: dict[str, Any]) -> None:
    rounds, payload = measured["rounds"], measured["payload_bytes"]
    members = f"members of {measured['member_bytes']:,} bytes, {measured['num_samples']:,} samples"
    print(f"\n{measured['client']}, {members}, {measured['resolved']}")
    print(f"{measured['latency_ms']:g} ms, {measured['connection_mb']:g} MB/s per connection, {len(rounds)} rounds")
    for name in ("shoal", "raw"):
        rates = [payload / one[name]["seconds"] / 1e6 for one in rounds]
        cpu = statistics.median(one[name]["cpu_seconds"] / payload * 1e9 for one in rounds)
        spread = f"{min(rates):.0f} to {max(rates):.0f}"
        print(f"  {name:6} {statistics.median(rates):6.0f} MB/s of payload ({spread}), {cpu:.2f} CPU s/GB")
    ratio = statistics.median(one["raw"]["seconds"] / one["shoal"]["seconds"] for one in rounds)
    print(f"  shoal / raw {ratio:.2f} (wanted: 0.90)")
    last = rounds[-1]
    mean_kb = last["sent"] / last["requests"] / 1e3
    of_shards, of_payload = last["sent"] / measured["shard_bytes"], last["sent"] / payload
    print(f"  an epoch: {last['requests']:,} requests of {mean_kb:.0f} KB, at most {last['concurrency']} at a time;")
    print(f"  {of_shards:.3f} bytes sent for each of the shards (wanted: 1.02), {of_payload:.3f} for each of payload")
    print(f"  peak memory {measured['peak_mib']:.0f} MiB, of which held at most {measured['held_mib']:.0f}")


def print_peak(arguments: argparse.Namespace) -> None:
    """Stream an epoch in a process that does nothing else, and print the most memory it had."""
    dataset = opened(arguments.peak, arguments.client).shuffle(seed=0, window=arguments.window, chunk=arguments.chunk)
    for _ in dataset:
        pass
    # Not getrusage: a process begins with the peak of the one that started it.
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
    print(json.dumps({"peak_mib": peak, "held_mib": dataset.stats()["peak_held_bytes"] / 2**20}))


if __name__ == "__main__":
    main()
