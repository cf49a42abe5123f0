"""The tables of a dataset's videos, made once for this machine from the index boxes, and read when they are needed."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import ShardError
from shoal.figures import counted
from shoal.formats.decoding.video.boxes import VideoError
from shoal.formats.decoding.video.video_table import VideoFile, VideoTable, read_table
from shoal.storage.cache_directory import Scratch, cache_directory, keep_within
from shoal.storage.store_protocol import Store
from shoal.storage.urls import join

_log = logging.getLogger("shoal")

_RULE = 1  # increment when tables of the same bytes become different
_SUFFIX = ".frames"
_CACHE_BYTES, _CACHE_FILES = 2 << 30, 1 << 20
_NUM_THREADS = 16
_HELD_PACKETS = 4 << 20  # of the tables in memory: some 200 MB
_HINT = 'copy or download the video again; reading(on_error="skip") leaves out samples with such frames'


@dataclass(frozen=True, slots=True)
class VideoFiles:
    """The videos of a dataset by number, and the store that has them below ``root``."""

    store: Store
    root: str
    files: Sequence[VideoFile]

    def path(self, number: int) -> str:
        """Return the full path of a video."""
        return join(self.root, self.files[number].name)

    def digest(self) -> str:
        """Return a digest of names and sizes, which identifies the videos wherever they are."""
        words = json.dumps([[file.name, file.num_bytes] for file in self.files])
        return hashlib.blake2b(words.encode(), digest_size=8).hexdigest()

    def damage(self, number: int, what: str, byte: int | None = None) -> ShardError:
        """Return the error for a video that cannot be used."""
        return ShardError(what, shard=self.files[number].name, byte=byte, hint=_HINT)

    def make_tables(self) -> int:
        """Make the tables that this machine has not cached, several at a time; return the bytes read for that."""
        scratch = _scratch()
        directory = Path(scratch.directory)
        missing = [number for number in range(len(self.files)) if not (directory / self.entry(number)).exists()]
        if not missing:
            return 0
        read = _Reads(self)
        with ThreadPoolExecutor(min(_NUM_THREADS, len(missing)), thread_name_prefix="shoal-video") as pool:
            for number, _ in zip(missing, pool.map(read.table, missing), strict=True):
                if number == missing[-1]:
                    keep_within(
                        scratch.directory, suffixes=(_SUFFIX,), limit_bytes=_CACHE_BYTES, limit_files=_CACHE_FILES
                    )
        total = sum(file.num_bytes for file in self.files)
        text = "%s: the keyframes of %s (%s bytes) are listed, by reading %s bytes"
        _log.info(text, self.root, counted(len(missing), "video"), f"{total:,}", f"{read.num_bytes:,}")
        return read.num_bytes

    def entry(self, number: int) -> str:
        """Return the name of the cached table of a video."""
        words = [_RULE, self.path(number), *self.files[number][1:]]
        return hashlib.blake2b(json.dumps(words).encode(), digest_size=16).hexdigest() + _SUFFIX


def _scratch() -> Scratch:
    return Scratch(str(Path(cache_directory(), "videos")), suffix=_SUFFIX)


class _Reads:
    """Reads of index boxes, and the bytes read so far."""

    def __init__(self, videos: VideoFiles, began: Callable[[int], object] = int) -> None:
        self._videos, self._began, self.num_bytes = videos, began, 0
        self._lock, self._scratch = threading.Lock(), _scratch()

    def table(self, number: int) -> VideoTable:
        """Make the table of a video, and cache it."""
        videos, path = self._videos, self._videos.path(number)

        def read(first_byte: int, end_byte: int) -> bytes:
            with self._lock:
                self.num_bytes += end_byte - first_byte
            self._began(end_byte - first_byte)
            return videos.store.read_range(path, first_byte, end_byte)

        try:
            table = read_table(read, videos.files[number].num_bytes)
        except VideoError as error:
            raise videos.damage(number, str(error), error.byte) from None
        self._scratch.put(videos.entry(number), [table.to_bytes()])
        return table


class VideoTables:
    """Tables by number of the video: the last used ones are in memory. Threads may share it."""

    def __init__(self, videos: VideoFiles, began: Callable[[int], object] = int) -> None:
        self._videos, self._began = videos, began
        self._tables: OrderedDict[int, VideoTable] = OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, number: int) -> VideoTable:
        with self._lock:
            table = self._tables.get(number)
            if table is not None:
                self._tables.move_to_end(number)
                return table
        table = self._cached(number) or _Reads(self._videos, self._began).table(number)
        with self._lock:
            self._tables[number] = table
            held = sum(len(each.packets.sizes) for each in self._tables.values())
            while held > _HELD_PACKETS and len(self._tables) > 1:
                _, dropped = self._tables.popitem(last=False)
                held -= len(dropped.packets.sizes)
        return table

    def _cached(self, number: int) -> VideoTable | None:
        kept = _scratch().get(self._videos.entry(number))
        if kept is None:
            return None
        try:
            return VideoTable.from_bytes(bytes(kept))
        except ValueError as error:
            _log.warning("the cached table of %s is made again: %s", self._videos.path(number), error)
            return None
