"""What is read ahead from guessed starts changes nothing that a scan finds, and little that it costs."""

from __future__ import annotations

import random
import tarfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.test_tar_odd import END, header, member, pax
from tests.stream.far import Contents, FarStore, LargeTar, known_costs
from tests.stream.made import reading_threads

from shoal.errors import ShardError, StorageError
from shoal.formats.format_registry import format_named
from shoal.formats.rows.tar import reader
from shoal.formats.rows.tar.reader import Tar
from shoal.index.shard_scan import ShardScan
from shoal.indexing.scan import costs, remote_scans, speculative_reads
from shoal.indexing.scan.remote_scans import ScanReading, ScanReads, scan_in_threads
from shoal.indexing.scan.scan_task import ScanTask
from shoal.indexing.scan.speculative_reads import SpeculativeReads
from shoal.storage.files.memory_pool import MemoryPool
from shoal.storage.store_of_url import open_store
from shoal.testing import RangeServer

MIB = 1 << 20


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes so small that a tar of some members is worth several walks."""
    for module in (costs, remote_scans, speculative_reads, speculative_reads):
        monkeypatch.setattr(module, "REACH_BYTES", 512)
    for module in (speculative_reads, speculative_reads):
        monkeypatch.setattr(module, "ALIGNMENT_BYTES", 512)
    monkeypatch.setattr(speculative_reads, "_MOST_USELESS", 100)
    monkeypatch.setattr(speculative_reads, "_LEAST_REQUESTS", 1)
    monkeypatch.setattr(speculative_reads, "_LEAST_HEADERS", 2)
    monkeypatch.setattr(speculative_reads, "_LEAST_SEARCH_BYTES", 1024)
    monkeypatch.setattr(reader, "_FIRST_WINDOW_BYTES", 512)
    monkeypatch.setattr(reader, "_SMALL_WINDOW_BYTES", 512)


@dataclass
class Counts:
    """What it took to scan a shard: of walks, and in all."""

    store: FarStore
    walk_ranges: list[tuple[int, int]] = field(default_factory=list)

    @property
    def walk_bytes(self) -> int:
        return sum(end - first for first, end in self.walk_ranges)

    @property
    def num_own_requests(self) -> int:
        return len(self.store.requests) - len(self.walk_ranges)


def outcome(scan: Callable[[], ShardScan]) -> Any:
    """All that a scan says, or its error."""
    try:
        found = scan()
    except ShardError as error:
        return error.message, error.shard, error.byte, error.hint
    return found.sample_starts.tolist(), found.layout_crcs.tolist(), found.head, list(found.notes.items())


def outcome_here(tar: Tar, data: Contents) -> Any:
    return outcome(lambda: tar.scan(lambda first, end: data[first:end], len(data), shard="s"))


def outcome_afar(
    tar: Tar,
    data: Contents,
    *,
    request_bytes: int = 1000,
    num_at_once: int = 4,
    fails: bool = False,
    threads: ThreadPoolExecutor | None = None,
) -> tuple[Any, Counts]:
    """What a scan of a remote tar says, and what it took; with ``fails``, walks can read nothing."""
    counts = Counts(FarStore({"s": data}))

    class CountedWalks(SpeculativeReads):
        def __init__(self, fetch: Callable[[int, int], bytes], *arguments: Any, **options: Any) -> None:
            def counted(first_byte: int, end_byte: int) -> bytes:
                counts.walk_ranges.append((first_byte, end_byte))
                data = fetch(first_byte, end_byte)
                if fails:
                    msg = "503"
                    raise StorageError(msg)
                return data

            super().__init__(counted, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch, threads or ThreadPoolExecutor(num_at_once) as pool:
        patch.setattr(remote_scans, "SpeculativeReads", CountedWalks)
        reads = ScanReads(counts.store, known_costs(request_bytes=request_bytes))
        reading = ScanReading(
            reads, "s", len(data), threads=pool, num_at_once=num_at_once, memories=MemoryPool(), format=tar
        )
        found = outcome(lambda: tar.scan(reading, len(data), shard="s"))
        reading.close()
    return found, counts


def payload(draw: random.Random, kind: str, num_bytes: int) -> bytes:
    """Bytes that make guessing easy, hard or wrong."""
    if kind == "zeros":
        return bytes(num_bytes)
    if kind == "noise":
        return draw.randbytes(num_bytes)
    if kind == "archive":
        inner = b"".join(member(b"%d.in" % draw.randrange(10**6), bytes(draw.randrange(4000))) for _ in range(5))
        return inner + (END if draw.randrange(2) else b"") + bytes(num_bytes)
    blocks = [bytes(512)] * (num_bytes // 512)
    for number in range(0, len(blocks), 3):  # lookalikes, of which some lead somewhere
        blocks[number] = header(b"%d.no" % number, draw.choice([0, 512, 1024, 5000, num_bytes, 10**9]))
    return b"".join(blocks)


def part(draw: random.Random, kind: str, number: int, usual_bytes: int) -> bytes:
    name, size = b"%05d.x" % number, draw.choice([0, 100, *[usual_bytes, usual_bytes + draw.randrange(4000)] * 4])
    load = payload(draw, draw.choice(["zeros", "noise", "archive", "lookalikes"]), size)
    if kind == "plain":
        return member(name, load)
    if kind == "same key":
        return member(b"%05d.y%d" % (number - 1, number), load)
    if kind == "pax":
        return pax(path=f"dir/{number:05d}.x", mtime="1.5") + member(b"q", load)
    if kind == "pax size":
        return pax(size=str(len(load))) + header(name, 0) + load + bytes(-len(load) % 512)
    if kind == "long name":
        return member(b"L", b"%05d" % number + b"n" * 700 + b".x\0", b"L") + member(b"q", load)
    if kind == "globals":
        return pax(b"g", comment="git", path=draw.choice(["", "", "all.x"]))
    if kind == "end":
        return END
    kinds = {"directory": b"5", "link": b"2", "device": b"3", "other": b"V", "sparse": b"S"}
    return member(name, load if kind in ("other", "sparse") else b"", kinds[kind])


USUAL = ["plain"] * 12 + ["same key", "pax", "pax size", "long name", "directory", "link", "device", "other"]


@settings(deadline=None, max_examples=50)
@given(
    num_parts=st.sampled_from([5, 40, 70, 100]),
    usual_bytes=st.sampled_from([2500, 6000, 20_000]),
    odd=st.lists(st.tuples(st.sampled_from(["globals"] * 5 + ["end", "sparse"]), st.floats(0, 1)), max_size=2),
    seed=st.integers(0, 2**32),
    damage=st.sampled_from(["none"] * 4 + ["cut", "changed", "no end"]),
    place=st.floats(0, 1),
    num_at_once=st.sampled_from([1, 2, 3, 5]),
)
def test_a_scan_says_what_it_says_here(
    num_parts: int,
    usual_bytes: int,
    odd: list[tuple[str, float]],
    seed: int,
    damage: str,
    place: float,
    num_at_once: int,
) -> None:
    draw = random.Random(seed)
    kinds = draw.choices(USUAL, k=num_parts)
    for kind, where in odd:
        kinds.insert(int(where * num_parts), kind)
    parts = [part(draw, kind, number, usual_bytes) for number, kind in enumerate(kinds)]
    data = bytearray(b"".join(parts) + (b"" if damage == "no end" else END))
    if damage == "changed":
        data[int(place * (len(data) - 1))] ^= 0x11
    whole = bytes(data[: int(place * len(data))] if damage == "cut" else data)
    with pytest.MonkeyPatch.context() as patch:
        small.__wrapped__(patch)  # type: ignore[attr-defined]
        tar = Tar(window_bytes=2048, skip_bytes=600)
        found, took = outcome_afar(tar, whole, num_at_once=num_at_once)
        assert found == outcome_here(tar, whole)
    assert took.walk_bytes <= len(whole) // 2
    assert num_at_once > 1 or not took.walk_ranges


class PromptThreads(ThreadPoolExecutor):
    """Threads that begin each call before `submit` returns; so a busy machine changes no number of requests."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        has_begun = threading.Event()

        def call() -> Any:
            has_begun.set()
            return fn(*args, **kwargs)

        future = super().submit(call)
        has_begun.wait()
        return future


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", ["plain", "pax", "long name"])
def test_headers_that_were_guessed_right_take_no_request_of_the_scan(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_FIRST_WINDOW_BYTES", "_SMALL_WINDOW_BYTES"):
        monkeypatch.setattr(reader, name, 2048)  # the headers of a sample fit into a window, as they usually do
    noise = random.Random(3).randbytes(6000)
    between = {
        "plain": lambda _: b"",
        "pax": lambda _: pax(mtime="1.5"),
        "long name": lambda number: member(b"L", b"n" * 200 + b"%05d.x\0" % number, b"L"),
    }[kind]
    data = b"".join(between(number) + member(b"%05d.x" % number, noise) for number in range(200)) + END
    tar = Tar(window_bytes=4096, skip_bytes=600)
    found, took = outcome_afar(tar, data, num_at_once=9, threads=PromptThreads(9))
    assert found == outcome_here(tar, data)
    assert len(found[0]) == 201
    assert took.num_own_requests < 70  # its own ninth, and two for each header where a window is too short
    assert 100 < len(took.walk_ranges) < 500


def test_headers_of_one_large_shard_are_read_side_by_side() -> None:
    data = LargeTar([10_000_000] * 400)
    found, took = outcome_afar(Tar(), data, request_bytes=MIB, num_at_once=32)
    assert len(found[0]) == 401
    assert took.num_own_requests < 60
    assert len(took.store.requests) < 400 + 32 * 8
    # Half a member for each walk, and 16 KiB for each header.
    assert took.store.read_bytes < 32 * 8_000_000 + 400 * (16 << 10)


def test_a_few_members_are_not_worth_a_walk() -> None:
    for sizes in ([10_000_000] * 15, [2_000_000_000] * 40, [4096] * 3000):
        found, took = outcome_afar(Tar(), LargeTar(sizes), request_bytes=MIB, num_at_once=32)
        assert len(found[0]) == len(sizes) + 1
        assert not took.walk_ranges


class Joined:
    """Contents one after the other; a number stands for so many zeros."""

    def __init__(self, parts: Sequence[Contents | int]) -> None:
        self._parts = parts
        sizes = [part if isinstance(part, int) else len(part) for part in parts]
        self._starts = [0, *accumulate(sizes)]

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, part: slice, /) -> bytes:
        first, end, _ = part.indices(len(self))
        pieces = []
        for content, (start, stop) in zip(self._parts, pairwise(self._starts), strict=True):
            inside = slice(max(first, start) - start, min(end, stop) - start)
            if inside.stop > inside.start:
                pieces.append(bytes(inside.stop - inside.start) if isinstance(content, int) else content[inside])
        return b"".join(pieces)


@pytest.mark.parametrize("large_inside", [False, True])
def test_an_archive_within_the_archive_is_passed_over(large_inside: bool) -> None:
    inner = LargeTar([2_000_000 if large_inside else 5000] * (100 if large_inside else 2000))
    parts: list[Contents | int] = []
    for number in range(40):
        parts += [header(b"%d.x" % number, 3_000_000), 3_000_320]
    parts += [header(b"inner.tar", len(inner)), inner, -len(inner) % 512]
    for number in range(40):
        parts += [header(b"%d.y" % number, 3_000_000), 3_000_320]
    data = Joined([*parts, END])
    found, took = outcome_afar(Tar(), data, request_bytes=MIB, num_at_once=8)
    assert found == outcome_here(Tar(), data)
    assert 0 < took.walk_bytes <= len(data) // 2


def test_members_that_become_small_are_streamed_again() -> None:
    data = LargeTar([3_000_000] * 60 + [5000] * 20_000)
    found, took = outcome_afar(Tar(), data, request_bytes=MIB, num_at_once=4)
    assert len(found[0]) == 20_061
    assert took.store.read_bytes < 60 * 1_000_000 + 1.5 * 20_000 * 5632 + 20 * 2 * MIB


def test_a_walk_that_fails_is_not_missed() -> None:
    found, took = outcome_afar(Tar(), LargeTar([10_000_000] * 100), request_bytes=MIB, num_at_once=8, fails=True)
    assert len(found[0]) == 101
    assert took.num_own_requests == 101  # the last one is for the end
    assert took.walk_ranges


def test_threads_that_are_busy_elsewhere_are_not_waited_for() -> None:
    data = LargeTar([10_000_000] * 100)
    store = FarStore({"s": data})
    busy = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="walk") as threads:
        threads.submit(busy.wait)
        reading = ScanReading(
            ScanReads(store, known_costs()),
            "s",
            len(data),
            threads=threads,
            num_at_once=8,
            memories=MemoryPool(),
            format=Tar(),
        )
        assert Tar().scan(reading, len(data), shard="s").num_samples == 100
        reading.close()
        busy.set()
    assert len(store.requests) == 101


def large_file(path: Path, sizes: list[int]) -> Path:
    """A tar whose payloads are holes."""
    with path.open("wb") as file:
        for number, size in enumerate(sizes):
            info = tarfile.TarInfo(f"{number:06d}.bin")
            info.size = size
            file.write(info.tobuf(tarfile.USTAR_FORMAT))
            file.seek((size + 511) // 512 * 512, 1)
        file.truncate(file.tell() + 1024)
    return path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    large_file(tmp_path / "one.tar", [3_000_000] * 150)
    with RangeServer(tmp_path, latency_seconds=0.005) as server:
        yield server


def test_one_large_shard_over_http(server: RangeServer, http_client: str) -> None:
    del http_client
    path, data = f"{server.url}/one.tar", LargeTar([3_000_000] * 150)
    reads = ScanReads(open_store(path), known_costs())
    task = ScanTask(0, "one.tar", path, len(data), "")
    [(_, found)] = scan_in_threads([task], format_named("tar"), reads, on_progress=lambda *_: None, num_requests=8)
    assert outcome(lambda: found) == outcome_here(Tar(), data)
    assert not reading_threads()
    assert 2 <= server.peak_concurrency <= 8
    assert server.num_bytes() == reads.traffic.read_bytes < len(data) // 8
    assert server.num_requests() == reads.traffic.num_requests < 2 * 150


def test_nothing_runs_on_when_a_scan_is_given_up(server: RangeServer) -> None:
    path = f"{server.url}/one.tar"
    store = open_store(path)
    size = store.stat(path).num_bytes
    under_way = threading.Event()
    fetch = ScanReads.fetch

    class Interrupted(ScanReads):
        def fetch(self, path: str, first_byte: int, end_byte: int) -> bytes:
            if first_byte > size // 2:
                under_way.set()
                raise KeyError(first_byte)
            return fetch(self, path, first_byte, end_byte)

    tasks = [ScanTask(number, f"{number}.tar", path, size, "") for number in range(2)]
    reads = Interrupted(store, known_costs())
    with pytest.raises(KeyError):
        list(scan_in_threads(tasks, format_named("tar"), reads, on_progress=lambda *_: None, num_requests=16))
    assert under_way.is_set()
    assert not reading_threads()
