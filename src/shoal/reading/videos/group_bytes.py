"""Bytes of groups of pictures that were read, kept for the next frames of these groups: in bounded memory.

Of a group, only the bytes up to the last needed packet are read; a later frame of the group needs the bytes from there
on. Threads that need the same group wait for each other, so no byte is read twice while it is kept.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from shoal.formats.decoding.video.video_table import VideoTable

ReadRange = Callable[[int, int], bytes]
"""A function that reads bytes ``[first_byte, end_byte)`` of one video."""


class GroupRange(NamedTuple):
    """The needed packets ``[first, end)`` of a group of pictures, whose keyframe is the packet ``first``."""

    first: int
    end: int


class _Group:
    """The packets of a group that were read: a prefix. ``is_kept`` until the group makes room for others."""

    __slots__ = ("is_kept", "lock", "num_bytes", "packets")

    def __init__(self) -> None:
        self.lock, self.packets, self.num_bytes, self.is_kept = threading.Lock(), list[bytes](), 0, True

    def first(self, num_packets: int) -> list[bytes]:
        """Return the first packets, as far as they were read."""
        return self.packets[:num_packets]


class GroupBytes:
    """The packets of groups that were read last, up to ``limit_bytes``; groups in use may exceed it.

    ``held_bytes`` are in memory. ``served`` is called with the number of bytes that a call needs and finds in memory.
    """

    def __init__(self, limit_bytes: int, served: Callable[[int], object] = int) -> None:
        self.limit_bytes, self.held_bytes, self._served = limit_bytes, 0, served
        self._groups: OrderedDict[tuple[int, int], _Group] = OrderedDict()
        self._lock = threading.Lock()

    def packets(self, video: int, table: VideoTable, run: tuple[int, int], read: ReadRange) -> Sequence[bytes]:
        """Return the packets ``[first, end)`` of a video; the first is a keyframe. Missing bytes are read in order."""
        ranges = groups_of(table, run)
        groups = [self._group(video, each.first) for each in ranges]
        with ExitStack() as stack:
            for group in groups:  # in ascending order, so two threads never wait for each other
                stack.enter_context(group.lock)
            needed = list(zip(ranges, groups, strict=True))
            self._fill(table, needed, read)
            packets = [packet for each, group in needed for packet in group.first(each.end - each.first)]
        self._evict()
        return packets

    def _group(self, video: int, first: int) -> _Group:
        with self._lock:
            group = self._groups.setdefault((video, first), _Group())
            self._groups.move_to_end((video, first))
            return group

    def _fill(self, table: VideoTable, needed: Sequence[tuple[GroupRange, _Group]], read: ReadRange) -> None:
        missing = [(group, range(each.first + len(group.packets), each.end)) for each, group in needed]
        served = sum(len(packet) for each, group in needed for packet in group.first(each.end - each.first))
        packets = iter(_read(table, [packet for _, numbers in missing for packet in numbers], read))
        added = [(group, list(itertools.islice(packets, len(numbers)))) for group, numbers in missing]
        self._served(served)
        with self._lock:
            for group, more in added:
                group.packets += more
                group.num_bytes += sum(map(len, more))
                self.held_bytes += sum(map(len, more)) if group.is_kept else 0

    def _evict(self) -> None:
        with self._lock:
            while self.held_bytes > self.limit_bytes and self._groups:
                _, group = self._groups.popitem(last=False)
                self.held_bytes -= group.num_bytes
                group.is_kept = False


def groups_of(table: VideoTable, run: tuple[int, int]) -> list[GroupRange]:
    """Return the groups of pictures in a range of packets that begins at a keyframe."""
    keys = table.keys
    first, end = np.searchsorted(keys, run[0]), np.searchsorted(keys, run[1])
    firsts = keys[first:end].tolist()
    return [GroupRange(begin, stop) for begin, stop in zip(firsts, [*firsts[1:], run[1]], strict=True)]


def _read(table: VideoTable, packets: Sequence[int], read: ReadRange) -> list[bytes]:
    """Read some packets; packets that lie side by side in the file are one request."""
    positions, sizes = table.packets.positions, table.packets.sizes
    data: list[bytes] = []
    begin = 0
    for number in range(1, len(packets) + 1):
        before = packets[number - 1]
        if number < len(packets) and positions[packets[number]] == positions[before] + sizes[before]:
            continue
        first_byte, end_byte = int(positions[packets[begin]]), int(positions[before] + sizes[before])
        together = memoryview(read(first_byte, end_byte))
        for packet in packets[begin:number]:
            at = int(positions[packet]) - first_byte
            data.append(bytes(together[at : at + int(sizes[packet])]))
        begin = number
    return data
