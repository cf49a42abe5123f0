"""What Git LFS and git-annex leave in place of a file that was not fetched is no data, in any format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.test_token_files import write_megatron

import shoal
from shoal.cli.main import main
from shoal.errors import ShoalError, StorageError
from shoal.formats.format_registry import FORMATS
from shoal.pack import pack
from shoal.storage.memory_store import MemoryStore

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d7a" * 16 + b"\nsize 67108864\n"
ANNEX = b"/annex/objects/SHA256E-s67108864--" + b"4d7a" * 16 + b".tar\n"
POINTERS = {"git lfs pull": LFS, "git annex get": ANNEX}
EACH_POINTER = pytest.mark.parametrize(("command", "pointer"), POINTERS.items(), ids=["lfs", "annex"])


def hint_of(action: Any) -> str:
    with pytest.raises(ShoalError, match="and not the 67,108,864 bytes it stands for") as caught:
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
