"""Crops of images: the part, its scale, and the words that determine it."""

from __future__ import annotations

import gzip
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.test_jpeg_pixels import jpeg

import shoal
from shoal.errors import UsageError
from shoal.formats.decoding.crops import NUM_NUMBERS, Crop
from shoal.pipeline.batch_rows import BatchRows
from shoal.pipeline.stages.decode import Decode

Image = pytest.importorskip("PIL.Image")

NUMBERS = st.lists(st.floats(0, 1, exclude_max=True), min_size=NUM_NUMBERS, max_size=NUM_NUMBERS)
SIDES = st.tuples(st.integers(1, 400), st.integers(1, 400))


@given(crop=st.sampled_from(["center", "random", (0.3, 0.4), (1, 1)]), size=SIDES, image=SIDES, numbers=NUMBERS)
def test_a_part_lies_in_its_image(
    crop: Any, size: tuple[int, int], image: tuple[int, int], numbers: list[float]
) -> None:
    top, left, bottom, right = Crop.of(crop).part(size, numbers, *image)
    assert 0 <= top < bottom <= image[0]
    assert 0 <= left < right <= image[1]


def test_random_parts_have_the_areas_and_ratios_of_torchvision() -> None:
    draw, crop = np.random.default_rng(0), Crop.of("random")
    parts = np.array([crop.part((224, 224), draw.random(NUM_NUMBERS).tolist(), 600, 600) for _ in range(4000)])
    rows, columns = parts[:, 2] - parts[:, 0], parts[:, 3] - parts[:, 1]
    shares, ratios = rows * columns / 360_000, columns / rows
    assert 0.075 < shares.min() < 0.1
    assert 0.45 < shares.mean() < 0.54
    assert 0.74 <= ratios.min() < 0.77
    assert 1.3 < ratios.max() <= 1.35
    assert abs(np.log(ratios).mean()) < 0.02
    assert abs((parts[:, 0] / (601 - rows)).mean() - 0.5) < 0.03


def cropped_by_hand(data: bytes, part: tuple[int, int, int, int], size: tuple[int, int]) -> Any:
    top, left, bottom, right = part
    image = Image.open(io.BytesIO(data)).convert("RGB")
    return np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR, (left, top, right, bottom)))


@settings(max_examples=40, deadline=None)
@given(
    image=st.tuples(st.integers(20, 300), st.integers(20, 300)),
    size=st.tuples(st.integers(4, 80), st.integers(4, 80)),
    crop=st.sampled_from(["center", "random", (0.5, 1)]),
    sample_id=st.integers(0, 1000),
)
def test_pixels_are_those_of_the_part(image: tuple[int, int], size: tuple[int, int], crop: Any, sample_id: int) -> None:
    data, stage = jpeg(*image, quality=95), Decode(["rgb8"], size=size, crop=crop)
    assert stage._cropping is not None
    part = stage._cropping.part_of(sample_id)(*image)
    pixels = stage({"jpg": data}, sample_id)["jpg"]
    expected = cropped_by_hand(data, part, size)
    assert pixels.shape == (*size, 3)
    if min((part[2] - part[0]) // size[0], (part[3] - part[1]) // size[1]) < 2:
        assert np.array_equal(pixels, expected)  # decoded as a whole
    else:
        assert np.abs(pixels.astype(int) - expected).mean() <= 6


@pytest.mark.parametrize("crop", ["center", "random"])
def test_the_same_with_and_without_libjpeg_turbo(crop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    images = [jpeg(333, 147), jpeg(61, 90, "L"), jpeg(99, 99, "CMYK"), jpeg(200, 100), jpeg(30, 20, progressive=True)]
    stages = [Decode([name], size=size, crop=crop) for name in ("rgb8", "pil", "l") for size in ((30, 20), (7, 9))]
    fast = [np.asarray(stage({"jpg": data}, 5)["jpg"]) for stage in stages for data in images]
    monkeypatch.setattr("shoal.formats.decoding.images._simplejpeg", lambda: None)
    slow = [np.asarray(stage({"jpg": data}, 5)["jpg"]) for stage in stages for data in images]
    assert all(np.array_equal(one, other) for one, other in zip(fast, slow, strict=True))


def test_a_crop_follows_seed_epoch_and_sample_alone() -> None:
    data = jpeg(90, 120)
    stage = Decode(["rgb8"], size=16, crop="random")

    def pixels(stage: Any, sample_id: int) -> bytes:
        return bytes(stage({"jpg": data}, sample_id)["jpg"].tobytes())

    seeded = stage.seeded(3, iter([0]))
    variants = [seeded, stage.seeded(4, iter([0])), stage.seeded(3, iter([1])), seeded.in_epoch(1)]
    assert len({pixels(one, sample_id) for one in variants for sample_id in (7, 8)}) == 8
    assert pixels(pickle.loads(pickle.dumps(seeded.in_epoch(1))), 7) == pixels(seeded.in_epoch(1), 7)
    assert pixels(seeded.moved(100), 107) == pixels(seeded, 7)
    together = seeded.on_run([{"jpg": data}, {"jpg": data}], [8, 7])
    assert [one["jpg"].tobytes() for one in together] == [pixels(seeded, 8), pixels(seeded, 7)]
    memory = BatchRows(2)
    filled = seeded.filling(memory.next_from(0)).on_run([{"jpg": data}, {"jpg": data}], [8, 7])  # type: ignore[arg-type]
    assert memory.stacked([one["jpg"] for one in filled]) is not None
    assert [one["jpg"].tobytes() for one in filled] == [pixels(seeded, 8), pixels(seeded, 7)]
    gzipped = seeded({"jpg.gz": gzip.compress(data), "seg.jpg": data, "npy": b"", "x": b"1"} | {"npy": _npy()}, 7)
    assert gzipped["jpg.gz"].tobytes() == gzipped["seg.jpg"].tobytes() == pixels(seeded, 7)


def _npy() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.arange(3))
    return stream.getvalue()


def written(directory: Path) -> Path:
    samples = [{"__key__": f"{number:03}", "jpg": jpeg(60 + number % 5, 80)} for number in range(48)]
    shoal.pack.pack(samples, directory, format="tar")
    return directory


def crops_of(ds: Any, epoch: int = 0) -> dict[str, bytes]:
    ds.set_epoch(epoch)
    return {key: image.tobytes() for batch in ds for key, image in zip(batch["__key__"], batch["jpg"], strict=True)}


def test_crops_are_the_same_at_any_world_size_and_after_a_resume(tmp_path: Path) -> None:
    torch_loader = pytest.importorskip("shoal.torch").DataLoader
    ds = shoal.open(written(tmp_path / "a")).shuffle(seed=5).decode("rgb8", size=(20, 30), crop="random")
    whole, second = crops_of(ds.batch(8)), crops_of(ds.batch(8), epoch=1)
    assert len(whole) == 48
    assert all(whole[key] != second[key] for key in whole)
    assert {
        key: image
        for rank in range(2)
        for key, image in crops_of(ds.batch(4).partition(rank=rank, world_size=2)).items()
    } == whole
    assert crops_of(torch_loader(ds.batch(6), num_threads=2).dataset) == whole
    stream = iter(ds.batch(8))
    first = [next(stream), next(stream)]
    again = ds.batch(12)
    again.load_state_dict(stream.state_dict())
    rest = {key: image.tobytes() for batch in again for key, image in zip(batch["__key__"], batch["jpg"], strict=True)}
    assert rest == {key: image for key, image in whole.items() if key not in first[0]["__key__"] + first[1]["__key__"]}
    other = shoal.open(tmp_path / "a").shuffle(seed=6).decode("rgb8", size=(20, 30), crop="random")
    assert crops_of(other.batch(8)) != whole


@pytest.mark.parametrize("crop", ["middle", (0, 1), (0.5, 0.4), (0.5, 2), 3, (1,), ("a", "b")])
def test_wrong_crops_are_refused(crop: Any) -> None:
    with pytest.raises(UsageError, match=r"decode\(crop=\) takes"):
        Decode(["rgb8"], size=8, crop=crop)


def test_a_crop_needs_a_size_and_a_decoder_of_images() -> None:
    for specs, size in ((["rgb8"], None), ([{"jpg": bytes}], None)):
        with pytest.raises(UsageError, match="takes a part of each image"):
            Decode(specs, size=size, crop="random")
    assert repr(Decode(["rgb8"], size=8, crop="center")) == "decode('rgb8', size=(8, 8), crop='center')"
