"""What a range costs through `HttpStore`, by libcurl and by the plain client, and through that of another checkout.

``python bench/http_stores.py --before CHECKOUT`` reads random ranges into memory of their own, in a process of its own
for each client, one after the other in each round: from a server (`servers/quick.py`) that answers after 20 ms and
sends 60 MB/s over each connection, by 46 threads; from one that answers at once, by one thread; and by TLS
(`servers/ranges_by_tls.py`). It prints the processor time of a GET, and the median ratio to the other checkout's (else
to libcurl's) within a round, with the least and the most.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

from servers.quick import Quick

NUM_BYTES = 40_000_000
ROOT = Path(__file__).parents[1]
CERTIFICATE = ROOT / "tests" / "storage" / "data" / "localhost.pem"
TLS_SERVER = Path(__file__).parent / "servers" / "ranges_by_tls.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", metavar="CHECKOUT", help="compare with the store of this checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--number", type=int, default=1500, help="GETs")
    parser.add_argument("--one", nargs=4, metavar=("URL", "THREADS", "BYTES", "CLIENT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print_one(*arguments.one, arguments.number)
        return
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "0").write_bytes(random.Random(0).randbytes(NUM_BYTES))
        with Quick(Path(directory), 20.0, 60.0) as server:
            compare(f"{server.url}/0", [(46, 129_013), (46, 4_608)], arguments)
        with Quick(Path(directory), 0.0, 6000.0) as server:
            compare(f"{server.url}/0", [(1, 129_013), (1, 4_608)], arguments)
    words = [sys.executable, str(TLS_SERVER), str(CERTIFICATE)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            compare(f"https://127.0.0.1:{int(process.stdout.readline())}/0", [(1, 129_013), (32, 129_013)], arguments)
        finally:
            process.terminate()


def compare(url: str, cases: list[tuple[int, int]], arguments: argparse.Namespace) -> None:
    """Measure each client in each case in turn, round by round, and print what they cost."""
    clients = {"before": arguments.before} if arguments.before else {}
    clients |= {"libcurl": str(ROOT), "plain": str(ROOT)}
    costs = defaultdict(list)
    for _ in range(arguments.rounds):
        for num_threads, num_bytes in cases:
            for client, checkout in clients.items():
                words = ["--number", str(arguments.number), "--one", url, str(num_threads), str(num_bytes), client]
                environment = {"PYTHONPATH": f"{checkout}/src", "PATH": ""}
                done = subprocess.run(
                    [sys.executable, __file__, *words], env=environment, check=True, capture_output=True, text=True
                )
                costs[num_threads, num_bytes, client].append(float(done.stdout))
    for (num_threads, num_bytes, client), each in costs.items():
        others = costs[num_threads, num_bytes, next(iter(clients))]
        ratios = sorted(one / other for one, other in zip(each, others, strict=True))
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        what = f"{url.partition(':')[0]:5} {num_threads:2} threads, {num_bytes:6} bytes, {client:7}"
        print(f"{what} {min(each):4.0f} us at least, median {statistics.median(each):4.0f}; {spread}", flush=True)


def print_one(url: str, threads: str, size: str, client: str, number: int) -> None:
    """Print the microseconds of processor of a GET."""
    if client == "plain":
        sys.modules["pycurl"] = None  # type: ignore[assignment]
    from shoal.storage.http.http_store import HttpStore  # noqa: PLC0415  # the client is chosen before

    store, draw, num_bytes = HttpStore({"ca_bundle": str(CERTIFICATE)}), random.Random(0), int(size)

    def read(num_gets: int) -> None:
        left = [draw.randrange(NUM_BYTES - num_bytes) for _ in range(num_gets)]

        def run() -> None:
            while left:
                try:
                    place = left.pop()
                except IndexError:
                    return
                store.fill(url, place, memoryview(bytearray(num_bytes)))

        running = [threading.Thread(target=run) for _ in range(int(threads))]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()

    read(2 * int(threads))  # connections are made
    began = time.process_time()
    read(number)
    print((time.process_time() - began) / number * 1e6)


if __name__ == "__main__":
    main()
