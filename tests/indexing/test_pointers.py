"""What Git LFS and git-annex leave in place of a file that was not fetched is no data, in any format."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.formats.tar_reference import scan
from tests.formats.test_histories import TWINS, fresh_process
from tests.formats.test_token_files import write_megatron

import shoal
from shoal.cli.main import main
from shoal.errors import ShoalError, StorageError
from shoal.formats.format_registry import FORMATS
from shoal.formats.rows.tar.reader import Tar
from shoal.formats.shard_format import Span
from shoal.pack import Writer, pack, repack
from shoal.storage.memory_store import MemoryStore

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d7a" * 16 + b"\nsize 67108864\n"
ANNEX = b"/annex/objects/SHA256E-s67108864--" + b"4d7a" * 16 + b".tar\n"
POINTERS = {"git lfs pull": LFS, "git annex get": ANNEX}
EACH_POINTER = pytest.mark.parametrize(("command", "pointer"), POINTERS.items(), ids=["lfs", "annex"])


def hint_of(action: Any) -> str:
    with pytest.raises(ShoalError, match="not the 67,108,864 bytes") as caught:
        action()
    return caught.value.hint


@EACH_POINTER
@pytest.mark.parametrize("name", FORMATS)
def test_a_pointer_is_no_shard(name: str, command: str, pointer: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"train{FORMATS[name].suffixes[0]}"
    path.write_bytes(pointer)
    assert command in hint_of(lambda: shoal.open(path))
    assert command in hint_of(lambda: shoal.open(path, format=name))


@EACH_POINTER
def test_tokens_and_remote_shards_are_looked_at_too(command: str, pointer: bytes, tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(pointer)
    assert command in hint_of(lambda: shoal.open(tmp_path / "train.bin", format=shoal.formats.Tokens(16)))
    store = MemoryStore()
    store.put("memory://pointers/train.tar", pointer)
    assert command in hint_of(lambda: shoal.open("memory://pointers/train.tar"))
    store.delete("memory://pointers/train.tar")


@EACH_POINTER
def test_what_lies_beside_shards_is_looked_at_too(command: str, pointer: bytes, tmp_path: Path) -> None:
    """An index.json says other numbers of bytes than pointers have; the index.json may itself be a pointer."""
    for name in ("0.mds", "1.mds", "index.json"):
        (tmp_path / name).write_bytes(pointer)
    assert command in hint_of(lambda: shoal.open(tmp_path))
    (tmp_path / "index.json").unlink()
    (tmp_path / "shoal.index").write_bytes(pointer)
    assert command in hint_of(lambda: shoal.open(tmp_path))
    (tmp_path / "mixture.yaml").write_bytes(pointer)
    assert command in hint_of(lambda: shoal.open(tmp_path / "mixture.yaml"))
    write_megatron(tmp_path / "docs.bin", [[np.arange(100)]], "uint16")
    for name in ("docs.bin", "docs.idx"):
        (tmp_path / name).write_bytes(pointer)
        assert command in hint_of(lambda: shoal.open(tmp_path / "docs.bin", format=shoal.formats.Tokens()))


@EACH_POINTER
def test_a_shard_that_is_a_pointer_since_it_was_indexed(command: str, pointer: bytes, tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"a": 1}\n' * 100)
    assert main(["index", str(tmp_path)]) == 0
    path.write_bytes(pointer)
    assert command in hint_of(lambda: shoal.open(tmp_path)[0])


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for name in ("cat/0.jpg", "cat/1.jpg", "dog/2.jpg"):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_bytes(b"\xff\xd8" * 1000)
    return tmp_path / "images"


@EACH_POINTER
def test_a_pointer_is_no_file_of_a_folder(command: str, pointer: bytes, images: Path) -> None:
    (images / "cat" / "1.jpg").write_bytes(pointer)
    assert command in hint_of(lambda: shoal.open(images, format="folder"))
    (images / "cat" / "0.jpg").write_bytes(b"a thumbnail" * 8)  # the one file that is looked at
    partly = shoal.open(images, format="folder")
    assert command in hint_of(lambda: partly[1])
    assert len(list(partly.reading(on_error="skip"))) == 2


@EACH_POINTER
@pytest.mark.parametrize("to", ["tar", "parquet"])
def test_a_pointer_is_packed_into_no_shard(command: str, pointer: bytes, to: str, images: Path, tmp_path: Path) -> None:
    (images / "cat" / "1.jpg").write_bytes(pointer)
    with pytest.raises(StorageError) as caught:
        pack(images, tmp_path / "out", format=to)
    assert command in caught.value.hint
    done = pack(images, tmp_path / "skipped", format=to, on_error="skip")
    assert [name for name, _ in done.skipped] == ["cat/1.jpg"]
    assert shoal.open(tmp_path / "skipped").num_samples == 2


@EACH_POINTER
def test_a_pointer_is_no_tokenizer(command: str, pointer: bytes, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("text\n")
    (tmp_path / "tokenizer.json").write_bytes(pointer)
    texts = shoal.open(tmp_path / "train.txt")
    assert command in hint_of(lambda: texts.tokenize(tmp_path / "tokenizer.json"))


def test_other_small_files_are_data(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"version one\nsize 3\n")
    assert [sample["text"] for sample in shoal.open(tmp_path / "notes.txt")] == ["version one", "size 3"]
    (tmp_path / "long.txt").write_bytes(LFS + b"more\n" * 1000)  # a pointer has less than 1 KiB
    assert shoal.open(tmp_path / "long.txt").num_samples == 1003


def tar_of(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


TEXT = b"version 2 of a caption"


def with_a_pointer(pointer: bytes, *, large: int = 0) -> bytes:
    """Return a tar of three samples; the second has a pointer in the place of its picture."""
    members = {f"{number}.{name}": TEXT for number in range(3) for name in ("jpg", "txt")}
    return tar_of({**members, "1.txt": TEXT + bytes(large), "1.jpg": pointer})


@EACH_POINTER
@pytest.mark.parametrize("large", [0, 100_000], ids=["small", "large"])
@pytest.mark.parametrize("twin", TWINS)
def test_a_pointer_is_no_member_of_a_tar(twin: str, large: int, command: str, pointer: bytes, tmp_path: Path) -> None:
    """Whichever way the sample is read: all parts of the reader name the member, and leave the others alone."""
    data = with_a_pointer(pointer, large=large)
    found = scan(data)
    begin, end = found.sample_starts.tolist()[1:3]
    one = Span("s", begin, 1, None, {})

    def read(first: int, last: int) -> bytes:
        return data[first:last]

    with fresh_process(twin):
        whole = memoryview(data)
        starts = found.sample_starts.tolist()
        span = Span("s", 0, 3, starts, {})
        for records in (Tar().parse(data, span), Tar().parse(whole, span), Tar().parse_views(data, whole, span)):
            assert command in hint_of(lambda records=records: records.sample(1))
            assert [bytes(records.sample(number)["jpg"]) for number in (0, 2)] == [TEXT, TEXT]
        assert command in hint_of(lambda: Tar().read_sample(read, end, one))
        assert command in hint_of(lambda: Tar().read_wanted(read, end, one, lambda name: name == "jpg"))
        assert Tar().read_wanted(read, end, one, lambda name: name == "txt")["txt"] == TEXT + bytes(large)


@EACH_POINTER
def test_a_sample_with_a_pointer_is_skipped_counted_and_verified(command: str, pointer: bytes, tmp_path: Path) -> None:
    (tmp_path / "train.tar").write_bytes(with_a_pointer(pointer))
    dataset = shoal.open(tmp_path / "train.tar")
    with pytest.raises(ShoalError, match=r"'1\.jpg'") as caught:
        list(dataset)
    assert command in caught.value.hint
    assert 'reading(on_error="skip")' in caught.value.hint
    skipping = dataset.reading(on_error="skip")
    assert len(list(skipping)) == 2
    assert skipping.stats()["skipped_ids"] == [1]
    assert main(["verify", str(tmp_path / "train.tar")]) != 0
    with pytest.raises(ShoalError):
        repack(tmp_path / "train.tar", tmp_path / "out", format="tar")
    repack(tmp_path / "train.tar", tmp_path / "skipped", format="tar", on_error="skip")
    assert shoal.open(tmp_path / "skipped").num_samples == 2


@EACH_POINTER
def test_a_field_that_is_a_pointer_says_so_where_it_is_decoded(command: str, pointer: bytes, tmp_path: Path) -> None:
    """Values of tables and of records are no files, and may hold any bytes; an image that is a pointer is none."""
    rows = [{"jpg": pointer, "text": "a"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    assert command in hint_of(lambda: list(shoal.open(tmp_path).decode("pil")))


@EACH_POINTER
def test_an_image_of_mds_is_no_pointer(command: str, pointer: bytes, tmp_path: Path) -> None:
    with Writer(tmp_path / "mds", format="mds", options={"columns": {"jpg": "jpeg"}}) as writer:
        writer.write({"jpg": pointer})
    assert command in hint_of(lambda: list(shoal.open(tmp_path / "mds")))
    assert command in hint_of(lambda: repack(tmp_path / "mds", tmp_path / "tar", format="tar"))
