"""What `join` refuses, and what it counts: every error names the finding and a remedy."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from tests.stream.joining.joined_data import NUM_LEFT, check_batch, check_joined, joined, write_right

import shoal
from shoal.errors import StorageError, UsageError
from shoal.stream.dataset import Dataset
from shoal.testing import RangeServer

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


def lines(path: Path, rows: list[dict[str, Any]], **how: Any) -> Dataset:
    shoal.pack.pack(iter(rows), path, format="jsonl", **how)
    return shoal.open(path)


def test_double_keys_are_refused_with_examples_or_the_first_counts(tmp_path: Path) -> None:
    left = lines(tmp_path / "left", [{"id": i} for i in range(5)])
    right = lines(tmp_path / "right", [{"id": i % 3, "place": i} for i in range(8)])
    for _ in range(2):  # new, and from the cache
        with pytest.raises(UsageError, match=r"5 of 8 samples .*: samples 0 and 3 are 0; samples 1 and 4") as error:
            left.join(right, on="id")
        assert "first" in error.value.hint
    assert [s["place"] for s in left.join(right, on="id", doubles="first")] == [0, 1, 2]
    assert left.join(right.select([2, 3, 7]), on="id").num_samples == 3, "keys that are not selected"
    with pytest.raises(UsageError, match=r"1 of 4 samples .*samples 4 and 7"):
        left.join(right.select([2, 3, 4, 7]), on="id")


def test_several_left_samples_may_have_one_partner(tmp_path: Path) -> None:
    left = lines(tmp_path / "left", [{"image": i // 2, "n": i} for i in range(8)])
    right = lines(tmp_path / "right", [{"id": i, "label": -i} for i in (3, 1, 0, 2)])
    for ds in (left.join(right, on=("image", "id")), left.join(right, on=("image", "id")).shuffle("full", seed=0)):
        assert sorted((s["n"], s["label"], s["id"]) for s in ds) == [(i, -(i // 2), i // 2) for i in range(8)]


def test_fields_of_both_sides_are_refused_by_name(tmp_path: Path) -> None:
    left = lines(tmp_path / "left", [{"id": 1, "text": "a", "lang": "en", "x": 0}])
    right = lines(tmp_path / "right", [{"id": 1, "text": "b", "lang": "de", "y": 0}])
    for read in (lambda ds: ds[0], list, lambda ds: list(ds.batch(1))):
        with pytest.raises(UsageError, match=r"both sides .*'lang', and 'text'") as error:
            read(left.join(right, on="id"))
        assert "rename" in error.value.hint
        assert "columns" in error.value.hint
    named = left.join(right.rename(text_de="text", lang_de="lang"), on="id")
    assert named[0] == {"id": 1, "text": "a", "lang": "en", "x": 0, "y": 0, "text_de": "b", "lang_de": "de"}
    assert left.join(right.columns("y"), on="id")[0] == {"id": 1, "text": "a", "lang": "en", "x": 0, "y": 0}


def test_samples_without_a_partner_are_counted_and_filled(sides: Path) -> None:
    ds = joined(sides / "left", sides / "right-sparse", how="left", missing={"caption": b"none"})
    batched = ds.batch(60)
    lacking = sum(caption == b"none" for batch in batched for caption in batch["caption"])
    assert lacking == batched.stats()["num_unmatched"] == sum(i % 7 in (2, 3) for i in range(NUM_LEFT))
    assert f"{NUM_LEFT - lacking} of {NUM_LEFT} samples have a partner" in repr(ds)
    plain = joined(sides / "left", sides / "right-sparse", how="left")
    assert "caption" not in plain[2]
    assert next(iter(plain.batch(8)))["caption"][2:4] == [None, None]
    assert "60 partners are unused" in repr(joined(sides / "left", sides / "right-larger"))


def test_no_partner_at_all(sides: Path) -> None:
    with pytest.raises(UsageError, match=r"join\(.*\) leaves none of 240 samples"):
        joined(sides / "left", sides / "right-disjoint")
    ds = joined(sides / "left", sides / "right-disjoint", how="left").shuffle(seed=0)
    assert sorted(check_joined(sample, set()) for sample in ds) == list(range(NUM_LEFT))


def test_a_key_is_a_text_or_a_number_of_equal_value(tmp_path: Path) -> None:
    left = lines(tmp_path / "left", [{"id": i, "a": i} for i in range(4)], columns=["id"])
    right = lines(tmp_path / "right", [{"id": str(i), "b": i} for i in (3, 2, 9)])
    texts = lines(tmp_path / "texts", [{"id": text, "b": text} for text in ("02", "3.0", "x", "3")])
    real = lines(tmp_path / "real", [{"id": i, "b": i} for i in (2.0, 2.5)])
    assert list(left.join(right, on="id")) == [{"id": i, "a": i, "b": i} for i in (2, 3)]
    assert list(left.join(texts, on="id")) == [{"id": 3, "a": 3, "b": "3"}]
    assert list(left.join(real, on="id")) == [{"id": 2, "a": 2, "b": 2.0}]


@pytest.mark.parametrize("indexed", [["id"], []])
def test_columns_of_texts_join_as_fields_do(tmp_path: Path, indexed: list[str]) -> None:
    left = lines(tmp_path / "left", [{"id": f"é{i}", "a": i} for i in range(40)], columns=indexed)
    right = lines(tmp_path / "right", [{"id": f"é{i}", "b": i} for i in range(39, -1, -3)], columns=indexed)
    assert [(s["a"], s["b"]) for s in left.join(right, on="id")] == [(i, i) for i in range(0, 40, 3)]


def test_a_changed_column_is_matched_again(tmp_path: Path) -> None:
    left = lines(tmp_path / "left", [{"id": i, "a": i} for i in range(4)])
    for shift in (1, 2):
        right = lines(tmp_path / f"right{shift}" / "same.jsonl", [{"id": i + shift, "b": i} for i in range(4)])
        assert [s["b"] - s["a"] for s in left.join(right, on="id")] == [-shift] * (4 - shift)


def test_requests_that_cannot_be_served(sides: Path, tmp_path: Path) -> None:
    left: Any = shoal.open(sides / "left")
    right = shoal.open(sides / "right-equal")
    refused: list[tuple[Any, str]] = [
        (lambda: left.join({"k": 1}), r"takes a dataset; got .* of type dict"),
        (lambda: left.join(right, how="outer"), "inner"),
        (lambda: left.join(right, on=3), "pair of names"),
        (lambda: left.join(right, on="nothing"), "nothing"),
        (lambda: left.join(right, doubles="last"), "refuse"),
        (lambda: left.join(right, missing={"caption": b""}), "leaves out"),
        (lambda: left.join(right, how="left", missing="none"), "values by field"),
        (lambda: left.decode().join(right), "called after decode"),
        (lambda: left.batch(4).join(right), "called after batch"),
        (lambda: left.shuffle().join(right), "after shuffle"),
        (lambda: left.join(right.shuffle()), r"has shuffle\(\)"),
        (lambda: left.join(right.batch(2)), r"has batch\(\)"),
        (lambda: left.join(right.filter(len)), r"has filter\(\)"),
        (lambda: left.join(right.flat_map(list, most=2)), r"has flat_map\(\)"),
        (lambda: shoal.mix({"a": left}).join(right), "mixture"),
        (lambda: left.join(shoal.mix({"a": right})), "but this is a mixture of a"),
        (lambda: left.join(right.to_tuple("caption"))[0], "a tuple"),
    ]
    for call, words in refused:
        with pytest.raises(UsageError, match=words) as error:
            call()
        assert error.value.hint or "must be one of" in error.value.message
    other = lines(tmp_path / "lines", [{"id": 1}])
    with pytest.raises(UsageError, match=r"the joined side cannot be matched by '__key__': .* no '__key__'") as error:
        left.join(other)
    assert error.value.hint.startswith('they have id; on=("__key__", ')
    for name in ("image", "id"):  # neither side has it, or the joined side alone
        with pytest.raises(UsageError, match=rf"the left side cannot be matched by '{name}': .* no '{name}'") as error:
            left.join(other, on=name)
        assert "they have __key__, txt" in error.value.hint
    some = lines(tmp_path / "some", [{"id": 1}, {"x": 1}])
    with pytest.raises(UsageError, match="no field 'id'"):
        left.join(some, on=("__key__", "id"))


def test_a_left_join_may_follow_shuffle(sides: Path) -> None:
    left, right = shoal.open(sides / "left").shuffle(seed=4), shoal.open(sides / "right-shuffled")
    assert [s["__key__"] for s in left.join(right, how="left")] == [s["__key__"] for s in left]


def test_a_joined_dataset_goes_to_other_processes(sides: Path) -> None:
    ds = joined(sides / "left", sides / "right-shuffled").shuffle(seed=1)
    assert len(pickle.dumps(ds.stream.opened.companions[0].kept)) < 300, "the path of a file"
    again = pickle.loads(pickle.dumps(ds))
    assert list(again) == list(ds)


def test_a_joined_dataset_without_its_alignment_says_how_to_make_it_again(sides: Path) -> None:
    """On another machine, or after the cache directory was emptied."""
    ds = joined(sides / "left", sides / "right-shuffled").shuffle(seed=1)
    pickled = pickle.dumps(ds)
    Path(ds.stream.opened.companions[0].kept.path).unlink()
    with pytest.raises(StorageError) as error:
        pickle.loads(pickled)
    assert "call join() in this process" in error.value.hint


@pytest.mark.parametrize("order", ["equal", "shuffled"])
def test_worker_processes_map_the_alignment(sides: Path, order: str) -> None:
    pytest.importorskip("torch")
    ds = joined(sides / "left", sides / f"right-{order}", how="left").shuffle(seed=0).batch(16)
    loader = shoal.torch.DataLoader(ds, num_workers=2)
    iterator = iter(loader)
    keys = [next(iterator)["__key__"] for _ in range(5)]
    state = loader.state_dict()
    iterator.close()
    alone = shoal.open(sides / "left").shuffle(seed=0).batch(16)
    expected = [batch["__key__"] for batch in alone]
    assert keys == expected[:5]
    ds.load_state_dict(state)
    rest = list(ds)
    assert [batch["__key__"] for batch in rest] == expected[5:]
    for batch in rest:
        check_batch(batch, set(range(NUM_LEFT)))


def test_a_damaged_partner_is_skipped_with_its_sample(sides: Path, tmp_path: Path) -> None:
    write_right(tmp_path / "right", "shuffled")
    ds = joined(sides / "left", tmp_path / "right", how="left")
    shard = min((tmp_path / "right").glob("*.tar"))
    whole = bytearray(shard.read_bytes())
    place = whole.find(b"caption 77 ")
    header = place - 512
    whole[header : header + 60] = b"\xff" * 60
    stat = shard.stat()
    shard.write_bytes(whole)
    os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    lossy = ds.reading(on_error="skip")
    keys = [s["__key__"] for s in lossy]
    assert "k077" not in keys
    assert len(keys) == NUM_LEFT - 1
    assert lossy.stats()["num_skipped"] == 1
    assert lossy.stats()["skipped_ids"] == [77]


@pytest.mark.parametrize("order", ["equal", "rotated", "shuffled"])
def test_views_are_of_the_left_side_alone(sides: Path, order: str) -> None:
    ds = joined(sides / "left", sides / f"right-{order}").reading(copy=False)
    for sample in ds.shuffle(seed=0, window="40KiB", chunk="4KiB"):
        assert isinstance(sample["txt"], memoryview)
        check_joined({**sample, "txt": bytes(sample["txt"])}, set(range(NUM_LEFT)))


@pytest.mark.parametrize("order", ["equal", "rotated", "shuffled"])
@pytest.mark.parametrize("how", [{"memory_limit": "48KiB"}, {"verify": "always"}, {"hedge": True}])
def test_other_ways_of_reading_read_the_same(sides: Path, order: str, how: dict[str, Any]) -> None:
    ds = joined(sides / "left", sides / f"right-{order}").reading(**how).shuffle(seed=0, window="64KiB", chunk="8KiB")
    assert sorted(check_joined(sample, set(range(NUM_LEFT))) for sample in ds) == list(range(NUM_LEFT))
    if "memory_limit" in how:
        assert 0 < ds.stats()["peak_claimed_bytes"] <= 48 << 10


def test_equal_order_reads_each_byte_once(sides: Path) -> None:
    """The partners of a chunk are one read: as many reads as chunks on each side, and no byte twice."""
    ds = joined(sides / "left", sides / "right-equal").shuffle(seed=0, window="64KiB", chunk="8KiB")
    list(ds)
    left, right = (shoal.open(sides / name).stream.opened.index for name in ("left", "right-equal"))
    both = sum(int(index.sample_bytes.sum()) for index in (left, right) if index.sample_bytes is not None)
    stats = ds.stats()
    assert stats["read_bytes"] <= both * 1.05
    num_chunks = len(ds.resolved.chunks)
    assert stats["num_reads"] <= 2 * num_chunks + right.num_shards
    assert stats["num_rereads"] == 0


def test_a_remote_join_shares_requests_and_memory(sides: Path) -> None:
    """Both sides over HTTP: at most a request for each chunk of each side, no byte twice, and one count of memory."""
    how: Any = {"seed": 0, "window": "64KiB", "chunk": "8KiB"}
    with RangeServer(sides) as server:
        left, right = (shoal.open(f"{server.url}/{name}") for name in ("left", "right-equal"))
        alone = left.shuffle(**how)
        both = left.join(right).shuffle(**how)
        assert [s["__key__"] for s in alone] == [s["__key__"] for s in both]
    first, second = alone.stats(), both.stats()
    assert first["num_requests"] < second["num_requests"] <= 2 * len(both.resolved.chunks)
    indexes = [side.stream.opened.index for side in (left, right)]
    assert second["requested_bytes"] <= sum(index.num_bytes for index in indexes)
    assert second["peak_claimed_bytes"] <= 2 * first["peak_claimed_bytes"]


def test_memory_follows_the_window(sides: Path) -> None:
    """Both sides together hold their part of the data: no more than the window, and as much again for partners."""
    for order in ("equal", "shuffled"):
        ds = joined(sides / "left", sides / f"right-{order}").shuffle(seed=0, window="64KiB", chunk="8KiB")
        alone = shoal.open(sides / "left").shuffle(seed=0, window="64KiB", chunk="8KiB")
        list(ds), list(alone)
        limit = 2 * alone.stats()["peak_held_bytes"] if order == "equal" else alone.stats()["peak_held_bytes"] + 4096
        assert ds.stats()["peak_held_bytes"] <= limit
