"""Images and lists of them in MDS shards go into other shards as what they are, or nothing is written."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import ShardError, UsageError
from shoal.formats.rows.mds.encodings import StoredValue
from shoal.formats.rows.mds.reader import Mds
from shoal.formats.rows.mds.writer import MdsEncoder
from shoal.pack.from_shards.repacking import repack

Image = pytest.importorskip("PIL.Image")

LISTS = ["list[pil]", "list[jpeg]", "list[png]", "jpeg_array"]


def image(number: int, mode: str = "RGB") -> Any:
    return Image.fromarray(np.full((3, 4, 3), (number, 2, 3), np.uint8)).convert(mode)


def pixels_of(number: int, mode: str = "RGB") -> bytes:
    """As MosaicML Streaming writes ``pil``."""
    made = image(number, mode)
    return np.array([made.width, made.height, len(mode)], "<u4").tobytes() + mode.encode() + made.tobytes()


def file_of(number: int, kind: str) -> bytes:
    file = io.BytesIO()
    image(number).save(file, kind)
    return file.getvalue()


def list_of(values: list[bytes], *, unused_bytes: int = 4) -> bytes:
    sizes = np.array([len(values), *map(len, values)], "<u4").tobytes()
    return b"\0" * unused_bytes + sizes + b"".join(values)


ONE: dict[str, Callable[[int], bytes]] = {
    "pil": pixels_of,
    "jpeg": lambda number: file_of(number, "JPEG"),
    "png": lambda number: file_of(number, "PNG"),
}


def value_of(encoding: str, number: int) -> bytes:
    if encoding in ONE:
        return ONE[encoding](number)
    kind = "jpeg" if encoding == "jpeg_array" else encoding[len("list[") : -1]
    values = [ONE[kind](number + place) for place in range(number % 3)]
    return list_of(values, unused_bytes=0 if encoding == "jpeg_array" else 4)


def write(directory: Path, encoding: str, values: list[bytes]) -> Path:
    """Two shards whose values of the one column are stored as these bytes, with the number of each."""
    directory.mkdir()
    half = len(values) // 2
    for shard, numbers in enumerate((range(half), range(half, len(values)))):
        encoder = MdsEncoder(columns={"image": encoding, "n": "int"})
        making = encoder.begin()
        for number in numbers:
            making.add(encoder.record({"image": StoredValue(values[number]), "n": number}))
        (directory / f"shard.{shard:05d}.mds").write_bytes(b"".join(map(bytes, making.finish())))
    return directory


def all_of(url: Path, **options: Any) -> list[dict[str, Any]]:
    ds = shoal.open(url, **options)
    return [ds[number] for number in range(ds.num_samples)]


def images_in(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def opened(file: bytes) -> Any:
    found = Image.open(io.BytesIO(file))
    found.load()
    return found


def same(one: Any, other: Any) -> bool:
    return (one.mode, one.size, one.tobytes()) == (other.mode, other.size, other.tobytes())


@pytest.mark.parametrize("encoding", ["pil", *LISTS])
def test_mds_to_mds_keeps_every_byte(tmp_path: Path, encoding: str) -> None:
    source = write(tmp_path / "a", encoding, [value_of(encoding, number) for number in range(12)])
    made = repack(source, tmp_path / "b", shard_bytes=200, num_workers=1)
    assert len(made.summary.shards) > 2
    about = json.loads((tmp_path / "b" / "index.json").read_text())["shards"][0]
    assert about["column_encodings"] == [encoding, "int"]
    for one, other in zip(all_of(source), all_of(tmp_path / "b"), strict=True):
        assert one["n"] == other["n"]
        first, second = (images_in(sample["image"]) for sample in (one, other))
        assert all(same(a, b) for a, b in zip(first, second, strict=True))
    one_again = repack(tmp_path / "b", tmp_path / "c", shard_bytes=1 << 20, num_workers=1)
    repack(source, tmp_path / "d", shard_bytes=1 << 20, num_workers=1)
    assert (tmp_path / "c" / "shard-000000.mds").read_bytes() == (tmp_path / "d" / "shard-000000.mds").read_bytes()
    assert len(one_again.summary.shards) == 1


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGB", "RGBA", "I;16"])
@pytest.mark.parametrize("target", ["tar", "parquet", "tfrecord"])
def test_pixels_become_a_png_that_is_the_same(tmp_path: Path, mode: str, target: str) -> None:
    if target == "parquet":
        pytest.importorskip("pyarrow")
    values = [pixels_of(number, mode if mode != "I;16" else "L") for number in range(4)]
    if mode == "I;16":
        header = np.array([2, 3, 4], "<u4").tobytes() + b"I;16"
        values = [header + np.arange(number, 6 + number, dtype="<u2").tobytes() for number in range(60_000, 60_004)]
    source = write(tmp_path / "a", "pil", values)
    repack(source, tmp_path / "b", format=target, num_workers=1)
    for one, other in zip(all_of(source), all_of(tmp_path / "b"), strict=True):
        assert same(one["image"], opened(other["image.png" if target == "tar" else "image"]))


@pytest.mark.parametrize("encoding", LISTS)
@pytest.mark.parametrize("target", ["parquet", "arrow"])
def test_lists_of_images_are_lists_of_files(tmp_path: Path, encoding: str, target: str) -> None:
    pytest.importorskip("pyarrow")
    source = write(tmp_path / "a", encoding, [value_of(encoding, number) for number in range(7)])
    made = repack(source, tmp_path / "b", format=target, num_workers=1, shard_bytes=200)
    assert made.num_looked_at == 0  # the encodings say which columns there are
    found = all_of(tmp_path / "b")
    for one, other in zip(all_of(source), found, strict=True):
        assert len(one["image"]) == len(other["image"])
        assert all(same(a, opened(b)) for a, b in zip(one["image"], other["image"], strict=True))


@pytest.mark.parametrize("target", ["tar", "tfrecord", "jsonl"])
def test_what_has_no_lists_of_images_is_refused_before_anything_is_there(tmp_path: Path, target: str) -> None:
    source = write(tmp_path / "a", "list[jpeg]", [value_of("list[jpeg]", number) for number in range(4)])
    with pytest.raises(UsageError, match=r"'image' is list\[jpeg\], but .* do not hold lists of images") as refused:
        repack(source, tmp_path / "b", format=target, num_workers=1)
    assert "parquet" in refused.value.hint
    with pytest.raises(UsageError, match="'image' is jpeg, but JSON holds no bytes"):
        repack(write(tmp_path / "c", "jpeg", [file_of(1, "JPEG")] * 4), tmp_path / "b", format="jsonl")
    assert not (tmp_path / "b").exists()


def test_an_image_that_no_png_is_the_same_as_is_told_or_left_out(tmp_path: Path) -> None:
    values = [pixels_of(number, "CMYK" if number == 3 else "RGB") for number in range(6)]
    source = write(tmp_path / "a", "pil", values)
    with pytest.raises(
        ShardError, match="column 'image' has an image of mode CMYK, which no PNG can hold exactly"
    ) as refused:
        repack(source, tmp_path / "b", format="tar", num_workers=1)
    assert "--to mds" in refused.value.hint
    made = repack(source, tmp_path / "b", format="tar", num_workers=1, on_error="skip")
    assert [name for name, _ in made.summary.skipped] == ["sample 3"]


def test_pickles_go_from_mds_to_mds_unread(tmp_path: Path) -> None:
    source = write(tmp_path / "a", "pkl", [pickle.dumps({number}) for number in range(4)])
    repack(source, tmp_path / "b", num_workers=1)
    assert [sample["image"] for sample in all_of(tmp_path / "b", format=Mds(allow_pickle=True))] == [
        {number} for number in range(4)
    ]
    with pytest.raises(UsageError, match="pickles can run any code"):
        repack(source, tmp_path / "c", format="tar", num_workers=1)
