"""How soon an epoch begins if nobody has indexed its shards, how fast it goes on, and what crosses the network for it.

``python bench/growing.py`` links ``--shards`` tars of members of 1 to 4 KiB and serves them by a process that answers
after 20 ms and sends 60 MB/s over each connection. In interleaved rounds it times, each time in new processes with a
new cache directory, from the construction of a dataset to its first batch of 64 (the last rank's):

    grow         shoal.open(url, index="grow").shuffle(), in one process, and in 4 ranks with 2 workers each
    webdataset   WebDataset of the same shards, shuffled by 1,000 samples (of which 100 are read before the first)

and then an epoch, by ``grow`` and by ``indexed``: shoal with an index that was made before and the same window.
Imports are not in any of these times: processes are told to begin when all have imported what they use, and so has the
fork server from which shoal's loader takes its workers (WebDataset's are forked from ranks). WebDataset's
environment is that of the tests (``.compat/peers``). Each limit is printed with what was measured, and "met" or
"short".
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
ROOT = HERE.parent
NUM_DISTINCT = 16  # shards; the others are links to them
BATCH = 64
JOB = (4, 2)  # ranks, and workers of each
# Seconds that the first batch may take longer than WebDataset's, alone and in a job; the share of the speed of an
# indexed stream; the number of times that a byte may cross the network.
LIMITS = {"first batch": 2.0, "first batch in a job": 3.0, "speed": 0.8, "bytes": 1.3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=1024)
    parser.add_argument("--shard-kb", type=int, default=1000)
    parser.add_argument("--link-mb", type=float, help="MB/s of all connections together (default: no limit)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("first", "job", "epoch"), nargs="+", default=("first", "job", "epoch"))
    parser.add_argument("--cold", action="store_true", help="count the imports of the fork server")
    parser.add_argument("--without-webdataset", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        run_one(**json.loads(arguments.one))
        return
    from servers.quick import Quick  # noqa: PLC0415  # processes of WebDataset have no shoal

    with tempfile.TemporaryDirectory(prefix="bench-growing-") as scratch:
        data = Path(scratch, "data")
        num_bytes = make_tars(data, arguments.shards, arguments.shard_kb * 1000)
        print(f"{arguments.shards:,} tars, {num_bytes / 1e6:,.0f} MB, 20 ms, 60 MB/s a connection", flush=True)
        with Quick(data, 20.0, 60.0, arguments.link_mb) as server:
            bench = Bench(Path(scratch), server, arguments.shards, num_bytes, is_cold=arguments.cold)
            peers = () if arguments.without_webdataset else ("webdataset",)
            if "first" in arguments.only:
                bench.first(("grow", *peers), 1, 0, arguments.rounds, "first batch")
            if "job" in arguments.only:
                bench.first(("grow", *peers), *JOB, arguments.rounds, "first batch in a job")
            if "epoch" in arguments.only:
                bench.epochs(arguments.rounds)


def make_tars(data: Path, num_shards: int, shard_bytes: int) -> int:
    """Write some shards and link the others to them; return the bytes of all."""
    data.mkdir()
    random = np.random.default_rng(0)
    total = 0
    for shard in range(num_shards):
        path = data / f"train-{shard:06d}.tar"
        if shard < NUM_DISTINCT:
            with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
                while tar.offset < shard_bytes:
                    info = tarfile.TarInfo(f"{shard:04d}{tar.offset:010d}.bin")
                    info.size = int(random.integers(1024, 4096))
                    tar.addfile(info, BytesIO(random.bytes(info.size)))
        else:
            os.link(data / f"train-{shard % NUM_DISTINCT:06d}.tar", path)
        total += path.stat().st_size
    return total


class Bench:
    """Runs of the two libraries on the shards of one server."""

    def __init__(self, scratch: Path, server: Any, num_shards: int, num_bytes: int, *, is_cold: bool) -> None:
        self.is_cold = is_cold
        self.scratch, self.server, self.num_shards, self.num_bytes = scratch, server, num_shards, num_bytes
        self.pythons: dict[str, str] = {}
        self.source = os.environ.get("PYTHONPATH", str(ROOT / "src"))

    def first(self, kinds: tuple[str, ...], ranks: int, workers: int, rounds: int, limit: str) -> None:
        """Print the seconds to the first batch of each kind, and the limit."""
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        for number in range(rounds):
            for kind in kinds:
                found = self.run(kind, ranks, workers, seed=number, is_epoch=False)
                seconds[kind].append(found["first"])
                print(f"  {limit}, {kind}: {self.told(found)}", flush=True)
        for kind, each in seconds.items():
            print(f"{limit}, {kind}: {statistics.median(each):.2f} s ({min(each):.2f} to {max(each):.2f})")
        if len(kinds) > 1:
            more = statistics.median(seconds[kinds[0]]) - statistics.median(seconds[kinds[1]])
            judge(f"{limit}: seconds later than WebDataset's", more, LIMITS[limit], is_most=True)

    def epochs(self, rounds: int) -> None:
        """Print the speed of epochs with and without an index, and the bytes that cross the network."""
        ratios, times = [], []
        with tempfile.TemporaryDirectory(dir=self.scratch) as made:
            self.run("indexed", 1, 0, seed=0, is_epoch=False, cache=made)
            for number in range(rounds):
                found = {
                    kind: self.run(kind, 1, 0, seed=number, is_epoch=True, cache=made if kind == "indexed" else None)
                    for kind in ("indexed", "grow")
                }
                for kind, each in found.items():
                    print(f"  epoch, {kind}: {self.told(each)}", flush=True)
                ratios.append(found["indexed"]["rest"] / found["grow"]["rest"])
                times.append(found["grow"]["crossed"] / self.num_bytes)
        print(f"speed after the first batch, each round: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")
        judge("speed after the first batch, of that with an index", statistics.median(ratios), LIMITS["speed"])
        judge("times each byte crosses the network", max(times), LIMITS["bytes"], is_most=True)

    def told(self, found: dict[str, Any]) -> str:
        """Return figures of one run as text."""
        text = f"{found['first']:6.2f} s"
        if found["rest"]:
            speed = self.num_bytes / 1e6 / found["rest"]
            text += f", then {found['rest']:6.2f} s ({speed:.0f} MB/s)"
        text += f", {found['cpu']:.1f} s of CPU, {found['stats']:,} stats, {found['ranges']:,} ranges"
        text += f", {found['crossed'] / 1e6:,.0f} MB"
        return f"{text}{found['more']}, load {os.getloadavg()[0]:.1f}"

    def run(
        self, kind: str, ranks: int, workers: int, *, seed: int, is_epoch: bool, cache: str | None = None
    ) -> dict[str, Any]:
        """Run one job in new processes, and return its figures: those of its slowest rank."""
        with tempfile.TemporaryDirectory(dir=self.scratch) as fresh:
            self.server.seen()
            processes = []
            for rank in range(ranks):
                asked = {"kind": kind, "url": self.server.url, "num_shards": self.num_shards, "workers": workers}
                asked |= {"seed": seed, "is_epoch": is_epoch, "is_cold": self.is_cold}
                environment = {"SHOAL_CACHE_DIR": cache or fresh, "TMPDIR": fresh, "OMP_NUM_THREADS": "1"}
                environment |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
                environment["PYTHONPATH"] = "" if kind == "webdataset" else self.source
                processes.append(
                    subprocess.Popen(
                        [self.python(kind), __file__, "--one", json.dumps(asked)],
                        env=os.environ | environment,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        text=True,
                        start_new_session=True,
                    )
                )
            for process in processes:
                process.stdout.readline()
            for process in processes:
                process.stdin.write("begin\n")
                process.stdin.flush()
            found = [json.loads(process.stdout.readline()) for process in processes]
            for process in processes:
                os.killpg(process.pid, signal.SIGKILL)  # with its workers
                process.communicate()
            seen = self.server.seen()["ranges"]
        return {
            "first": max(each["first"] for each in found),
            "rest": max(each["rest"] for each in found),
            "cpu": sum(each["cpu"] for each in found),
            "num_samples": sum(each["num_samples"] for each in found),
            "more": found[0]["more"],
            "stats": sum(num_bytes <= 1 for _, _, num_bytes in seen),
            "ranges": sum(num_bytes > 1 for _, _, num_bytes in seen),
            "crossed": sum(num_bytes for _, _, num_bytes in seen),
        }

    def python(self, kind: str) -> str:
        """Return the interpreter of a library, whose environment is made if it is missing."""
        if kind != "webdataset":
            return sys.executable
        if kind not in self.pythons:
            sys.path.insert(0, str(ROOT))
            from tests.compat.peers.environments import OF_ORDERS, TORCHVISION  # noqa: PLC0415
            from tests.environments import environment, home_of  # noqa: PLC0415

            home, packages = home_of(ROOT / ".compat" / "peers", "webdataset-torch"), OF_ORDERS["webdataset-torch"]
            self.pythons[kind] = str(environment(home, packages.packages, stand_ins=TORCHVISION, torch=True))
        return self.pythons[kind]


def judge(what: str, found: float, limit: float, *, is_most: bool = False) -> None:
    """Print what was measured next to its limit."""
    is_met = found <= limit if is_most else found >= limit
    print(f"{what}: {found:.2f}, {'at most' if is_most else 'at least'} {limit}: {'met' if is_met else 'short'}")
    sys.stdout.flush()


def run_one(is_epoch: bool, **asked: Any) -> None:  # noqa: FBT001
    """Be one rank: import, tell so, wait, and tell how long the first batch and the rest took."""
    begin = (of_webdataset if asked["kind"] == "webdataset" else of_shoal)(**asked)
    print("ready", flush=True)
    sys.stdin.readline()
    began, worked = time.perf_counter(), sum(os.times()[:4])
    batches, more = begin()
    num_samples = len(first_field(next(batches)))
    first = time.perf_counter() - began
    if is_epoch:
        for batch in batches:
            num_samples += len(first_field(batch))
    rest = time.perf_counter() - began - first if is_epoch else 0.0
    told = {"first": first, "rest": rest, "cpu": sum(os.times()[:4]) - worked, "more": more()}
    print(json.dumps(told | {"num_samples": num_samples}), flush=True)
    sys.stdin.readline()  # until it is killed


def first_field(batch: Any) -> Any:
    return batch["bin"] if isinstance(batch, dict) else batch[0]


def of_webdataset(url: str, num_shards: int, workers: int, seed: int, **_: Any) -> Any:
    """Return a function that makes WebDataset's batches."""
    import webdataset as wds  # noqa: PLC0415  # an environment of its own

    def begin() -> Any:
        urls = [f"pipe:curl -s -f {url}/train-{shard:06d}.tar" for shard in range(num_shards)]
        split = {"nodesplitter": wds.split_by_node, "workersplitter": wds.split_by_worker}
        dataset = wds.WebDataset(urls, shardshuffle=num_shards, seed=seed, empty_check=False, **split)
        dataset = dataset.shuffle(1000).to_tuple("bin").batched(BATCH)
        return iter(wds.WebLoader(dataset, batch_size=None, num_workers=workers) if workers else dataset), str

    return begin


def start_fork_server(loader: Any) -> None:
    """Start the process that shoal's workers are forked from, and wait until it has imported what they use."""
    import shoal  # noqa: PLC0415  # as above

    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "few.jsonl").write_text('{"x": 1}\n' * 64)
        for _ in loader(shoal.open(directory).batch(1), num_workers=1):
            pass


def of_shoal(kind: str, url: str, num_shards: int, workers: int, seed: int, is_cold: bool) -> Any:  # noqa: FBT001
    """Return a function that makes shoal's batches, with a text about pieces and waits."""
    import shoal  # noqa: PLC0415  # the package of PYTHONPATH

    _ = shoal.open
    if workers:
        import shoal.torch  # noqa: PLC0415  # as above

        loader = shoal.torch.DataLoader
        if not is_cold:
            start_fork_server(loader)

    def begin() -> Any:
        index = "grow" if kind == "grow" else "wait"
        dataset = shoal.open(f"{url}/train-{{000000..{num_shards - 1:06d}}}.tar", index=index).shuffle(seed=seed)
        dataset = dataset.batch(BATCH)
        if workers:
            return iter(loader(dataset, num_workers=workers)), str
        batches = iter(dataset)

        def more() -> str:
            stats = dataset.stats()
            return f", {stats['num_pieces']} pieces, {stats['index_wait_seconds']:.1f} s of waits for the index"

        return batches, more

    return begin


if __name__ == "__main__":
    main()
