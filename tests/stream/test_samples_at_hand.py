"""Samples that are made together and given out one by one: as if each had been made when it was asked for."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.stream.made import open_finely, write_tars

import shoal.pack
from shoal.errors import ShardError
from shoal.reading.fetcher import RUN_BYTES, Fetcher
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

NUM_SAMPLES = 400
WINDOW = "16KiB"


def sample_of(kind: str, number: int) -> dict[str, Any]:
    if kind == "tokens":
        return {"number": number, "x": np.arange(number, number + 40, dtype=np.uint16)}
    return {"number": number, "text": f"sample {number} " * (number % 7), "meta": {"n": number}}


def write(directory: Path, kind: str) -> Path:
    directory.mkdir()
    if kind == "tar":
        write_tars(directory, [150, 250])
    elif kind == "parquet":
        rows = [{"number": number, "text": "word " * (number % 7), "x": [number] * 3} for number in range(NUM_SAMPLES)]
        pq.write_table(pa.Table.from_pylist(rows), directory / "a.parquet", row_group_size=30)
    elif kind == "jsonl":
        lines = [b'{"number": %d}\n' % number for number in range(NUM_SAMPLES)]
        (directory / "a.jsonl").write_bytes(b"".join(lines))
    else:
        columns = {
            "number": "int",
            **({"x": "ndarray:uint16:40"} if kind == "tokens" else {"text": "str", "meta": "json"}),
        }
        with shoal.pack.Writer(directory, format="mds", shard_bytes="16KiB", options={"columns": columns}) as writer:
            for number in range(NUM_SAMPLES):
                writer.write(sample_of(kind, number))
        for path in [
            *directory.glob("*.json"),
            *directory.glob("*.index"),
        ]:  # its own indexes, which are not of small extents
            path.unlink()
    return directory


@pytest.fixture(params=["tokens", "documents", "parquet", "tar", "jsonl"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Dataset:
    return fine(write(tmp_path / "data", request.param))


def fine(directory: Path) -> Dataset:
    return open_finely(directory, extent_bytes=1000).shuffle(seed=4, window=WINDOW)


def plain(sample: Any) -> Any:
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in sample.items()}


def types(sample: Any) -> Any:
    return {name: (type(value), getattr(value, "dtype", None)) for name, value in sample.items()}


STAGES: dict[str, Callable[[Dataset], Dataset]] = {
    "as stored": lambda ds: ds,
    "with ids": lambda ds: ds.with_ids(),
    "as numpy": lambda ds: ds.format("numpy"),
    "decoded": lambda ds: ds.decode(),
    "decoded with ids": lambda ds: ds.decode().with_ids(),
    "of two ranks": lambda ds: ds.partition(rank=1, world_size=2),
}


@pytest.mark.parametrize("stages", STAGES)
def test_samples_are_those_that_a_function_sees_one_by_one(stored: Dataset, stages: str) -> None:
    ds = STAGES[stages](stored)
    together, alone = list(ds), list(ds.map(lambda sample: sample))
    assert len(together) == len(alone) > 100
    assert [plain(sample) for sample in together] == [plain(sample) for sample in alone]
    assert [types(sample) for sample in together] == [types(sample) for sample in alone]


def test_a_sample_owns_its_bytes(stored: Dataset) -> None:
    for sample in stored:
        for value in sample.values():
            if isinstance(value, np.ndarray):
                assert value.base is None
                assert value.flags.writeable


def test_each_state_resumes_with_the_next_sample(stored: Dataset) -> None:
    iterator = iter(stored)
    states, expected = [iterator.state_dict()], []
    for sample in iterator:
        expected.append(plain(sample))
        states.append(iterator.state_dict())
    for number in [0, 1, 2, 63, 64, 65, 200, len(expected) - 2, len(expected) - 1]:
        stored.load_state_dict(states[number])
        again = iter(stored)
        assert plain(next(again)) == expected[number]
        assert again.state_dict() == states[number + 1]
    stored.load_state_dict(states[-1])
    assert stored.epoch == 1


def test_what_is_counted_is_what_was_given_out(stored: Dataset) -> None:
    iterator = iter(stored)
    for number in range(1, 100):
        next(iterator)
        assert stored.stats()["num_samples"] == number
    other = iter(stored)
    next(other)
    assert stored.stats()["num_samples"] == 100
    del iterator
    assert stored.stats()["num_samples"] == 100
    other.close()
    assert stored.stats()["num_samples"] == 100


@pytest.mark.parametrize("end", ["close", "stop"])
def test_nothing_is_given_out_after_the_end(stored: Dataset, end: str) -> None:
    iterator = iter(stored)
    for _ in range(70):
        next(iterator)
    state = iterator.state_dict()
    getattr(iterator, end)()
    assert next(iterator, None) is None
    assert iterator.state_dict() == state
    stored.load_state_dict(state)
    assert len(list(stored)) == len(stored) - 70


def test_an_epoch_ends_with_its_last_sample(stored: Dataset) -> None:
    for _, _sample in zip(range(len(stored)), stored, strict=False):
        pass
    assert stored.epoch == 1


def damaged(directory: Path, kind: str) -> tuple[Dataset, int]:
    """A dataset with one damaged sample, and its position."""
    ds = fine(write(directory, kind))
    good = [plain(sample) for sample in ds]
    victim = b"sample 205 sample" if kind == "documents" else b'{"number": 205}'
    for path in directory.glob("*.mds" if kind == "documents" else "*.jsonl"):
        path.write_bytes(path.read_bytes().replace(victim, b"\xff" * len(victim)))
    ds = fine(directory)
    return ds, next(place for place, sample in enumerate(good) if sample["number"] == 205)


@pytest.mark.parametrize("kind", ["documents", "jsonl"])
def test_an_error_comes_at_its_sample(tmp_path: Path, kind: str) -> None:
    ds, place = damaged(tmp_path / "data", kind)
    iterator = iter(ds)
    before: list[Any] = []
    with pytest.raises(ShardError) as found:
        before.extend(iterator)
    assert len(before) == place
    assert iterator.state_dict()["position"] == place
    assert ds.stats()["num_samples"] == place
    with pytest.raises(ShardError) as again:
        next(iterator)
    assert again.value is found.value


def test_an_error_of_a_decoder_comes_at_its_sample(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(NUM_SAMPLES):
            data = b"none" if number == 205 else str(number).encode()
            info = tarfile.TarInfo(f"{number:04d}.cls")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    ds = open_finely(tmp_path, extent_bytes=8192).shuffle(seed=4, window="64KiB")
    place = ds.ids().tolist().index(205)
    decoded = ds.decode()
    iterator = iter(decoded)
    before: list[Any] = []
    with pytest.raises(ShardError, match="'cls'"):
        before.extend(iterator)
    assert [sample["cls"] for sample in before] == ds.ids(stop=place).tolist()
    assert iterator.state_dict()["position"] == decoded.stats()["num_samples"] == place
    assert place % 64


def test_lists_are_short_and_of_few_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [b'{"number": %d, "text": "%s"}\n' % (i, b"a" * (40_000 if i % 50 == 0 else 100)) for i in range(2000)]
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines))
    seen: list[list[int]] = []
    runs = Fetcher.runs

    def watched(self: Fetcher, *given: Any) -> Iterator[list[Any]]:
        for run in runs(self, *given):
            seen.append([len(sample["text"]) for sample in run])  # type: ignore[index]
            yield run

    monkeypatch.setattr(Fetcher, "runs", watched)
    ds = open_finely(tmp_path, extent_bytes=8192).shuffle(seed=1, window="256KiB", chunk="8KiB")
    assert len(list(ds)) == 2000
    assert 1 < max(map(len, seen)) <= 64
    assert max(map(sum, seen)) <= RUN_BYTES + 40_000


def test_functions_see_samples_when_they_are_due(stored: Dataset) -> None:
    seen: list[Any] = []

    def see(sample: Any) -> Any:
        seen.append(sample)
        return sample

    iterator = iter(stored.map(see))
    for number in range(1, 80):
        next(iterator)
        assert len(seen) == number
