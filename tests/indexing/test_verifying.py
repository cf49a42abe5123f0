from __future__ import annotations

import os
import pickle
import shutil
import tarfile
import threading
import time
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from tests.stream.far import FarStore, LargeTar
from tests.stream.made import reading_threads

from shoal.errors import ShardError, StorageError
from shoal.formats.format_registry import format_named
from shoal.formats.shard_format import Format, ReadBytes, Records, Span
from shoal.index.shard_scan import Buffer, ShardScan
from shoal.index.table import Index
from shoal.indexing.build import build_index
from shoal.indexing.changed_shards import ShardCheck
from shoal.indexing.checksums import extent_checksums
from shoal.indexing.scan.remote_scans import BLOCK_BYTES
from shoal.storage.files.local_store import LocalStore
from shoal.storage.sources.source import Source, expand


class Counting(Format):
    """A format that counts its scans."""

    def __init__(self, name: str) -> None:
        self._format = format_named(name)
        self.name = name
        self.suffixes = self._format.suffixes
        self.scans = 0

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        self.scans += 1
        time.sleep(0.01)
        return self._format.scan(read, num_bytes, shard=shard)

    def parse(self, buffer: Buffer, span: Span) -> Records:
        return self._format.parse(buffer, span)


def write_tar(path: Path, count: int, *, size: int = 300, prefix: str = "") -> None:
    with tarfile.open(path, "w") as tar:
        for number in range(count):
            info = tarfile.TarInfo(f"{prefix}{number:06d}.txt")
            info.size = size
            tar.addfile(info, BytesIO(str(number).encode().ljust(size)))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for number in range(3):
        write_tar(tmp_path / f"{number}.tar", 200, prefix=f"{number}-")
    return tmp_path


def check_of(directory: Path, *, cache_dir: str | None = None) -> tuple[ShardCheck, Counting]:
    source = expand(directory, suffixes=(".tar", ".jsonl"))
    counting = Counting(source.paths[0].rpartition(".")[2])
    index = build_index(source, store=LocalStore(), format=counting, workers=0)
    counting.scans = 0
    return ShardCheck(index, source.paths, store=LocalStore(), format=counting, cache_dir=cache_dir), counting


def another_process(check: ShardCheck) -> ShardCheck:
    return ShardCheck(check._index, check._paths, store=LocalStore(), format=check._format, cache_dir=check._cache_dir)


def test_untouched_shards_are_not_scanned(shards: Path) -> None:
    check, counting = check_of(shards)
    for shard in (0, 1, 2, 1):
        check.check(shard)
    assert counting.scans == 0


def test_touched_and_copied_shards_are_accepted_and_remembered(shards: Path) -> None:
    check, counting = check_of(shards)
    os.utime(shards / "0.tar", ns=(1, 1))
    shutil.copyfile(shards / "1.tar", shards / "copy")
    (shards / "copy").replace(shards / "1.tar")
    for _ in range(3):
        check.check(0)
        check.check(1)
    assert counting.scans == 2


def test_what_was_accepted_is_remembered_by_the_machine(shards: Path, tmp_path: Path) -> None:
    check, counting = check_of(shards, cache_dir=str(tmp_path / "cache"))
    os.utime(shards / "0.tar", ns=(1, 1))
    check.check(0)
    another_process(check).check(0)
    assert counting.scans == 1
    write_tar(shards / "0.tar", 200, prefix="0-", size=301)
    with pytest.raises(ShardError):
        another_process(check).check(0)
    assert counting.scans == 2


def test_padding_behind_the_samples_is_accepted(shards: Path) -> None:
    check, counting = check_of(shards)
    with (shards / "2.tar").open("ab") as file:
        file.write(bytes(10240))
    check.check(2)
    assert counting.scans == 1


def test_a_changed_shard_is_named_with_the_first_byte(shards: Path) -> None:
    check, _ = check_of(shards)
    content = bytearray((shards / "1.tar").read_bytes())
    write_tar(shards / "1.tar", 200, prefix="x-")
    with pytest.raises(ShardError, match=r"^1\.tar, byte 0: .*the layout of bytes .* has CRC-32") as caught:
        check.check(1)
    assert (caught.value.shard, caught.value.byte) == ("1.tar", 0)
    assert "shoal index" in caught.value.hint
    (shards / "1.tar").write_bytes(content)


def test_a_damaged_copy_is_to_be_copied_again(shards: Path) -> None:
    check, _ = check_of(shards)
    content = (shards / "1.tar").read_bytes()
    (shards / "1.tar").write_bytes(content[:257] + b"?" + content[258:])  # in the magic of a header
    with pytest.raises(ShardError, match="cannot be scanned") as caught:
        check.check(1)
    assert caught.value.hint.startswith("copy it again if it is a copy")
    (shards / "1.tar").write_bytes(content)


def test_a_change_late_in_the_shard(shards: Path) -> None:
    check, _ = check_of(shards)
    write_tar(shards / "late", 199, prefix="0-")
    with tarfile.open(shards / "late", "a") as tar:
        tar.addfile(tarfile.TarInfo("0-another.txt"), BytesIO())
    (shards / "late").replace(shards / "0.tar")
    with pytest.raises(ShardError, match="not the one that was indexed") as caught:
        check.check(0)
    assert caught.value.byte is not None
    assert caught.value.byte > 65536


def test_other_sizes_say_where_samples_lie(shards: Path) -> None:
    check, _ = check_of(shards)
    write_tar(shards / "0.tar", 200, prefix="0-", size=700)
    with pytest.raises(ShardError, match=r"lie at bytes \[0, \d+\) in the index, \[0, \d+\) now") as caught:
        check.check(0)
    assert "copy it again" not in caught.value.hint


def test_fewer_and_more_samples(shards: Path) -> None:
    check, _ = check_of(shards)
    write_tar(shards / "0.tar", 150, prefix="0-")
    write_tar(shards / "1.tar", 201, prefix="1-")
    with pytest.raises(ShardError, match="the index has 200 samples, but the shard has 150"):
        check.check(0)
    with pytest.raises(ShardError, match="the index has 200 samples, but the shard has 201") as caught:
        check.check(1)
    assert caught.value.byte == 200 * 1024


def test_a_shard_that_cannot_be_scanned_any_more(shards: Path) -> None:
    check, _ = check_of(shards)
    os.truncate(shards / "0.tar", 100_100)
    with pytest.raises(ShardError, match=r"of 100100 bytes \(215040 when indexed\), .* cannot be scanned") as caught:
        check.check(0)
    assert caught.value.byte is not None
    (shards / "1.tar").unlink()
    with pytest.raises(StorageError, match="No such file"):
        check.check(1)


def test_a_replacement_after_the_check_is_seen(shards: Path) -> None:
    check, _ = check_of(shards)
    check.check(0)
    write_tar(shards / "new", 200, prefix="y-")
    (shards / "new").replace(shards / "0.tar")
    with pytest.raises(StorageError, match="deleted or replaced"):
        check._store.read_range(str(shards / "0.tar"), 0, 100)


def test_lines_are_told_by_their_contents(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"id": {number:06d}1}}\n' for number in range(9000)))
    check, _ = check_of(tmp_path)
    content = bytearray(path.read_bytes())
    content[100_000:100_001] = b"2"
    path.write_bytes(content)
    with pytest.raises(ShardError) as caught:
        check.check(0)
    assert caught.value.byte is not None
    assert 0 < caught.value.byte <= 100_000 < caught.value.byte + 70_000


def test_empty_shards(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"")
    check, counting = check_of(tmp_path)
    os.utime(tmp_path / "a.jsonl", ns=(1, 1))
    check.check(0)
    assert counting.scans == 1
    again, _ = check_of(tmp_path)
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n')
    with pytest.raises(ShardError, match="the index has 0 samples, but the shard has 1"):
        again.check(0)


def test_threads_share_one_scan(shards: Path) -> None:
    check, counting = check_of(shards)
    for number in range(3):
        os.utime(shards / f"{number}.tar", ns=(1, 1))
    threads = [threading.Thread(target=check.check, args=(number % 3,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counting.scans == 3


def test_a_pickled_check_checks_for_itself(shards: Path) -> None:
    source = expand(shards, suffixes=(".tar",))
    index = build_index(source, store=LocalStore(), format=format_named("tar"), workers=0)
    check = ShardCheck(index, source.paths, store=LocalStore(), format=format_named("tar"))
    check.check(0)
    copy = pickle.loads(pickle.dumps(check))
    write_tar(shards / "0.tar", 7)
    check.check(0)
    with pytest.raises(ShardError):
        copy.check(0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_check_under_way_in_the_parent_does_not_hang_a_forked_child(shards: Path) -> None:
    check, _ = check_of(shards)
    check._locks[0] = threading.Lock()
    with check._locks[0]:
        pid = os.fork()
        if pid == 0:
            check.check(0)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0


def test_a_flipped_payload_byte_is_noticed_where_the_index_has_checksums(shards: Path) -> None:
    source = expand(shards, suffixes=(".tar",))
    store = LocalStore()
    plain = build_index(source, store=store, format=Counting("tar"), workers=0)
    sums = extent_checksums(plain, source.paths, store=store, check=lambda _: None)
    path = Path(source.paths[1])
    damaged = bytearray(path.read_bytes())
    damaged[5 * 1024 + 512 + 3] ^= 1  # in the payload of the sixth sample
    path.write_bytes(damaged)
    for index, noticed in ((plain, False), (replace(plain, extent_checksum=sums), True)):
        check = ShardCheck(index, source.paths, store=LocalStore(), format=Counting("tar"))
        check.check(0)
        if not noticed:
            check.check(1)  # headers alone cannot tell
            continue
        with pytest.raises(ShardError, match="checksum") as caught:
            check.check(1)
        assert caught.value.shard == "1.tar"
        assert caught.value.byte is not None
        assert caught.value.byte <= 5 * 1024 + 512 + 3


@pytest.mark.parametrize("checksums", [False, True])
def test_a_shard_that_is_far_away_is_checked_in_few_requests(checksums: bool) -> None:
    tars = {f"far://{number}.tar": LargeTar([20_000] * 300) for number in range(2)}
    source = Source("list", "far", "far://", ("0.tar", "1.tar"), tuple(tars))
    index = build_index(source, store=FarStore(tars), format=format_named("tar"))
    if checksums:
        sums = extent_checksums(index, source.paths, store=FarStore(tars), check=lambda _: None)
        index = replace(index, extent_checksum=sums)
    check_far(index, source, tars)
    before = index.extent_layout_crc[3]
    index.extent_layout_crc[3] += 1
    with pytest.raises(ShardError, match="the layout of bytes") as caught:
        check_far(index, source, tars)
    assert caught.value.byte == index.extent_first_byte[3]
    index.extent_layout_crc[3] = before
    if checksums:
        assert index.extent_checksum is not None
        index.extent_checksum[3] += 1
        with pytest.raises(ShardError, match="checksum"):
            check_far(index, source, tars)


def check_far(index: Index, source: Source, tars: dict[str, LargeTar]) -> None:
    store = FarStore(tars)
    touched = replace(index, shard_versions=("another", "another"))
    try:
        ShardCheck(touched, source.paths, store=store, format=format_named("tar")).check(0)
    finally:
        assert not reading_threads()
        # All of it, twice with checksums, in streams that begin once or twice; not a request for each header.
        assert len(store.requests) <= 2 * (len(tars["far://0.tar"]) // BLOCK_BYTES + 6)
