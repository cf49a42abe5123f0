"""The verbs of a dataset, in the order in which users put them, and what it says when that cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.stream.made import batches_of, check_batch, check_sample, content, ids_of, repeats_of

from shoal.errors import NoSampleError, ShuffleWarning, UsageError
from shoal.orders import Block, Full, Window
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


def is_wrong(message: str, *, hint: str = "") -> Any:
    """An error that says this, and a remedy."""
    return pytest.raises(UsageError, match=f"(?s){message}.*{hint}")


# ---- choosing


def test_choices_compose_and_keep_storage_ids(tars: Dataset) -> None:
    assert tars.num_samples == 197
    assert tars.take(5).ids().tolist() == [0, 1, 2, 3, 4]
    assert tars.skip(190).ids().tolist() == list(range(190, 197))
    assert tars.take(10**9).num_samples == 197
    assert tars.skip(10).take(5).skip(1).ids().tolist() == [11, 12, 13, 14]
    assert tars.select([9, 3, 5]).ids().tolist() == [3, 5, 9]
    assert tars.skip(100).select([150, 120]).ids().tolist() == [120, 150]
    mask = np.arange(197) % 50 == 7
    assert tars.select(mask).ids().tolist() == [7, 57, 107, 157]
    assert tars.select(mask).select([False, True, True, False]).ids().tolist() == [57, 107]
    assert ids_of(tars.skip(100).select([150, 120]).with_ids()) == [120, 150]
    shuffled = tars.shuffle("full", seed=1)
    assert shuffled.take(7).ids().tolist() == shuffled.ids(stop=7).tolist()
    assert shuffled.skip(190).ids().tolist() == shuffled.ids(start=190).tolist()
    assert shuffled.skip(10).select([0, 5]).ids().tolist() == shuffled.ids()[[10, 15]].tolist()
    assert sorted(tars.skip(10).take(5).shuffle("full").ids().tolist()) == [10, 11, 12, 13, 14]
    assert shuffled.take(7).ids(epoch=1).tolist() == shuffled.ids(epoch=1, stop=7).tolist()


def test_columns_of_the_index_choose(tars: Dataset) -> None:
    sizes = tars.stream.opened.index.sample_bytes
    assert sizes is not None
    small = np.flatnonzero(sizes < sizes.mean())
    assert tars.select(sample_bytes=lambda column: column < sizes.mean()).ids().tolist() == small.tolist()
    left = tars.skip(50).select(sample_bytes=lambda column: column < sizes.mean())
    assert left.ids().tolist() == small[small >= 50].tolist()
    value = int(sizes[0])
    assert tars.select(sample_bytes=value).ids().tolist() == np.flatnonzero(sizes == value).tolist()
    with is_wrong("no column 'label'; it has 'sample_bytes'"):
        tars.select(label=3)
    with is_wrong("only positions", hint="before shuffle"):
        tars.shuffle().select(sample_bytes=3)
    with is_wrong("boolean for each of 197"):
        tars.select(sample_bytes=lambda column: 3)


def test_few_chosen_samples_are_read_one_by_one(tars: Dataset) -> None:
    few = tars.select([3, 90, 150, 196]).shuffle(seed=1)
    assert sorted(ids_of(few)) == [3, 90, 150, 196]
    sizes = tars.stream.opened.index.sample_bytes
    assert sizes is not None
    assert few.stats()["read_bytes"] == sizes[[3, 90, 150, 196]].sum()


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        (lambda ds: ds.take(0), r"take\(\) leaves none of 197"),
        (lambda ds: ds.skip(197), r"skip\(\) leaves none"),
        (lambda ds: ds.select([]), "leaves none"),
        (lambda ds: ds.select([197]), r"\[0, 197\); got 197"),
        (lambda ds: ds.select([-1]), r"\[0, 197\); got -1"),
        (lambda ds: ds.select([3, 3]), "3 was given more than once"),
        (lambda ds: ds.select([0.5]), "integers or a mask"),
        (lambda ds: ds.select([True, False]), "a boolean for each of 197"),
        (lambda ds: ds.select(), "samples, or columns"),
        (lambda ds: ds.take(-1), "at least 0; got -1"),
        (lambda ds: ds.take(2.5), "integer; got 2.5"),
        (lambda ds: ds.skip(3).select([2]), "sample 2 is not among the 194"),
        (lambda ds: ds.batch(3).take(4), r"take\(\) works on samples.*before batch"),
        (lambda ds: ds.batch(3).filter(bool), r"filter\(\) works on samples.*before batch"),
        (lambda ds: ds.batch(3).shuffle(), r"shuffle\(\) works on samples"),
        (lambda ds: ds.batch(3).batch(3), r"batch\(\) works on samples"),
        (lambda ds: ds.filter(bool).take(4), r"before any filter.*put take\(\) before"),
        (lambda ds: ds.shuffle().filter(bool).select([4]), "before any filter"),
        (lambda ds: ds.shuffle().shuffle(), "shuffled already"),
        (lambda ds: ds.shuffle(42), r"shuffle\(42\).*hint: shuffle\(seed=42\)"),
        (lambda ds: ds.shuffle("random"), "no order 'random'; there are 'none'.*'window'"),
        (lambda ds: ds.shuffle(3.5), "an order is a name or an object"),
        (lambda ds: ds.shuffle(seed=-1), "seed"),
        (lambda ds: ds.shuffle(seed=2**64), "seed"),
        (lambda ds: ds.shuffle(window="much"), "window must be a number of bytes; got 'much'.*16MiB"),
        (lambda ds: ds.shuffle(window=0), "window must be"),
        (lambda ds: ds.shuffle("full", window="1GiB"), "'full' has no argument 'window'"),
        (lambda ds: ds.shuffle(Window(chunks=4), num_canonical_nodes=2), "nodes= cannot be added to a complete order"),
        (lambda ds: ds.batch(), "size for each rank, or global_batch_size"),
        (lambda ds: ds.batch(3, global_batch_size=6), "size for each rank, or global_batch_size"),
        (lambda ds: ds.batch(0), "at least one sample"),
        (lambda ds: ds.batch("3"), "integer; got '3'"),
        (lambda ds: ds.batch(3, remainder="repeat"), "'keep', 'pad', 'drop'; got 'repeat'"),
        (lambda ds: ds.partition(rank=2, world_size=2), "0 to world_size - 1 = 1; got rank=2"),
        (lambda ds: ds.partition(rank=-1, world_size=2), "got rank=-1"),
        (lambda ds: ds.partition(rank=0, world_size=0), "world_size must be at least 1"),
        (
            lambda ds: len(ds.batch(global_batch_size=2).partition(rank=0, world_size=3)),
            "2 has no sample for each of 3",
        ),
        (lambda ds: ds.batch(10).batch_ids(20), "there is no step 20: an epoch has steps 0 to 19"),
        (lambda ds: ds.batch(10).batch_ids(-1), "at least 0; got -1"),
        (lambda ds: ds.batch(10).batch_ids(0.5), "integer; got 0.5"),
        (lambda ds: ds.ids(start=5, stop=198), r"\[5, 198\).*\[0, 197\)"),
        (lambda ds: ds.ids(epoch=-1), "at least 0; got -1"),
        (lambda ds: ds.decode("jpeg2000"), "no decoder named 'jpeg2000'"),
    ],
)
def test_what_cannot_be_is_said_with_a_remedy(choose: Any, message: str, tars: Dataset) -> None:
    with is_wrong(message):
        choose(tars)


def test_a_window_smaller_than_two_chunks_names_one_that_would_do(tars: Dataset) -> None:
    with is_wrong("needs at least 2.*hint: window=") as caught:
        list(tars.shuffle(window=9000))
    named = int(caught.value.hint.partition("window=")[2].split()[0])
    assert len(list(tars.shuffle(window=named))) == 197


def test_a_window_too_small_for_the_batch_warns(tars: Dataset) -> None:
    ds = tars.shuffle(Window(chunks=4, num_canonical_nodes=1), chunk="6KiB").batch(64)
    with pytest.warns(ShuffleWarning, match=r"(?s)window of 4 chunks is small for global batches of 64.*window="):
        iter(ds).close()


# ---- one sample, and how many


def test_a_sample_by_id(tars: Dataset, lines: Dataset) -> None:
    for number in (0, 29, 30, 31, 196):
        assert check_sample(tars[number]) == number
        assert check_sample(tars.shuffle(seed=3).take(5)[number]) == number
    assert check_sample(tars[-1]) == 196
    assert check_sample(tars[np.int64(-197)]) == 0
    assert check_sample(lines[82]) == 82
    for number in (197, -198, 10**12):
        with pytest.raises(IndexError, match="ids 0 to 196"):
            tars[number]
    with pytest.raises(NoSampleError):
        tars[197]
    for wrong in ("3", slice(3), 1.0, None):
        with pytest.raises(UsageError, match="one sample id"):
            tars[wrong]  # type: ignore[index]
    staged = tars.with_ids().filter(lambda sample: False).map(lambda sample: sample["__id__"] * 2).batch(5)
    assert staged[21] == 42


def test_length_on_every_rank(tars: Dataset) -> None:
    assert len(tars) == 197
    assert [len(tars.partition(rank=rank, world_size=4)) for rank in range(4)] == [50, 49, 49, 49]
    assert len(tars.batch(10)) == 20
    assert len(tars.batch(10, remainder="drop")) == 19
    assert [len(tars.batch(10).partition(rank=rank, world_size=4)) for rank in range(4)] == [5] * 4
    assert [len(tars.filter(bool).batch(10, remainder="pad").partition(rank=r, world_size=4)) for r in range(4)] == [
        5
    ] * 4


def test_the_environment_says_the_rank_and_partition_overrides_it(
    tars: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    ds = tars.shuffle("full").batch(5)
    assert batches_of(ds)[0] == ds.batch_ids(0, rank=3, world_size=4).tolist() == ds.batch_ids(0).tolist()
    assert len(ds) == 10
    assert len(ds.partition(rank=0, world_size=1)) == 40
    monkeypatch.setenv("RANK", "4")
    with is_wrong("0 to world_size - 1 = 3; got rank=4"):
        len(ds)


# ---- stages


def test_stages_run_in_their_order(tars: Dataset) -> None:
    ds = tars.map(lambda sample: {**sample, "n": 1}).with_ids().map(lambda sample: {**sample, "n": sample["n"] * 5})
    assert next(iter(ds.columns("n", "__id__"))) == {"n": 5, "__id__": 0}
    assert next(iter(ds.to_tuple("missing;n", "__id__"))) == (5, 0)
    batch = next(iter(ds.rename(number="n", bytes="bin").columns("number", "bytes").batch(3)))
    assert batch["number"].tolist() == [5, 5, 5]
    assert batch["bytes"] == [content(0), content(1), content(2)]
    sizes = [len(batch) for batch in tars.map(lambda sample: sample["bin"]).batch(100).map(lambda batch: batch[:9])]
    assert sizes == [9, 9]


def test_decode_goes_by_suffix(tars: Dataset) -> None:
    sample = tars.decode()[41]
    assert sample["cls"] == 41
    assert sample["bin"] == content(41)
    assert tars.decode({"bin": len, "cls": bytes.decode})[41]["bin"] == len(content(41))
    batch = next(iter(tars.decode().batch(4)))
    assert batch["cls"].tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="invalid literal") as caught:
        next(iter(tars.decode({"bin": int})))
    notes = " ".join(caught.value.__notes__)
    assert "field 'bin'" in notes
    assert "sample with id 0" in notes


def test_batches_of_tuples_and_other_things_can_hold_repeats(tars: Dataset) -> None:
    """What is no dict has no place for the mark; the counts have it."""
    ds = tars.to_tuple("cls", "bin").batch(100, remainder="pad")
    batches = list(ds)
    assert [len(batch[0]) for batch in batches] == [100, 100]
    assert ds.stats()["num_repeats"] == 3
    marked = list(tars.batch(100, remainder="pad"))
    assert sum(repeats_of(marked[1])) == 3
    assert "__pad__" not in marked[0]
    again = [number for number, mark in zip(check_batch(marked[1]), repeats_of(marked[1]), strict=True) if mark]
    assert again == [97, 98, 99]


# ---- what it says of itself


@pytest.mark.parametrize("order", ["none", "full", "window", "block", "buffer", Block(chunks=7), Window(chunks=8)])
def test_resolved_is_a_call_that_can_be_pasted(order: Any, tars: Dataset) -> None:
    import shoal

    for ds in (tars.shuffle(order, seed=5), tars.shuffle(order, seed=5, chunk="9000")):
        pasted: Dataset = eval(f"tars.{ds.resolved}", {"tars": tars, "shoal": shoal})
        assert pasted.ids().tolist() == ds.ids().tolist()
        assert str(pasted.resolved) == str(ds.resolved) == repr(ds.resolved)  # what a prompt shows, too
        pasted.load_state_dict(ds.state_dict())
    assert str(tars.shuffle(seed=5, window="180KiB").resolved).startswith("shuffle(shoal.orders.Window(chunks=")


def test_a_class_is_no_order(tars: Dataset) -> None:
    with pytest.raises(UsageError, match="got a class") as caught:
        tars.shuffle(Full, seed=2)  # type: ignore[arg-type]
    assert "shoal.orders.Full(" in caught.value.hint


def test_stats_count(tars: Dataset) -> None:
    ds = tars.shuffle(Window(chunks=6, num_canonical_nodes=1), chunk="6KiB", seed=1).batch(10)
    list(ds)
    stats = ds.stats()
    index = tars.stream.opened.index
    assert stats["num_batches"] == 20
    assert stats["num_samples"] == 197
    assert stats["num_repeats"] == stats["num_filtered"] == stats["num_rereads"] == 0
    assert stats["read_bytes"] == int((index.extent_end_byte - index.extent_first_byte).sum())
    assert stats["num_reads"] == len(ds.resolved.chunks)
    assert 0 < stats["peak_held_bytes"] <= stats["read_bytes"]
    list(ds)
    assert ds.stats()["num_batches"] == 40
    assert ds.stats()["num_reads"] == 2 * stats["num_reads"]
    assert ds.map(len).stats()["num_reads"] == 0


def test_integers_of_numpy_are_as_good_as_those_of_python(tars: Dataset) -> None:
    """As configurations and loops have them; a state of them is JSON all the same."""
    number: Any = np.int64
    ds = tars.shuffle(Window(chunks=number(4), num_canonical_nodes=number(2)), seed=number(3)).batch(number(6))
    ds.set_epoch(number(2))
    plain = tars.shuffle(Window(chunks=4, num_canonical_nodes=2), seed=3).batch(6)
    assert json.loads(json.dumps(ds.state_dict())) == plain.state_at(0, epoch=2)
    here = ds.batch_ids(number(1), epoch=number(2), rank=number(1), world_size=number(3))
    assert here.tolist() == plain.batch_ids(1, epoch=2, rank=1, world_size=3).tolist()
    in_bytes = [tars.shuffle(window=size, num_canonical_nodes=number(1)) for size in (number(180_000), 180_000)]
    assert json.dumps(in_bytes[0].state_dict()) == json.dumps(in_bytes[1].state_dict())


@pytest.mark.parametrize("columnar", [False, True])
def test_a_field_that_looks_like_marks_of_repeats_is_refused(columnar: bool, tmp_path: Path) -> None:
    """It would be taken for marks, and replaced by them where there are some."""
    import shoal

    path = tmp_path / ("a.csv" if columnar else "a.jsonl")
    lines = ["number,__pad__", *(f"{i},{i}" for i in range(5))]
    if not columnar:
        lines = [json.dumps({"number": i, "__pad__": i}) for i in range(5)]
    path.write_text("".join(f"{line}\n" for line in lines))
    ds = shoal.open(path)
    with is_wrong("field '__pad__'.*mark their repeats.*", hint="rename"):
        next(iter(ds.batch(2)))
    *_, last = ds.rename(padding="__pad__").batch(2, remainder="pad")
    assert last["__pad__"].tolist() == [True, False]
    assert [int(value) for value in last["padding"]] == [3, 4]
