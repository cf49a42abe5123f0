"""Eviction: the order in which a full chunk cache removes chunks, and their removal.

Every chunk is used once an epoch, in a new random order each time. The least recently used chunk is then
needed soonest, and evicting it is the worst choice: a cache of half the data served 15 % of the reads of an epoch by
that rule, and 50 % if it kept its chunks. So a full cache keeps its old chunks, and evicts the newest chunks:
processes of this machine share a new chunk while it is in a window, and then the cache evicts this chunk.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shoal.storage.chunk_cache.file_locks import is_locked_by_others, lock_now, open_for_lock, release
from shoal.storage.chunk_cache.ledger import BASE_BYTES, Book, charge_bytes

USED_MODE = 0o700  # of a chunk with a hit; before the first hit it is 0600

VICTIMS = "victims"
_VICTIM = struct.Struct("<49sQ")
_FEWEST_VICTIMS = 32
_VICTIMS_PART = 16  # of all chunks: scanning all of them is then a small part of the cost of eviction
_OLDEST_EVERY = 16
_WATCHED = 32
_MOST_RARITY = 4


@dataclass(frozen=True, slots=True)
class Chunk:
    """A file of the cache: its name (the first 16 characters identify its dataset), time of creation and size."""

    name: str
    created_ns: int
    num_bytes: int
    inode: int = 0

    @property
    def dataset(self) -> str:
        """Digest that identifies the dataset."""
        return self.name[:16]


is_name = re.compile(r"[0-9a-f]{16}-[0-9a-f]{32}").fullmatch
"""Match the name of a chunk; files with other names are neither read nor deleted."""


def chunks_in(folder: int, name: str = "chunks") -> Iterator[Chunk]:
    """Yield every chunk in a subfolder of the open ``folder``."""
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                if is_name(entry.name):
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        yield Chunk(entry.name, status.st_mtime_ns, status.st_size, status.st_ino)
    finally:
        os.close(descriptor)


def count(folder: int, book: Book) -> list[Chunk]:
    """Recount the files on the disk into the book, with the ledger held; return the chunks."""
    # Growing files first: a file that becomes a chunk meanwhile is then counted in both folders, not in neither.
    filling = list(chunks_in(folder, "filling"))
    chunks = list(chunks_in(folder))
    files = {chunk.inode: chunk.num_bytes for chunk in (*filling, *chunks)}
    book.used_bytes = BASE_BYTES + sum(map(charge_bytes, files.values()))
    book.num_chunks = len(chunks)
    return chunks


def num_victims(num_chunks: int) -> int:
    """Return how many chunks of a full cache are listed at a time for eviction."""
    return max(_FEWEST_VICTIMS, num_chunks // _VICTIMS_PART)


def guard_bytes_of(budget_bytes: int, expected_bytes: int) -> int:
    """Return the bytes of the newest chunks that stay when room is made, if processes share ``expected_bytes``."""
    return min(max(expected_bytes, budget_bytes // 4), budget_bytes * 3 // 4)


def eviction_order(chunks: Sequence[Chunk], *, last_used: Mapping[str, int], guard_bytes: int) -> list[Chunk]:
    """Return the chunks that may be evicted, first to last.

    ``last_used`` maps datasets that no process has open to the time of their last use. Their chunks go first, starting
    with the dataset unused for longest. Among the other chunks, the newest ``guard_bytes`` stay; then the newest go
    first, except that each 16th is the oldest: so chunks that nobody reads again go in the end, too. O(n log n).
    """
    by_age = sorted(chunks, key=lambda chunk: (chunk.created_ns, chunk.name))
    idle = [chunk for chunk in by_age if chunk.dataset in last_used]
    evicted = sorted(idle, key=lambda chunk: last_used[chunk.dataset])
    in_use = deque(chunk for chunk in by_age if chunk.dataset not in last_used)  # the newest at its end
    guarded = 0
    while in_use and guarded < guard_bytes:
        guarded += charge_bytes(in_use.pop().num_bytes)
    while in_use:
        is_turn_of_oldest = len(evicted) % _OLDEST_EVERY == _OLDEST_EVERY - 1
        evicted.append(in_use.popleft() if is_turn_of_oldest else in_use.pop())
    return evicted


class Evictions:
    """Evictions from the open ``folder``, to make room; all methods need the ledger held."""

    def __init__(self, folder: int) -> None:
        self._folder = folder

    def make_room(self, book: Book, num_bytes: int, *, guard_bytes: int) -> bool:
        """Evict chunks until ``num_bytes`` more fit into the budget; return True on success."""
        while book.used_bytes + num_bytes > book.budget_bytes:
            if not self.evict_next(book, guard_bytes=guard_bytes):
                return False
        return True

    def make_room_of_oldest(self, book: Book, num_bytes: int) -> bool:
        """Evict the oldest chunks, guarded or not, until ``num_bytes`` more fit; return True on success."""
        for chunk in sorted(chunks_in(self._folder), key=lambda chunk: (chunk.created_ns, chunk.name)):
            if book.used_bytes + num_bytes <= book.budget_bytes:
                break
            self.evict(book, chunk.name, chunk.created_ns)
        return book.used_bytes + num_bytes <= book.budget_bytes

    def evict_next(self, book: Book, *, guard_bytes: int) -> bool:
        """Evict one chunk, or clear half-filled files of killed processes; return True if space became free."""
        for _ in range(2):
            while victim := self._next_victim(book):
                if self.evict(book, *victim):
                    return True
            if sweep(self._folder, book):
                return True
            order = self._list_victims(book, guard_bytes)
            if order and not book.victims_end:  # the disk is too full to write the list
                return any(self.evict(book, chunk.name, chunk.created_ns) for chunk in order)
        return False

    def evict(self, book: Book, name: str, created_ns: int | None = None) -> bool:
        """Evict a chunk, unless a process reads it or it was created at another time; return True if evicted."""
        try:
            descriptor = open_for_lock(f"chunks/{name}", os.O_RDWR, directory=self._folder)
        except FileNotFoundError:
            return False
        try:
            status = os.fstat(descriptor)
            if status.st_mtime_ns != (created_ns or status.st_mtime_ns) or not lock_now(descriptor):
                return False
            os.unlink(f"chunks/{name}", dir_fd=self._folder)
            # Free its blocks now, even if another process has just opened it.
            os.ftruncate(descriptor, 0)
        finally:
            release(descriptor)
        book.used_bytes -= charge_bytes(status.st_size)
        book.num_chunks -= 1
        if created_ns is not None:
            book.num_evicted += 1
            watch(book, was_used=bool(status.st_mode & 0o100))
        return True

    def _next_victim(self, book: Book) -> tuple[str, int] | None:
        if book.victims_next >= book.victims_end:
            return None
        try:
            descriptor = os.open(VICTIMS, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._folder)
        except FileNotFoundError:
            book.victims_end = 0
            return None
        try:
            data = os.pread(descriptor, _VICTIM.size, book.victims_next * _VICTIM.size)
        finally:
            os.close(descriptor)
        book.victims_next += 1
        if len(data) < _VICTIM.size:
            book.victims_end = 0
            return None
        name, created_ns = _VICTIM.unpack(data)
        text = name.decode("ascii", "replace")
        return (text, created_ns) if is_name(text) else None

    def _list_victims(self, book: Book, guard_bytes: int) -> list[Chunk]:
        """Scan and recount all chunks; write the list of the next ones to evict, for all processes."""
        chunks = count(self._folder, book)
        order = eviction_order(chunks, last_used=self._last_used(chunks), guard_bytes=guard_bytes)
        del order[num_victims(len(chunks)) :]
        data = b"".join(_VICTIM.pack(chunk.name.encode(), max(0, chunk.created_ns)) for chunk in order)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(VICTIMS, flags, 0o600, dir_fd=self._folder)
        try:
            num_written = os.write(descriptor, data)
        except OSError:
            num_written = 0
        finally:
            os.close(descriptor)
        book.victims_next, book.victims_end = 0, num_written // _VICTIM.size
        return order

    def _last_used(self, chunks: Sequence[Chunk]) -> dict[str, int]:
        last_used = {}
        for dataset in {chunk.dataset for chunk in chunks}:
            path = f"datasets/{dataset}"
            if not is_locked_by_others(path, directory=self._folder):
                try:
                    last_used[dataset] = os.stat(path, dir_fd=self._folder).st_mtime_ns
                except FileNotFoundError:
                    last_used[dataset] = 0
        return last_used


def sweep(folder: int, book: Book) -> int:
    """Delete half-filled files of ended processes; return how many took space. The caller holds the ledger."""
    num_swept = 0
    for chunk in list(chunks_in(folder, "filling")):
        path = f"filling/{chunk.name}"
        try:
            descriptor = open_for_lock(path, os.O_RDWR, directory=folder)
        except FileNotFoundError:
            continue
        try:
            # A process locks a file before it reserves space, and holds the ledger while it reserves.
            if lock_now(descriptor):
                status = os.fstat(descriptor)
                if status.st_nlink and os.stat(path, dir_fd=folder).st_ino == status.st_ino:
                    os.unlink(path, dir_fd=folder)
                    os.ftruncate(descriptor, 0)
                    book.used_bytes -= charge_bytes(status.st_size)
                    num_swept += status.st_size > 0
        except FileNotFoundError:
            pass
        finally:
            release(descriptor)
    return num_swept


def is_admitted(book: Book, charged_bytes: int, number: int) -> bool:
    """Return True if the cache takes a chunk, even when full; ``number`` is a hash of its name. See `Book`."""
    if charged_bytes > book.budget_bytes // 2:
        return False
    is_full = book.used_bytes + charged_bytes > book.budget_bytes
    return not (is_full and number % (1 << min(book.rarity, 16)))


def watch(book: Book, *, was_used: bool) -> None:
    """Adjust the rate of admission, so that most chunks are used before they are evicted.

    If most chunks go unused (the budget is smaller than the windows, or no processes share them), filling is wasted.
    """
    book.num_watched += 1
    book.num_watched_used += was_used
    if book.num_watched < _WATCHED:
        return
    if 4 * book.num_watched_used < book.num_watched:
        book.rarity = min(book.rarity + 1, _MOST_RARITY)
    elif 2 * book.num_watched_used > book.num_watched:
        book.rarity = max(book.rarity - 1, 0)
    book.num_watched = book.num_watched_used = 0
