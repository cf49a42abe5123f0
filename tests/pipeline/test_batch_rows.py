"""Batches whose decoders write into their arrays: the same values, and no value changes after its batch was yielded."""

from __future__ import annotations

import gc
import io
import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.formats.decoding.decoders import decoders_of
from shoal.pipeline.batch_rows import BatchRows, ReusedArrays
from shoal.pipeline.collate import collate
from shoal.pipeline.decode_pool import Decoders, Threaded
from shoal.pipeline.stages.decode import Decode

Image = pytest.importorskip("PIL.Image")


def image(number: int, height: int = 16, width: int = 24, kind: str = "JPEG", mode: str = "RGB") -> bytes:
    draw = np.random.default_rng(number)
    stream = io.BytesIO()
    Image.fromarray(draw.integers(0, 255, (height, width, 3), np.uint8)).convert(mode).save(stream, kind)
    return stream.getvalue()


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


IMAGES = [
    *(image(number) for number in range(4)),
    *(image(9, *size) for size in ((24, 16), (8, 8), (48, 8), (17, 24))),
    image(5, mode="L"),
    image(6, mode="CMYK"),
    image(7, kind="PNG"),
    image(8, kind="PNG", height=3),
]
ARRAYS = [npy(np.arange(6).reshape(2, 3) + number) for number in range(3)]
ARRAYS += [npy(np.asfortranarray(np.eye(3))[:2]), npy(np.arange(6.0).reshape(2, 3)), npy(np.zeros((2, 3), ">i8"))]
ARRAYS += [npy(np.array(7)), npy(np.array([])), npy(np.array(["a", "bc"]))]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict | list):
        pairs = (
            zip(one.values(), other.values(), strict=True) if isinstance(one, dict) else zip(one, other, strict=True)
        )
        return type(one) is type(other) and len(one) == len(other) and all(same(*pair) for pair in pairs)
    if hasattr(one, "dtype"):
        return bool(one.dtype == other.dtype and one.shape == other.shape and (one == other).all())
    return bool(one == other)


def in_parts(stage: Decode, samples: list[Any], cuts: list[int], memory: BatchRows) -> list[Any]:
    """The samples, decoded part by part, each part by another thread and the last part first."""
    borders = [0, *sorted({cut for cut in cuts if 0 < cut < len(samples)}), len(samples)]
    made: dict[int, list[Any]] = {}

    def decode(first: int, stop: int) -> None:
        made[first] = stage.filling(memory.next_from(first)).on_run(samples[first:stop], range(first, stop))  # type: ignore[arg-type]

    for first, stop in reversed(list(itertools.pairwise(borders))):
        thread = threading.Thread(target=decode, args=(first, stop))
        thread.start()
        thread.join()
    return [sample for first in borders[:-1] for sample in made[first]]


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(["rgb8", "l8", "rgba8", "rgb", "l", "torchrgb8", "torchrgb"]),
    size=st.sampled_from([None, None, (4, 6), (16, 24)]),
    chosen=st.lists(st.integers(0, len(IMAGES) - 1), min_size=1, max_size=8),
    alike=st.booleans(),
    arrays=st.lists(st.integers(0, len(ARRAYS) - 1), min_size=8, max_size=8),
    lacks=st.booleans(),
    cuts=st.lists(st.integers(1, 7), max_size=3),
)
def test_a_filled_batch_equals_a_copied_batch(
    name: str, size: Any, chosen: list[int], alike: bool, arrays: list[int], lacks: bool, cuts: list[int]
) -> None:
    if name.startswith("torch"):
        pytest.importorskip("torch")
    chosen = [number % 4 for number in chosen] if alike else chosen
    arrays = [number % 3 for number in arrays] if alike else arrays
    samples: list[Any] = [
        {"__key__": str(n), "jpg": IMAGES[one], "npy": ARRAYS[arrays[n]], "cls": b"1"} for n, one in enumerate(chosen)
    ]
    if lacks:
        samples[-1].pop("npy")
    stage = Decode([name], size=size)
    expected = collate([stage(sample, 0) for sample in samples])
    memory = BatchRows(len(samples), ReusedArrays())
    assert same(collate(in_parts(stage, samples, cuts, memory), memory), expected)


def test_alike_values_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError

    samples = [{"jpg": IMAGES[number % 4], "npy": ARRAYS[number % 3]} for number in range(8)]
    for name in ("rgb8", "rgb", "l8"):
        memory = BatchRows(8)
        made = in_parts(Decode([name]), samples, [3, 5], memory)
        with monkeypatch.context() as patched:
            patched.setattr(np, "stack", refuse)
            batch = collate(made, memory)
        assert all(np.shares_memory(batch[field][n], made[n][field]) for field in ("jpg", "npy") for n in range(8))


def test_rows_that_are_left_out_or_out_of_order_are_copied() -> None:
    samples = [{"jpg": IMAGES[number % 4]} for number in range(6)]
    for order in ([0, 1, 2, 4, 5], [1, 0, 2, 3, 4, 5], [0, 0, 2, 3, 4, 5]):
        memory = BatchRows(6)
        made = in_parts(Decode(["rgb8"]), samples, [], memory)
        batch = collate([made[number] for number in order], memory)
        assert same(batch["jpg"], np.stack([made[number]["jpg"] for number in order]))
        assert not np.shares_memory(batch["jpg"], made[0]["jpg"])


def test_memory_is_reused_only_when_nothing_refers_to_it() -> None:
    make = ReusedArrays()
    one = make((2, 1 << 20), np.uint8)
    one[:] = 1
    kept = [one[0], one[1:, 5:], memoryview(one[1]), one.reshape(-1)[7:9]]
    torch = pytest.importorskip("torch")
    kept.append(torch.from_numpy(one)[1])
    del one
    while kept:
        other = make((2, 1 << 20), np.uint8)
        other[:] = 2
        assert np.asarray(kept.pop()).min() == 1
    gc.collect()
    assert len(make._free) >= 1
    assert make((1 << 21,), np.uint8).min() in (1, 2)  # of earlier batches


def written(directory: Path, count: int, *, damaged: int | None = None) -> Path:
    samples = [
        {"__key__": f"{n:04}", "jpg": image(n % 7), "npy": npy(np.full(3, n)), "cls": b"3"} for n in range(count)
    ]
    if damaged is not None:
        samples[damaged]["jpg"] = samples[damaged]["jpg"][:200]
    shoal.pack.pack(samples, directory, format="tar")
    return directory


@pytest.mark.parametrize("batch_size", [1, 5, 16, 40])
@pytest.mark.parametrize("damaged", [None, 33])
def test_streams_with_threads_and_without_are_equal(tmp_path: Path, batch_size: int, damaged: int | None) -> None:
    torch_loader = pytest.importorskip("shoal.torch").DataLoader
    ds = shoal.open(written(tmp_path / "a", 90, damaged=damaged)).shuffle(seed=1)
    if damaged is not None:
        ds = ds.reading(on_error="skip")
    singles = iter(ds.decode("rgb8"))
    batches = list(ds.decode("rgb8").batch(batch_size))
    kept = list(torch_loader(ds.decode("rgb8").batch(batch_size), num_threads=3))
    mapped = list(ds.decode("rgb8").map(lambda sample: sample).batch(batch_size))
    assert len(batches) == len(kept) == len(mapped) == -(-90 // batch_size)
    for batch, other, third in zip(batches, kept, mapped, strict=True):
        if "__pad__" not in batch:
            expected = collate([next(singles) for _ in batch["jpg"]])
            assert same(batch, expected)
        assert all(same(batch[name], third[name]) for name in batch)
        assert same(batch["jpg"], other["jpg"].numpy())


def test_functions_of_the_user_get_arrays_of_their_own(tmp_path: Path) -> None:
    kept: list[Any] = []

    def keep(sample: Any) -> Any:
        kept.append(sample["jpg"])
        return sample

    ds = shoal.open(written(tmp_path / "a", 24)).decode("rgb8").map(keep).batch(8)
    for batch in ds:
        assert not any(np.shares_memory(array, batch["jpg"]) for array in kept)


def test_an_error_in_a_group_comes_after_the_samples_before_it() -> None:
    decoders = Decoders([Decode(["rgb8"])], Threaded(1, 2, 1 << 30), index=None, forgiving=False)
    samples = [{"jpg": IMAGES[n % 4] if n != 21 else IMAGES[0][:300]} for n in range(40)]
    batches = decoders.batches(iter(samples), range(40), [10] * 4, BatchRows)
    received = [next(batches), next(batches)]
    with pytest.raises(Exception, match="sample with id 21"):
        next(batches)
    assert [len(part) for part, _ in received] == [10, 10]
    decoders.close()


def test_decoders_of_arrays_have_into() -> None:
    assert all(hasattr(decoders_of("rgb8")[suffix], "into") for suffix in ("jpg", "png"))
    assert hasattr(decoders_of(None)["npy"], "into")
