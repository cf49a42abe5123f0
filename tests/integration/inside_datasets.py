"""Hugging Face ``datasets``, to them and from them; `test_frameworks` runs this where they are installed."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch.utils.data
from datasets.distributed import split_dataset_by_node
from tests.samples import write_jsonl, write_tar_shards
from torchdata.stateful_dataloader import StatefulDataLoader

import shoal
from shoal.errors import StateError, UsageError
from shoal.huggingface import from_hf

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork"),
]


@pytest.fixture(autouse=True)
def _own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf"))


@pytest.fixture
def ds(tmp_path: Path) -> shoal.Dataset:
    """200 samples in shuffled order."""
    write_tar_shards(tmp_path / "data")
    return shoal.open(tmp_path / "data").shuffle(seed=3).with_ids().columns("__id__")


def ids_of(samples: Iterable[Any]) -> list[int]:
    return [int(sample["__id__"]) for sample in samples]


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "twice": 2 * sample["__id__"]}


# ---- to Hugging Face


@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_the_samples_come_in_the_order_of_the_dataset(epoch: int, ds: shoal.Dataset) -> None:
    hf = ds.to_hf()
    assert isinstance(hf, datasets.IterableDataset)
    for made in (hf, hf.map(doubled), hf.filter(lambda sample: True), hf.with_format("numpy")):
        made.set_epoch(epoch)
        assert ids_of(made) == ids_of(made) == ds.ids(epoch).tolist()


def test_types_are_known_where_they_are_given(ds: shoal.Dataset) -> None:
    hf = ds.to_hf(features=datasets.Features({"__id__": datasets.Value("int64")}))
    assert hf.column_names == ["__id__"]
    assert ids_of(hf) == ds.ids().tolist()


@pytest.mark.parametrize("taken", [0, 1, 63, 199, 200])
def test_a_run_goes_on_exactly(taken: int, ds: shoal.Dataset) -> None:
    for change in (lambda made: made, lambda made: made.map(doubled), lambda made: made.map(doubled).batch(1)):
        hf = change(ds.to_hf())
        hf.set_epoch(2)
        seen = list(itertools.islice(hf, taken))
        state = json.loads(json.dumps(hf.state_dict()))
        again = change(ds.to_hf())
        again.set_epoch(2)
        again.load_state_dict(state)
        assert [np.ravel(sample["__id__"])[0] for sample in [*seen, *again]] == ds.ids(2).tolist()
        again.set_epoch(3)
        assert [np.ravel(sample["__id__"])[0] for sample in again] == ds.ids(3).tolist()


def test_it_begins_where_the_dataset_stands(ds: shoal.Dataset) -> None:
    batches = ds.batch(10)
    for _ in range(2):
        list(batches)
    iterator = iter(batches)
    next(iterator)
    ds.load_state_dict(batches.state_dict())
    assert ids_of(ds.to_hf()) == ds.ids(2, 10).tolist()
    with pytest.raises(
        UsageError, match=r"epoch 0 would begin, but the dataset is already in epoch 2\n.*set_epoch\(2\)"
    ):
        next(iter(ds.to_hf().map(doubled)))  # a new one, which has forgotten the epoch
    mapped = ds.to_hf().map(doubled)
    mapped.set_epoch(2)
    assert ids_of(mapped) == ds.ids(2, 10).tolist()


@pytest.mark.parametrize("world_size", [1, 3])
def test_ranks_and_workers_share_samples_out(world_size: int, ds: shoal.Dataset) -> None:
    for num_workers in (0, 2):
        parts = [split_dataset_by_node(ds.to_hf().map(doubled), rank, world_size) for rank in range(world_size)]
        seen = []
        for part in parts:
            part.set_epoch(1)
            seen.append(ids_of(torch.utils.data.DataLoader(part, batch_size=None, num_workers=num_workers)))
        assert sorted(itertools.chain.from_iterable(seen)) == list(range(200))
        assert max(map(len, seen)) - min(map(len, seen)) <= 1
        if not num_workers:
            assert seen == [ds.ids(1)[rank::world_size].tolist() for rank in range(world_size)]


def test_workers_that_stay_see_the_epoch(ds: shoal.Dataset) -> None:
    hf = ds.to_hf()
    loader = torch.utils.data.DataLoader(hf, batch_size=None, num_workers=1, persistent_workers=True)
    for epoch in (0, 1, 4):
        hf.set_epoch(epoch)
        assert ids_of(loader) == ds.ids(epoch).tolist()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stateful_loader_resumes_exactly(num_workers: int, ds: shoal.Dataset) -> None:
    def loader() -> Any:
        part = split_dataset_by_node(ds.to_hf(), 1, 2)
        part.set_epoch(1)
        return StatefulDataLoader(part, batch_size=None, num_workers=num_workers)

    whole = ids_of(loader())
    first = loader()
    iterator = iter(first)
    seen = ids_of(itertools.islice(iterator, 37))
    state = first.state_dict()
    del iterator
    second = loader()
    second.load_state_dict(state)
    assert seen + ids_of(second) == whole


def test_a_state_of_another_split_is_refused(ds: shoal.Dataset) -> None:
    part = split_dataset_by_node(ds.to_hf(), 1, 2)
    next(iter(part))
    for other in (ds.to_hf(), split_dataset_by_node(ds.to_hf(), 0, 2), split_dataset_by_node(ds.to_hf(), 1, 3)):
        other.load_state_dict(part.state_dict())
        with pytest.raises(StateError, match=r"the state was saved with (num_)?part"):
            next(iter(other))
    other = split_dataset_by_node(ds.map(doubled).take(100).to_hf(), 1, 2)
    other.load_state_dict(part.state_dict())
    with pytest.raises(StateError, match="saved with no choice"):
        next(iter(other))


def test_what_would_not_be_exact_is_refused(ds: shoal.Dataset) -> None:
    with pytest.raises(UsageError, match=r"shuffle\(\) of Hugging Face datasets"):
        ds.to_hf().shuffle(seed=1)
    with pytest.raises(UsageError, match="yields batches"):
        ds.batch(8).to_hf()
    with pytest.raises(UsageError, match="yields tuples"):
        ds.to_tuple("__id__").to_hf()


# ---- from Hugging Face


@pytest.fixture
def stored(tmp_path: Path) -> Any:
    """300 rows in three Arrow files."""
    rows = {"id": list(range(300)), "text": [f"row {number}" for number in range(300)], "x": [[1.0, 2.0]] * 300}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "stored", num_shards=3)
    return datasets.load_from_disk(tmp_path / "stored")


def rows_of(dataset: Any) -> list[tuple[Any, ...]]:
    return sorted((row["id"], tuple(sorted(row)), repr(row)) for row in ({**row} for row in dataset))


def plain(ds: shoal.Dataset) -> list[dict[str, Any]]:
    return [{name: np.asarray(value).tolist() for name, value in sample.items()} for sample in ds]


SAME: list[Callable[[Any], Any]] = [
    lambda hf: hf,
    lambda hf: hf.select(range(10, 200)),
    lambda hf: hf.select([7, 3, 299, 150]),
    lambda hf: hf.filter(lambda row: row["id"] % 7 == 0),
    lambda hf: hf.shuffle(seed=1),
    lambda hf: hf.train_test_split(test_size=0.25, seed=2)["train"],
    lambda hf: hf.shard(4, 1),
    lambda hf: hf.shuffle(seed=1).select(range(50)).filter(lambda row: row["id"] > 20),
    lambda hf: hf.select_columns(["text", "id"]),
    lambda hf: hf.remove_columns("x").rename_column("text", "words"),
    lambda hf: hf.with_format("numpy", columns=["id"]),
    lambda hf: hf.cast(hf.features),
    lambda hf: hf.map(lambda row: {"id": row["id"], "length": len(row["text"])}),  # a file of its own in the cache
    lambda hf: datasets.concatenate_datasets([hf.select(range(100, 120)), hf.select(range(40)), hf.shard(10, 9)]),
    lambda hf: datasets.concatenate_datasets(
        [hf.select(range(200)).select_columns("id"), hf.select_columns("id").select([250])]
    ),
]


@pytest.mark.parametrize("chain", SAME)
def test_the_rows_of_a_dataset_on_disk_are_read_in_place(chain: Callable[[Any], Any], stored: Any) -> None:
    hf = chain(stored)
    ds = from_hf(hf)
    expected = rows_of(hf.with_format(None).select_columns(hf.format["columns"]))
    assert rows_of(plain(ds)) == expected
    assert rows_of(plain(ds.shuffle(seed=1))) == expected
    assert ds.num_samples == len(hf)


def test_a_stream_of_stored_rows_is_those_rows(stored: Any) -> None:
    stream = stored.shuffle(seed=2).select(range(77)).to_iterable_dataset(num_shards=3)
    assert rows_of(plain(from_hf(stream))) == rows_of(stream)
    assert rows_of(plain(from_hf(stream.select_columns(["id"])))) == rows_of(stream.select_columns(["id"]))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """One dataset in each format that streams are read of."""
    write_jsonl(tmp_path / "files" / "docs.jsonl")
    write_tar_shards(tmp_path / "files")
    table = pa.table({"id": list(range(100)), "text": [str(number) for number in range(100)]})
    for number in range(2):
        pq.write_table(table.slice(50 * number, 50), tmp_path / "files" / f"p-{number}.parquet", row_group_size=20)
    return {name: str(tmp_path / "files" / f"*.{name}") for name in ("jsonl", "tar", "parquet")}


@pytest.mark.parametrize("indent", [None, 2])
def test_the_elements_of_one_json_array(indent: int | None, tmp_path: Path) -> None:
    rows = [{"n": number, "text": f"row {number}"} for number in range(5)]
    (tmp_path / "rows.json").write_text(json.dumps(rows, indent=indent))
    hf = datasets.load_dataset("json", data_files=str(tmp_path / "rows.json"), split="train", streaming=True)
    assert list(hf) == rows
    assert list(from_hf(hf)) == list(shoal.open(tmp_path / "rows.json")) == rows


@pytest.mark.parametrize(("builder", "files_of"), [("json", "jsonl"), ("parquet", "parquet")])
@pytest.mark.parametrize("streaming", [False, True])
def test_files_that_are_streamed_or_cached_are_the_same_rows(
    builder: str, files_of: str, streaming: bool, files: dict[str, str]
) -> None:
    hf = datasets.load_dataset(builder, data_files=files[files_of], split="train", streaming=streaming)
    expected = rows_of(hf)
    assert rows_of(plain(from_hf(hf))) == expected
    assert rows_of(plain(from_hf(hf.select_columns(["id"])))) == rows_of(hf.select_columns(["id"]))
    order = [sample["id"] for sample in from_hf(hf)]
    assert order == [row["id"] for row in hf]


def test_packed_files_are_those_files(tmp_path: Path, files: dict[str, str]) -> None:
    source = Path(files["jsonl"].replace("*", "docs"))
    (tmp_path / "docs.jsonl.gz").write_bytes(gzip.compress(source.read_bytes()))
    hf = datasets.load_dataset("json", data_files=str(tmp_path / "docs.jsonl.gz"), split="train", streaming=True)
    assert rows_of(plain(from_hf(hf))) == rows_of(hf)


def test_a_stream_with_a_state_is_refused(files: dict[str, str]) -> None:
    hf = datasets.load_dataset("json", data_files=files["jsonl"], split="train", streaming=True)
    next(iter(hf))
    hf.load_state_dict(hf.state_dict())
    with pytest.raises(UsageError, match="a state was loaded into it"):
        from_hf(hf)


def test_tars_that_are_streamed_have_the_same_samples(files: dict[str, str]) -> None:
    hf = datasets.load_dataset("webdataset", data_files=files["tar"], split="train", streaming=True)
    ours = [(sample["__key__"], sample["txt"].decode(), int(sample["cls"])) for sample in from_hf(hf)]
    assert ours == [(row["__key__"], row["txt"], int(row["cls"])) for row in hf]


def generated() -> Any:
    yield from ({"id": number} for number in range(3))


REFUSED: list[tuple[str, Callable[[Any, Any], Any]]] = [
    ("in memory and in no file", lambda hf, stream: datasets.Dataset.from_dict({"id": [1, 2]})),
    (r"rows are repeats", lambda hf, stream: hf.select([1, 2, 1])),
    (r"rows are repeats", lambda hf, stream: datasets.concatenate_datasets([hf, hf])),
    ("columns were added", lambda hf, stream: hf.add_column("more", list(range(300)))),
    (
        r"cast\(\) makes int32 of 'id', which is int64",
        lambda hf, stream: datasets.Dataset(hf.data.cast(pa.schema([("id", pa.int32()), *list(hf.data.schema)[1:]]))),
    ),
    (r"set_transform\(\) changes", lambda hf, stream: hf.with_transform(lambda rows: rows)),
    (r"takes one split; got DatasetDict with 'train', 'test'", lambda hf, stream: hf.train_test_split(0.5)),
    ("takes a datasets.Dataset", lambda hf, stream: [1, 2]),
    ("shuffled in a buffer", lambda hf, stream: stream.shuffle(seed=1)),
    (r"map\(\) changes its rows", lambda hf, stream: stream.map(lambda row: row)),
    (r"filter\(\) chooses rows", lambda hf, stream: stream.filter(lambda row: True)),
    (r"take\(\) counts rows", lambda hf, stream: stream.take(5)),
    (r"skip\(\) counts rows", lambda hf, stream: stream.skip(5)),
    ("the part of a single node", lambda hf, stream: split_dataset_by_node(stream, 0, 2)),
    (r"reshard\(\) split its files", lambda hf, stream: stream.reshard()),
    ("come from Generator", lambda hf, stream: datasets.IterableDataset.from_generator(generated)),
]


@pytest.mark.parametrize(("says", "make"), REFUSED, ids=[says for says, _ in REFUSED])
def test_what_cannot_be_exact_is_refused(
    says: str, make: Callable[[Any, Any], Any], stored: Any, files: dict[str, str]
) -> None:
    stream = datasets.load_dataset("parquet", data_files=files["parquet"], split="train", streaming=True)
    with pytest.raises(UsageError, match=says) as caught:
        from_hf(make(stored, stream))
    assert caught.value.hint or "takes a datasets" in says


def test_settings_that_change_rows_are_refused(files: dict[str, str]) -> None:
    some = datasets.load_dataset(
        "parquet", data_files=files["parquet"], split="train", streaming=True, filters=[("id", ">", 5)]
    )
    with pytest.raises(UsageError, match="filters= changes the contents of the files"):
        from_hf(some)
    fewer = datasets.load_dataset("parquet", data_files=files["parquet"], split="train", streaming=True, columns=["id"])
    assert rows_of(plain(from_hf(fewer))) == rows_of(fewer)
    with pytest.raises(UsageError, match=r"to_hf\(\)"):
        from_hf(from_hf(fewer).to_hf())


def test_pictures_that_the_library_decodes_are_refused_with_the_way_out(tmp_path: Path) -> None:
    from PIL import Image

    pictures = {"id": [0, 1], "image": [Image.new("RGB", (2, 2), (value, 0, 0)) for value in (10, 20)]}
    features = datasets.Features({"id": datasets.Value("int64"), "image": datasets.Image()})
    datasets.Dataset.from_dict(pictures, features=features).save_to_disk(tmp_path / "pictures")
    hf = datasets.load_from_disk(tmp_path / "pictures")
    with pytest.raises(UsageError, match=r"'image' is decoded") as caught:
        from_hf(hf)
    assert "cast_column('image', Image(decode=False))" in str(caught.value.hint)
    raw = from_hf(hf.cast_column("image", datasets.Image(decode=False)))
    assert [sample["image"]["bytes"][:4] for sample in raw] == [b"\x89PNG"] * 2


def test_a_run_over_their_files_goes_on_exactly(stored: Any) -> None:
    def stream() -> shoal.Dataset:
        return from_hf(stored.shuffle(seed=1).select(range(200))).shuffle(seed=4).with_ids().batch(16)

    whole = [batch["__id__"].tolist() for batch in stream()]
    first = stream()
    iterator = iter(first)
    seen = [next(iterator)["__id__"].tolist() for _ in range(5)]
    state = first.state_dict()
    again = stream()
    again.load_state_dict(state)
    assert seen + [batch["__id__"].tolist() for batch in again] == whole
