"""How fast tars stream from a remote store, next to the limit: the same ranges, by as many raw GETs at a time.

``python bench/remote.py`` makes three datasets of tars in a temporary directory (members of 4 KiB, 100 KB and 1 MB) and
serves each from a process of its own (`servers/quick.py`, which takes little of the processors that are shared with it)
that answers after 20 ms and sends 60 MB/s over each connection. Then, several times in turn, it streams an epoch with
shoal (one process, a window of 64 MiB, sample by sample; the index was made before), and fetches the very ranges that
shoal asked for, in the order in which it did: by libcurl in one thread (its multi interface), and nothing done with the
bytes; as many at a time as shoal had requests under way at most, and the number that was best of several, tried once
before, twice as many among them. Shoal and the raw GETs keep their connections from round to round. ``--plain`` lets
shoal read without libcurl; ``--client obstore`` does all of it by S3, through obstore, the raw GETs in as many threads.
Ratios are taken within each round; their median is printed, and the medians of the rates.

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
import threading
import time
from collections import deque
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pycurl as _pycurl
from obstore.store import S3Store
from servers.quick import Quick

import shoal
from shoal.reading.remote.request_pool import RequestPool

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
    parser.add_argument("--client", choices=["http", "obstore"], default="http", help="http, or S3")
    parser.add_argument("--plain", action="store_true", help="http by the standard library's client")
    parser.add_argument("--most", type=int, metavar="N", help="let shoal make so many requests at a time")
    parser.add_argument("--raw", type=int, metavar="N", help="so many raw GETs at a time, and not the best number")
    parser.add_argument("--members", type=int, nargs="+", default=MEMBER_BYTES, help="bytes of a member")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--peak", metavar="URL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.plain:
        sys.modules["pycurl"] = None  # type: ignore[assignment]
    if arguments.most:
        RequestPool.__init__.__kwdefaults__["most_at_a_time"] = arguments.most  # type: ignore[misc]
    if arguments.peak:
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
            with Quick(shards.parent, arguments.latency_ms, arguments.connection_mb) as server:
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


def measure(server: Quick, member_bytes: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One dataset: rounds of an epoch with shoal, then the same ranges raw; both are warm when the first begins."""
    dataset = opened(server.url, arguments.client).shuffle(seed=0, window=arguments.window, chunk=arguments.chunk)
    payload = dataset.num_samples * member_bytes
    raw = Raw(server.url, arguments.client)
    server.seen()
    read(dataset)
    first = server.seen()
    tried = {number: measured(raw.fetch, first["ranges"], number) for number in at_a_time(first["concurrency"])}
    best = arguments.raw or min(tried, key=lambda number: tried[number]["seconds"])
    rounds = []
    for number in range(arguments.rounds):
        server.seen()
        shoals = measured(read, dataset)
        seen = server.seen()
        raws = measured(raw.fetch, seen["ranges"], seen["concurrency"])
        of_raw = server.seen()
        bests = raws if best == seen["concurrency"] else measured(raw.fetch, seen["ranges"], best)
        sent = sum(num_bytes for _, _, num_bytes in seen["ranges"])
        assert sorted(of_raw["ranges"]) == sorted(seen["ranges"])
        rounds.append({"epoch": number, "sent": sent, "requests": len(seen["ranges"])})
        rounds[-1] |= {"concurrency": seen["concurrency"], "shoal": shoals, "raw": raws, "best": bests}
        rounds[-1] |= {"server_cpu_seconds": of_raw["cpu_seconds"] - seen["cpu_seconds"]}
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
    command += ["--plain"] if arguments.plain else []
    command += ["--most", str(arguments.most)] if arguments.most else []
    peak = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    shard_bytes = sum(path.stat().st_size for path in server.directory.rglob("*.tar"))
    stats = {name: value for name, value in dataset.stats().items() if name.startswith("num_")}
    return {
        "client": arguments.client,
        "member_bytes": member_bytes,
        "payload_bytes": payload,
        "shard_bytes": shard_bytes,
        "num_samples": dataset.num_samples,
        "resolved": str(dataset.resolved),
        "rounds": rounds,
        "raw_best": best,
        "raw_tried": tried,
        "stats_of_all_rounds": stats,
        "latency_ms": arguments.latency_ms,
        "connection_mb": arguments.connection_mb,
        **peak,
    }


def at_a_time(concurrency: int) -> list[int]:
    """With how many raw GETs at a time it is tried: what shoal had at most, twice that, and others."""
    return sorted({concurrency, 2 * concurrency, 32, 64, 128})


def measured(call: Callable[..., object], *arguments: Any) -> dict[str, float]:
    """Seconds of the wall and of this process's processor that a call takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    call(*arguments)
    return {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}


def read(dataset: shoal.Dataset) -> None:
    """An epoch, sample by sample, of which nothing is kept."""
    for sample in dataset:
        sample["bin"]


class Raw:
    """GETs of ranges and nothing else, with the clients that shoal uses; connections are kept."""

    def __init__(self, url: str, client: str) -> None:
        self.fetch = self._by_http if client == "http" else self._by_s3
        self._url, self._multi = url, _pycurl.CurlMulti()
        self._multi.setopt(_pycurl.M_MAXCONNECTS, 512)
        options = {"skip_signature": True, "region": "us-east-1", "client_options": {"allow_http": True}}
        self._store = S3Store(BUCKET, endpoint=url, **options)

    def _by_http(self, ranges: list[tuple[str, int, int]], at_a_time: int) -> None:
        """All of them, so many at a time, from one thread, which only hears how long each piece is."""
        left, idle, num_left = deque(ranges), [_pycurl.Curl() for _ in range(at_a_time)], len(ranges)
        for curl in idle:
            curl.setopt(_pycurl.WRITEFUNCTION, len)
            curl.setopt(_pycurl.BUFFERSIZE, 1 << 16)
        while num_left:
            while idle and left:
                path, first, num_bytes = left.popleft()
                curl = idle.pop()
                curl.setopt(_pycurl.URL, f"{self._url}/{path}")
                curl.setopt(_pycurl.RANGE, f"{first}-{first + num_bytes - 1}")
                self._multi.add_handle(curl)
            self._multi.perform()
            _, answered, failed = self._multi.info_read()
            assert not failed, failed
            for curl in answered:
                assert curl.getinfo(_pycurl.RESPONSE_CODE) == 206
                self._multi.remove_handle(curl)
                idle.append(curl)
                num_left -= 1
            if not answered:
                self._multi.select(1.0)

    def _by_s3(self, ranges: list[tuple[str, int, int]], num_threads: int) -> None:
        """All of them, with so many threads, each taking the next."""
        left = deque(ranges)
        failed: list[BaseException] = []

        def run() -> None:
            try:
                with contextlib.suppress(IndexError):
                    while not failed:
                        path, first, num_bytes = left.popleft()
                        key = path.partition("/")[2]
                        data = obstore.get_range(self._store, key, start=first, end=first + num_bytes)
                        assert len(data) == num_bytes
            except BaseException as error:  # noqa: BLE001  # raised below
                failed.append(error)

        threads = [threading.Thread(target=run) for _ in range(num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]


def opened(url: str, client: str) -> shoal.Dataset:
    """The tars of a server, read by one of the clients."""
    shards = f"train-{{000000..{NUM_SHARDS - 1:06d}}}.tar"
    if client == "http":
        return shoal.open(f"{url}/{BUCKET}/{shards}")
    options = {"endpoint": url, "anonymous": True, "region": "us-east-1"}
    return shoal.open(f"s3://{BUCKET}/{shards}", storage_options=options)


def show(measured: dict[str, Any]) -> None:
    rounds, payload = measured["rounds"], measured["payload_bytes"]
    members = f"members of {measured['member_bytes']:,} bytes, {measured['num_samples']:,} samples"
    print(f"\n{measured['client']}, {members}, {measured['resolved']}")
    print(f"{measured['latency_ms']:g} ms, {measured['connection_mb']:g} MB/s per connection, {len(rounds)} rounds")
    tried = {number: payload / one["seconds"] / 1e6 for number, one in measured["raw_tried"].items()}
    last, best = rounds[-1], measured["raw_best"]
    names = {"shoal": "shoal", "raw": f"raw, {last['concurrency']} at a time", "best": f"raw, {best} at a time"}
    for name, words in names.items():
        rates = [payload / one[name]["seconds"] / 1e6 for one in rounds]
        cpu = statistics.median(one[name]["cpu_seconds"] / payload * 1e9 for one in rounds)
        ratios = sorted(one[name]["seconds"] / one["shoal"]["seconds"] for one in rounds)
        of_raw = f"; shoal has {statistics.median(ratios):.2f} of it ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        spread = f"{min(rates):.0f} to {max(rates):.0f}"
        line = f"  {words:20} {statistics.median(rates):6.0f} MB/s of payload ({spread}), {cpu:.2f} CPU s/GB"
        print(line + (of_raw if name != "shoal" else ""))
    numbers = ", ".join(f"{number}: {rate:.0f}" for number, rate in tried.items())
    print(f"  wanted: 0.90 of as many at a time; tried once before, raw GETs at a time and MB/s: {numbers}")
    server = statistics.median(one["server_cpu_seconds"] / one["requests"] * 1e6 for one in rounds)
    mean_kb = last["sent"] / last["requests"] / 1e3
    of_shards, of_payload = last["sent"] / measured["shard_bytes"], last["sent"] / payload
    print(f"  an epoch: {last['requests']:,} requests of {mean_kb:.0f} KB, at most {last['concurrency']} at a time;")
    print(f"  each took {server:.0f} us of the server's processor")
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
