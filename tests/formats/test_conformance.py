"""Every format keeps to the protocol, alone and below a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.formats.made_shards import Made, made

import shoal
from shoal.formats.format_registry import FORMATS
from shoal.testing import check_format
from shoal.testing.known_shards import same

PLAIN = [name for name in FORMATS if "." not in name]
LIBRARIES = ("pyarrow", "google_crc32c", "zstandard", "brotli", "cramjam")


def made_or_skipped(name: str, *, huge: bool = True) -> Made:
    for library in LIBRARIES:
        pytest.importorskip(library)
    return made(name, huge=huge)


@pytest.mark.parametrize(
    ("name", "num_damaged"),
    # Checksums refuse nearly all damage: a few of 60 damaged shards of a TFRecord file are still whole.
    [(name, 60 if name == "tfrecord" else 30) for name in PLAIN]
    + [pytest.param(name, 60, marks=pytest.mark.drill) for name in PLAIN if name != "tfrecord"],
)
def test_a_format_conforms(name: str, num_damaged: int) -> None:
    found = made_or_skipped(name)
    report = check_format(
        found.format, found.shards, same_as=found.same_as, detects_damage=found.detects_damage, num_damaged=num_damaged
    )
    assert report.num_samples > 40
    assert report.num_spans > 30
    assert 0 < report.damage.num_refused < report.damage.num_tried


@pytest.mark.parametrize("num_damaged", [6, pytest.param(12, marks=pytest.mark.drill)])  # once each kind of damage
@pytest.mark.parametrize("name", [name for name in FORMATS if "." in name])
def test_a_compressed_format_conforms(name: str, num_damaged: int) -> None:
    found = made_or_skipped(name, huge=name.startswith("jsonl."))
    kinds = ("some", "none", "cut", "huge")
    small = {shard: known for shard, known in found.shards.items() if shard.startswith(kinds)}
    report = check_format(found.format, small, detects_damage=found.detects_damage, num_damaged=num_damaged)
    assert report.num_samples >= 4
    assert report.damage.num_refused > 0


@pytest.mark.parametrize("name", ["tar", "jsonl", "tfrecord.gz", "mds", "recordio", "csv.zst", "parquet", "arrow"])
def test_an_epoch_over_files_gives_each_sample_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    found = made_or_skipped(name, huge=False)
    expected: list[dict[str, Any]] = []
    chosen = ("some", "single", "none", "many")
    for shard in sorted(found.shards):
        if shard.partition(".")[0].split(" ")[0] in chosen and ".stream." not in shard:
            data, samples = found.shards[shard]
            (tmp_path / shard).write_bytes(data)
            expected += samples
    ds = shoal.open(tmp_path, format=found.format)
    assert ds.num_samples == len(expected)
    shuffled = ds.shuffle(seed=3, window="1MiB")
    ids = shuffled.ids().tolist()
    assert sorted(ids) == list(range(len(expected)))
    assert ids != sorted(ids)
    for sample_id, sample in zip(ids, shuffled, strict=True):
        assert same(sample, expected[sample_id])
    for sample_id in (0, len(expected) - 1):
        assert same(ds[sample_id], expected[sample_id])
