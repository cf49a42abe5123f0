"""Pieces that are kept decoded in the chunk cache: part by part, within the budget, whoever is killed whenever."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.storage.test_chunk_cache_processes import used_bytes

from shoal.storage.chunk_cache.chunk_cache import ChunkCache
from shoal.storage.chunk_cache.directory import FOLDER
from shoal.storage.chunk_cache.spill_files import SpilledPart, SpillFile

MIB = 1 << 20


class Cut(NamedTuple):
    borders: NDArray[np.int64]
    num_samples: int
    samples_per_part: int
    head: dict[str, Any]


class Piece:
    """A piece of so many parts, which counts how often it was decoded."""

    def __init__(self, name: str, *, num_parts: int = 20, samples_per_part: int = 3, most_bytes: int = 5000) -> None:
        dice = random.Random(name)
        self.name, self.samples_per_part = name, samples_per_part
        self.parts = [dice.randbytes(dice.randint(0, most_bytes)) for _ in range(num_parts)]
        self.num_samples = num_parts * samples_per_part - 1
        self.num_decoded = 0

    def spill(self, file: SpillFile) -> Cut:
        self.num_decoded += 1
        whole = b"".join(self.parts)
        for at in range(0, len(whole), 1000):
            file.append(whole[at : at + 1000])
        assert file.read(0, len(whole)) == whole
        borders = np.cumsum([0, *map(len, self.parts)])
        return Cut(borders, self.num_samples, self.samples_per_part, {"of": self.name})

    def read(self, cache: ChunkCache, sample: int, **options: Any) -> SpilledPart | None:
        expected_bytes = options.pop("expected_bytes", sum(map(len, self.parts)))
        return cache.read_spilled(self.name, sample, options.pop("spill", self.spill), expected_bytes=expected_bytes)

    def check(self, cache: ChunkCache, **options: Any) -> None:
        for sample in range(self.num_samples):
            part, number = divmod(sample, self.samples_per_part)
            found = self.read(cache, sample, **options)
            assert found is not None
            held = min(self.samples_per_part, self.num_samples - part * self.samples_per_part)
            assert found == (self.parts[part], sum(map(len, self.parts[:part])), number, held, {"of": self.name})


@pytest.fixture
def cache(tmp_path: Path) -> ChunkCache:
    return ChunkCache(tmp_path, budget_bytes=8 * MIB)


def folder_of(cache: ChunkCache) -> Path:
    return Path(cache.path)


@pytest.mark.parametrize("expected_bytes", [0, 1000, 10 * 1000, MIB])
def test_a_piece_is_decoded_once_however_large_it_was_expected_to_be(cache: ChunkCache, expected_bytes: int) -> None:
    piece = Piece("a")
    piece.check(cache, expected_bytes=expected_bytes)
    assert piece.num_decoded == 1
    counts = cache.spills
    (file,) = (folder_of(cache) / "chunks").iterdir()
    assert (counts.num_fills, counts.num_bytes) == (1, file.stat().st_size)
    assert (counts.num_reads, counts.num_bypasses) == (piece.num_samples, 0)
    again = ChunkCache(cache.path.removesuffix(FOLDER), budget_bytes=8 * MIB)
    piece.check(again)
    assert piece.num_decoded == 1


def test_a_large_number_of_parts(cache: ChunkCache) -> None:
    piece = Piece("a", num_parts=200_000, samples_per_part=1, most_bytes=12)
    for sample in (0, 1, 99_999, piece.num_samples - 1):
        found = piece.read(cache, sample)
        assert found is not None
        assert found.data == piece.parts[sample]
    assert piece.num_decoded == 1


def test_a_table_of_zeros_is_damage(cache: ChunkCache) -> None:
    """Where power fails, blocks that were reserved and not yet written are zeros; the end of the file may be there."""
    piece = Piece("a", num_parts=3000, samples_per_part=1, most_bytes=40)
    assert piece.read(cache, 0) is not None
    (file,) = (folder_of(cache) / "chunks").iterdir()
    whole, content_bytes = file.read_bytes(), sum(map(len, piece.parts))
    for sample in (0, 1, 1500):
        at = content_bytes + 12 * sample
        file.write_bytes(whole[:at] + bytes(4096) + whole[at + 4096 :])
        found = piece.read(cache, sample)
        assert found is not None
        assert (found.data, found.number) == (piece.parts[sample], 0)
        (file,) = (folder_of(cache) / "chunks").iterdir()
    assert cache.counts.num_damaged == 3


def test_what_is_pushed_out_is_decoded_again(cache: ChunkCache) -> None:
    pieces = [Piece(str(number), num_parts=400) for number in range(12)]
    dice = random.Random(2)
    for _ in range(80):
        piece = dice.choice(pieces)
        sample = dice.randrange(piece.num_samples)
        found = piece.read(cache, sample)
        assert found is not None
        assert found.data == piece.parts[sample // piece.samples_per_part]
        assert used_bytes(folder_of(cache)) <= 8 * MIB
    assert sum(piece.num_decoded for piece in pieces) == cache.spills.num_fills > 12
    assert cache.spills.num_bypasses == 0


def test_while_it_grows_the_budget_holds(tmp_path: Path) -> None:
    cache = ChunkCache(tmp_path, budget_bytes=30 * MIB)
    for number in range(20):
        cache.read(f"chunk {number}", MIB, lambda: bytes(MIB))

    def spill(file: SpillFile) -> Cut:
        for _ in range(22):
            file.append(bytes(MIB))
            assert used_bytes(folder_of(cache)) <= 30 * MIB
        return Cut(np.array([0, 22 * MIB]), 1, 1, {})

    found = cache.read_spilled("large", 0, spill, expected_bytes=MIB)
    assert found is not None
    assert len(found.data) == 22 * MIB
    with cache._ledger.held() as book:
        assert used_bytes(folder_of(cache) / "chunks") <= book.used_bytes <= 30 * MIB
        counted = book.used_bytes
        cache._ledger._count(book)
        assert book.used_bytes == counted, "what is counted is what is there"


def test_trouble_after_it_was_decoded_is_a_read_without_the_cache(
    cache: ChunkCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that was filled is closed by then, and its number may be that of any other."""
    piece = Piece("a")
    hit, num_left = cache._files.hit, 2  # looked for, found missing once it is locked, decoded, and looked for again

    def broken(*args: Any) -> Any:
        nonlocal num_left
        if not num_left:
            raise OSError(errno.EMFILE, "too many open files")
        num_left -= 1
        return hit(*args)

    with monkeypatch.context() as patched:
        patched.setattr(cache._files, "hit", broken)
        assert piece.read(cache, 0) is None
    assert (piece.num_decoded, cache.spills.num_bypasses) == (1, 1)
    piece.check(cache)
    assert piece.num_decoded == 1


def test_it_may_be_looked_for_only(cache: ChunkCache) -> None:
    piece = Piece("a")
    assert piece.read(cache, 0, spill=None) is None
    assert (cache.spills.num_bypasses, piece.num_decoded) == (1, 0)
    piece.read(cache, 0)
    piece.check(cache, spill=None)


def test_what_has_no_room_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ChunkCache(tmp_path, budget_bytes=2 * MIB)
    piece = Piece("large", num_parts=1000)
    assert piece.read(cache, 0, expected_bytes=100) is None
    assert piece.read(cache, 0) is None
    assert cache.spills.num_bypasses == 2
    assert piece.num_decoded == 1, "what is known to be too large is not begun"
    small = Piece("small")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "the disk is full")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert small.read(cache, 0) is None
    monkeypatch.undo()
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: full() if at == 3000 else pwrite(fd, data, at))
    assert small.read(cache, 0) is None
    monkeypatch.undo()
    assert not list((folder_of(cache) / "filling").iterdir())
    assert not list((folder_of(cache) / "chunks").iterdir())
    small.check(cache)


def test_what_its_decoding_raises_is_raised(cache: ChunkCache) -> None:
    piece = Piece("a")

    def broken(file: SpillFile) -> Cut:
        file.append(b"some")
        msg = "broken"
        raise ZeroDivisionError(msg)

    with pytest.raises(ZeroDivisionError):
        piece.read(cache, 0, spill=broken)
    assert not list((folder_of(cache) / "filling").iterdir())
    piece.check(cache)


def test_begun_anew_nothing_is_left_of_before(cache: ChunkCache) -> None:
    piece = Piece("a")

    def twice(file: SpillFile) -> Cut:
        file.append(bytes(200_000))
        file.restart()
        return piece.spill(file)

    piece.check(cache, spill=twice)


def test_before_the_parts_there_may_be_what_they_are_made_of(cache: ChunkCache) -> None:
    piece = Piece("a")

    def with_more(file: SpillFile) -> Cut:
        file.append(b"of no use")
        file.restart()
        file.append(b"stored " * 3000)
        file.begin_here()
        cut = piece.spill(file)
        assert file.read_before(14_000, 14_014) == b"stored stored "
        return cut

    piece.check(cache, spill=with_more)


def flip(data: bytearray) -> None:
    data[len(data) // 3] ^= 1


def flip_last(data: bytearray) -> None:
    data[-5] ^= 1


def cut(data: bytearray) -> None:
    del data[-7:]


def clear(data: bytearray) -> None:
    data.clear()


def cut_much(data: bytearray) -> None:
    del data[100:-20]


@pytest.mark.parametrize("damage", [flip, flip_last, cut, clear, cut_much])
def test_what_is_damaged_is_decoded_again(cache: ChunkCache, damage: Callable[[bytearray], None]) -> None:
    piece = Piece("a")
    piece.check(cache)
    (path,) = (folder_of(cache) / "chunks").iterdir()
    data = bytearray(path.read_bytes())
    damage(data)
    path.write_bytes(data)
    piece.check(cache)
    assert piece.num_decoded == 2
    assert cache.counts.num_damaged == 1


def test_threads_decode_once_and_wait_longer_for_what_grows(tmp_path: Path) -> None:
    cache = ChunkCache(tmp_path, budget_bytes=8 * MIB, wait_seconds=0.2)
    piece = Piece("a")
    pause = threading.Event()

    def slowly(file: SpillFile) -> Cut:
        for _ in range(10):
            pause.wait(0.06)  # in all, longer than anybody waits for what does not grow
            file.append(b"x")
        file.restart()
        return piece.spill(file)

    def work() -> None:
        found.append(piece.read(cache, 0, spill=slowly))

    found: list[SpilledPart | None] = []
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [part is not None and part.data for part in found] == [piece.parts[0]] * 4
    assert piece.num_decoded == 1


KILLED = """
import os, sys
sys.path[:0] = {source!r}
import numpy as np
from shoal.storage.chunk_cache.chunk_cache import ChunkCache
from tests.storage.test_spilling import Piece
cache = ChunkCache({directory!r}, budget_bytes=8 << 20)
piece = Piece("a", num_parts=400)
place = {place!r}
def spill(file):
    append, num_appended = file.append, 0
    def dying(data):
        nonlocal num_appended
        num_appended += 1
        if num_appended > place:
            print("dying", flush=True)
            sys.stdin.read()
        append(data)
    file.append = dying
    return piece.spill(file)
cache.read_spilled("a", 0, spill, expected_bytes=5000)
print("done", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    "place", [300, 10**9, *(pytest.param(number, marks=pytest.mark.drill) for number in (0, 1, 997))]
)
def test_killed_while_it_decodes_nothing_is_left(tmp_path: Path, place: int) -> None:
    root = Path(__file__).parents[2]
    script = KILLED.format(source=[str(root / "src"), str(root)], directory=str(tmp_path / "cache"), place=place)
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() in (b"dying\n", b"done\n")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    cache = ChunkCache(tmp_path / "cache", budget_bytes=8 * MIB)
    assert not list((folder_of(cache) / "filling").iterdir())
    piece = Piece("a", num_parts=400)
    piece.check(cache)
    assert piece.num_decoded == (place < 10**9)
    with cache._ledger.held() as book:
        counted = book.used_bytes
        cache._ledger._count(book)
        assert book.used_bytes == counted
