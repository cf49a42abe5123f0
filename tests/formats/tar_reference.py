"""What a tar shard holds by Python's `tarfile` and WebDataset's rule: slow, plain, and independent of shoal."""

from __future__ import annotations

import io
import re
import tarfile
from typing import Any

import numpy as np

from shoal.formats.rows.tar.reader import Tar
from shoal.formats.shard_format import Span
from shoal.index.shard_scan import ShardScan

Groups = list[dict[str, Any]]


def reference_groups(data: bytes) -> Groups:
    """The samples of a tar, by tarfile and a transcription of WebDataset 1.0.2's group_by_keys; without macOS's."""
    groups: Groups = []
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for member in archive:
            name = member.name
            match = re.match(r"^((?:.*/|)[^.]+)[.]([^/]*)$", name)
            is_meta = "/" not in name and name.startswith("__") and name.endswith("__")
            if not member.isreg() or is_meta or re.match(r"__[^/]*__($|/)", name) or not match:
                continue
            if re.search(r"(^|/)(\._[^/]*|\.DS_Store)$", name):  # macOS's own, the one difference
                continue
            if not groups or groups[-1]["__key__"] != match[1]:
                groups.append({"__key__": match[1]})
            payload = archive.extractfile(member)
            groups[-1][match[2].lower()] = payload.read() if payload else b""
    return groups


def scan(data: bytes, **options: int) -> ShardScan:
    """Scan a tar in memory, asserting that no read leaves it."""

    def read(first_byte: int, end_byte: int) -> bytes:
        assert 0 <= first_byte < end_byte <= len(data)
        return data[first_byte:end_byte]

    return Tar(**options).scan(read, len(data), shard="train.tar")


def parse_all(data: bytes, found: ShardScan, *, step: int = 3, with_starts: bool = True) -> Groups:
    """All samples of a tar, opened some at a time."""
    groups: Groups = []
    for first in range(0, found.num_samples, step):
        starts = found.sample_starts[first : first + step + 1]
        part = data[int(starts[0]) : int(starts[-1])]
        borders = (starts - starts[0]).tolist() if with_starts else None
        span = Span("train.tar", int(starts[0]), len(starts) - 1, borders, found.head)
        records = Tar().parse(part if first % 2 else memoryview(part), span)
        np.testing.assert_array_equal(records.layout_crcs(), found.layout_crcs[first : first + step])
        groups += [records.sample(number) for number in range(len(records))]
    return groups
