"""What a GET over http costs with one client or another: the choice behind `shoal.storage.http`.

``python bench/http_clients.py`` fetches 3,000 random ranges of 129 KB into memory of their own, 46 at a time, from a
server that answers after 20 ms and sends 60 MB/s over each connection; with nothing done with them, and beside 240 us
of Python for each in the main thread, which is what streaming samples of 4 KiB takes. It prints MB/s, and the processor
time of a GET beside that work. Clients that are not installed (urllib3, pycurl, aiohttp) are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import itertools
import queue
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.store import HTTPStore
from servers.quick import Quick

NUM_BYTES, AT_A_TIME, NUM_FILES, FILE_BYTES = 129_013, 46, 8, 40_000_000


class Work:
    """Ranges to be fetched, each by whoever comes next, and what was fetched."""

    def __init__(self, url: str, number: int) -> None:
        self.url, self.number = url, number
        self.place = urlsplit(url)
        draw = random.Random(0)
        ranges = [(f"{draw.randrange(NUM_FILES)}", draw.randrange(FILE_BYTES - NUM_BYTES)) for _ in range(number)]
        self._left: Iterator[tuple[str, int]] = iter(ranges)
        self._lock = threading.Lock()
        self.done: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def next(self) -> tuple[str, str] | None:
        """Name and range as they are asked for."""
        with self._lock:
            name, first = next(self._left, ("", 0))
        return (name, f"{first}-{first + NUM_BYTES - 1}") if name else None


def by_http_client(work: Work) -> None:
    connection = HTTPConnection(work.place.hostname or "", work.place.port, timeout=30)
    while asked := work.next():
        connection.request("GET", f"/{asked[0]}", headers={"Range": f"bytes={asked[1]}"})
        answer, buffer = connection.getresponse(), bytearray(NUM_BYTES)
        assert (answer.status, answer.readinto(buffer)) == (206, NUM_BYTES)
        work.done.put(buffer)


def by_urllib3(work: Work) -> None:
    library = importlib.import_module("urllib3")
    pool = library.HTTPConnectionPool(work.place.hostname, work.place.port)
    while asked := work.next():
        answer = pool.urlopen("GET", f"/{asked[0]}", headers={"Range": f"bytes={asked[1]}"}, retries=False)
        assert (answer.status, len(answer.data)) == (206, NUM_BYTES)
        work.done.put(answer.data)


def by_pycurl(work: Work) -> None:
    library = importlib.import_module("pycurl")
    curl = library.Curl()
    curl.setopt(library.BUFFERSIZE, 1 << 18)
    curl.setopt(library.NOSIGNAL, 1)
    while asked := work.next():
        buffer = bytearray()
        curl.setopt(library.URL, f"{work.url}/{asked[0]}")
        curl.setopt(library.RANGE, asked[1])
        curl.setopt(library.WRITEFUNCTION, buffer.extend)
        curl.perform()
        assert len(buffer) == NUM_BYTES
        work.done.put(buffer)


def by_multi(work: Work) -> None:
    """From one thread for all: the limit, with nothing of Python for an answer but to hear of its pieces."""
    library = importlib.import_module("pycurl")
    multi, idle, num_left = library.CurlMulti(), [library.Curl() for _ in range(AT_A_TIME)], work.number
    for curl in idle:
        curl.setopt(library.BUFFERSIZE, 1 << 18)
        curl.setopt(library.WRITEFUNCTION, len)
    while num_left:
        while idle and (asked := work.next()):
            curl = idle.pop()
            curl.setopt(library.URL, f"{work.url}/{asked[0]}")
            curl.setopt(library.RANGE, asked[1])
            multi.add_handle(curl)
        multi.perform()
        _, answered, failed = multi.info_read()
        assert not failed, failed
        for curl in answered:
            multi.remove_handle(curl)
            work.done.put(b"")
        idle += answered
        num_left -= len(answered)
        if not answered:
            multi.select(1.0)


def by_obstore(work: Work) -> None:
    store = HTTPStore.from_url(work.url, client_options={"allow_http": True})
    while asked := work.next():
        first = int(asked[1].partition("-")[0])
        work.done.put(obstore.get_range(store, asked[0], start=first, end=first + NUM_BYTES))


def by_aiohttp(work: Work) -> None:
    library = importlib.import_module("aiohttp")

    async def fetch(session: Any) -> None:
        while asked := work.next():
            async with session.get(f"{work.url}/{asked[0]}", headers={"Range": f"bytes={asked[1]}"}) as answer:
                data = await answer.read()
                assert (answer.status, len(data)) == (206, NUM_BYTES)
                work.done.put(data)

    async def run() -> None:
        async with library.ClientSession(connector=library.TCPConnector(limit=AT_A_TIME)) as session:
            await asyncio.gather(*(fetch(session) for _ in range(AT_A_TIME)))

    asyncio.run(run())


# Each with how many threads: one where the client itself asks for many at a time.
CLIENTS: dict[str, tuple[str, Callable[[Work], None], int]] = {
    "http.client": ("http.client", by_http_client, AT_A_TIME),
    "urllib3": ("urllib3", by_urllib3, AT_A_TIME),
    "libcurl (pycurl)": ("pycurl", by_pycurl, AT_A_TIME),
    "libcurl, one multi": ("pycurl", by_multi, 1),
    "aiohttp": ("aiohttp", by_aiohttp, 1),
    "obstore": ("obstore", by_obstore, AT_A_TIME),
}


def measured(fetch: Callable[[Work], None], num_threads: int, work: Work, beside_us: float) -> tuple[float, float]:
    """MB/s, and microseconds of processor a GET beside the work of the main thread."""
    threads = [threading.Thread(target=fetch, args=(work,), daemon=True) for _ in range(num_threads)]
    began, cpu = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for _ in range(work.number):
        work.done.get(timeout=60)
        until = time.thread_time() + beside_us / 1e6
        while time.thread_time() < until:
            pass
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return work.number * NUM_BYTES / seconds / 1e6, cpu / work.number * 1e6 - beside_us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=3000, help="GETs of each client")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        data = random.Random(0).randbytes(FILE_BYTES)
        for number in range(NUM_FILES):
            Path(directory, str(number)).write_bytes(data)
        with Quick(Path(directory), 20.0, 60.0) as server:
            for beside_us, (name, client) in itertools.product((0.0, 240.0), CLIENTS.items()):
                library, fetch, num_threads = client
                if importlib.util.find_spec(library) is None:
                    continue
                rate, cost = measured(fetch, num_threads, Work(server.url, arguments.number), beside_us)
                print(f"{name:18} beside {beside_us:3.0f} us: {rate:4.0f} MB/s, {cost:4.0f} us a GET", flush=True)


if __name__ == "__main__":
    main()
