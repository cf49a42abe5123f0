"""Parts merged in groups, and the index written column by column: the bytes are those of all parts joined at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal.errors import StorageError, UsageError
from shoal.formats.column_paths import Column
from shoal.index.assembly import ScannedShard, assemble, joined
from shoal.index.index_file import confirm, decode, encode
from shoal.index.shard_scan import ShardScan
from shoal.index.table import Index
from shoal.pack import Output
from shoal.pack.output.commit import commit_groups
from shoal.pack.output.part_groups import merged_groups
from shoal.pack.shards.column_values import ColumnValues, joined_columns
from shoal.storage.memory_store import MemoryStore

VALUES = {
    "numbers": st.integers(-5, 5),
    "floats": st.floats(allow_nan=False, width=32),
    "flags": st.booleans(),
    "texts": st.sampled_from(["a", "b", "1", "1.0", "True"]),
}


@st.composite
def parts_of_shards(draw: st.DrawFn) -> list[Index]:
    """Parts of some shards, each with a column whose values may be of another kind than in the others."""
    kinds = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=2))
    has_sums = draw(st.booleans())
    parts = []
    for number in range(draw(st.integers(1, 9))):
        values = draw(st.lists(VALUES[draw(st.sampled_from(kinds))], max_size=4))
        parts.append(part_of(number, values, has_sums=has_sums, skipped=draw(st.integers(0, 1))))
    return parts


def part_of(number: int, values: Sequence[Any], *, has_sums: bool = True, skipped: int = 0) -> Index:
    columns = ColumnValues([Column("label", "label")])
    for value in values:
        columns.take([value])
    arrays, texts = columns.arrays()
    arrays["record_crc32"] = np.arange(len(values), dtype=np.uint32)
    starts = np.arange(len(values) + 1, dtype=np.int64) * 700
    scan = ShardScan(
        starts, np.arange(len(values), dtype=np.uint32), head={"columns": [["x", "int"]]} if number % 2 else {}
    )
    metadata = {
        "plan": "ab" * 16,
        "digest": f"{number:032x}",
        "skipped": [[f"input-{number}", "it is gone"]] * skipped,
        "skipped_places": [0] * skipped,
        "num_renamed": number % 2,
        "texts": texts,
        "frame": number if values else None,
    }
    name = f"shard-{number:06d}.tar"
    part = assemble("tar", [ScannedShard(name, int(starts[-1]), "", scan)], extent_bytes=1500, metadata=metadata)
    sums = np.arange(part.num_extents, dtype=np.uint32) if has_sums or number else None
    return replace(part, columns=arrays, extent_checksum=sums)


def cuts_of(parts: Sequence[Index]) -> NDArray[np.int64]:
    return np.cumsum([0, *(part.num_samples + len(part.metadata["skipped"]) for part in parts)])


def index_at_once(parts: Sequence[Index], versions: Sequence[str]) -> bytes:
    """The index file of all parts joined in memory, as it was always written."""
    columns, words = joined_columns([part.columns for part in parts], [part.metadata["texts"] for part in parts])
    num_renamed = sum(part.metadata["num_renamed"] for part in parts)
    metadata = {
        **{name: parts[0].metadata[name] for name in ("cutting_rule", "extent_bytes")},
        "plan": "ab" * 16,
        "digests": [part.metadata["digest"] for part in parts],
        "frames": {part.shard_names[0]: part.metadata["frame"] for part in parts if part.num_samples},
        "skipped": [pair for part in parts for pair in part.metadata["skipped"]],
        **({"num_renamed": num_renamed} if num_renamed else {}),
        **({"texts": words} if words else {}),
        "classes": ["a"],
    }
    whole = joined(parts, columns=columns, metadata=metadata)
    return b"".join(encode(replace(whole, shard_versions=tuple(versions))))


def begun(url: str, parts: Sequence[Index]) -> Output:
    """An output in which all of these shards are finished."""
    out = Output(url, plan="ab" * 16)
    out.journal.begin({})
    for part in parts:
        out.store.put(f"{url}/{part.shard_names[0]}", bytes(int(part.shard_bytes[0])))
        out.journal.keep(part)
    return out


def test_groups_give_the_bytes_of_all_parts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    @settings(max_examples=40, deadline=None)
    @given(parts=parts_of_shards(), group_shards=st.integers(1, 4), group_samples=st.integers(1, 12))
    def law(parts: list[Index], group_shards: int, group_samples: int) -> None:
        if not any(part.num_samples for part in parts):
            return
        monkeypatch.setattr("shoal.pack.output.part_groups._GROUP_SHARDS", group_shards)
        monkeypatch.setattr("shoal.pack.output.part_groups._GROUP_SAMPLES", group_samples)
        store, url = MemoryStore(), "memory://groups/a"
        out = begun(url, parts)
        for _ in range(2):  # the second time from the groups that the first one kept
            groups = merged_groups(out.journal, names_of(parts), cuts=cuts_of(parts), completed=lambda _, some: some)
        versions = [store.stat(f"{url}/{name}").version for name in names_of(parts)]
        summary, _ = commit_groups(out, groups, about={"classes": ["a"]})
        written = MemoryStore().map(f"{url}/shoal.index")
        assert bytes(written) == index_at_once(parts, versions)
        confirm(written, required=True)
        assert decode(written).fingerprint == summary.fingerprint
        assert not [info.path for info in MemoryStore().list(url) if ".shoal-pack" in info.path]
        for info in MemoryStore().list(url):
            store.delete(info.path)

    law()


def names_of(parts: Sequence[Index]) -> list[str]:
    return [part.shard_names[0] for part in parts]


def test_what_is_missing_or_does_not_add_up_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.pack.output.part_groups._GROUP_SHARDS", 2)
    monkeypatch.setattr("shoal.pack.output.part_groups._GROUP_SAMPLES", 4)
    url = "memory://groups/missing"
    parts = [part_of(number, [number] * 3) for number in range(6)]
    out = begun(url, parts)

    def merge() -> Any:
        return merged_groups(out.journal, names_of(parts), cuts=cuts_of(parts), completed=lambda _, some: some)

    merge()
    # One that changed is made again, and merged again.
    out.store.put(f"{url}/{parts[3].shard_names[0]}", b"shorter")
    with pytest.raises(UsageError, match="1 of 6 units are missing: 3\n"):
        merge()
    out.store.put(f"{url}/{parts[3].shard_names[0]}", bytes(2100))
    changed = replace(parts[3], metadata={**parts[3].metadata, "skipped": [["one", "too many"]]})
    out.journal.keep(changed)
    with pytest.raises(UsageError, match=r"shard-000003\.tar: 3 inputs were planned, but 4 packed or skipped"):
        merge()
    out.journal.keep(parts[3])
    # A record that was damaged is removed, so that the unit is run again.
    record = out.journal.finished()[parts[5].shard_names[0]]
    out.store.put(record.path, b"damaged")
    with pytest.raises(UsageError, match="1 of 6 units are missing: 5\n"):
        merge()
    assert parts[5].shard_names[0] not in out.journal.finished()
    out.journal.keep(parts[5])
    groups = merge()
    out.store.put(f"{url}/{parts[1].shard_names[0]}", b"changed at the last moment")
    with pytest.raises(StorageError, match="the shard has 26 bytes, not 2100"):
        commit_groups(out, groups, about={})
    assert MemoryStore().find(f"{url}/shoal.index") is None
