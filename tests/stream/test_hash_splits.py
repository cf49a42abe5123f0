"""Splits share no group, are the same everywhere and for ever, and are datasets like any other."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.samples import write_jsonl, write_tar, write_tar_shards
from tests.stream.made import flat, repeats_of

import shoal
from shoal.errors import ShardError, UsageError
from shoal.formats.rows.tar.reader import Tar
from shoal.index.assembly import ScannedShard, assemble
from shoal.index.shard_scan import ShardScan
from shoal.indexing.opened_dataset import Opened
from shoal.order.seeds import key
from shoal.pack import Writer
from shoal.storage.memory_store import MemoryStore
from shoal.stream.choosing.sample_groups import hashed_values
from shoal.stream.dataset import Dataset
from shoal.stream.dataset_spec import DatasetSpec

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

THREE = {"train": 0.8, "val": 0.1, "test": 0.1}
NAMES = st.text(st.characters(codec=None), max_size=30)  # lone surrogates, too
WHOLE = st.integers(-(2**63), 2**64 - 1) | st.sampled_from([-1, 2**64 - 1, -(2**63), 2**63, 2**63 - 1])


def made(
    shards: Mapping[str, int],
    columns: Mapping[str, Any] | None = None,
    texts: Mapping[str, Sequence[str]] | None = None,
) -> Dataset:
    """A dataset without bytes: so many samples in shards of these names, and columns of its index."""
    scans = [
        ScannedShard(
            name,
            512 * count,
            "",
            ShardScan(np.arange(count + 1) * 512, np.zeros(count, dtype=np.uint32)),
        )
        for name, count in shards.items()
    ]
    index = assemble("tar", scans, extent_bytes=1500, metadata={"texts": dict(texts or {})})
    index = replace(index, columns={name: np.asarray(values) for name, values in (columns or {}).items()})
    nothing = cast("Any", None)
    return Dataset(DatasetSpec.of(Opened(nothing, index, tuple(shards), Tar(), None, nothing)))


def of_texts(groups: Sequence[str], **shards: int) -> Dataset:
    """A dataset with a text for each sample in the column ``who``, coded as an index codes texts."""
    words = sorted(set(groups))
    codes = np.array([words.index(group) for group in groups], dtype=np.int32)
    return made(shards or {"a": len(groups)}, {"who": codes}, {"who": words})


def splits_of(ds: Dataset, fractions: Mapping[str, Any], **options: Any) -> dict[int, str]:
    """The split of each sample by id; checks that none is in two."""
    parts = {name: part.ids().tolist() for name, part in ds.split(fractions, **options).items()}
    assert list(parts) == list(fractions)
    found = {number: name for name, ids in parts.items() for number in ids}
    assert len(found) == sum(map(len, parts.values()))
    return found


def split_of_group(group: str | int, fractions: Mapping[str, float], seed: int = 0) -> str | None:
    """The definition, with integers of Python; None for no split."""
    data = str(group).encode("utf-8", "surrogatepass")
    words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)] + [len(data)]
    kind = "text group"
    try:
        number = int(group)
    except ValueError:
        number = -(2**70)
    if str(number) == str(group) and -(2**63) <= number < 2**64:
        words, kind = [number % 2**64], "number group" if number < 2**63 else "large number group"
    point = key(seed, 0, "split", key(0, 0, kind, *words))
    *before, last = sorted(fractions)
    start = Fraction(0)
    for name in before or [last]:
        start += Fraction(str(fractions[name]))
        if point < int(start * 2**64):
            return name
    if before and point >= int((1 - Fraction(str(fractions[last]))) * 2**64):
        return last
    return None


def some_fractions(weights: Sequence[int], total: int) -> dict[str, float]:
    """Fractions of two decimals, of names that are not in alphabetical order."""
    return {"dcba"[number]: weight / total for number, weight in enumerate(weights)}


GROUPS = st.lists(NAMES | WHOLE.map(str), min_size=1, max_size=30)
FRACTIONS = st.lists(st.integers(1, 25), min_size=1, max_size=4).map(lambda weights: some_fractions(weights, 100))


def chosen(ds: Dataset, fractions: Mapping[str, float], **options: Any) -> dict[int, str]:
    """As `splits_of`, where a split that gets no sample is no error."""
    try:
        return splits_of(ds, fractions, **options)
    except UsageError as error:
        if "gets none" not in str(error):
            raise
        return {}


@given(groups=GROUPS, fractions=FRACTIONS, seed=st.integers(0, 2**64 - 1), data=st.data())
def test_the_split_of_a_sample_is_that_of_its_group(
    groups: list[str], fractions: dict[str, float], seed: int, data: st.DataObject
) -> None:
    each = data.draw(st.lists(st.sampled_from(groups), min_size=1, max_size=60))
    cut = data.draw(st.integers(0, len(each)))
    ds = of_texts(each, a=cut, b=len(each) - cut)
    expected = {i: split_of_group(group, fractions, seed) for i, group in enumerate(each)}
    expected = {i: name for i, name in expected.items() if name is not None}
    if set(expected.values()) < set(fractions):
        with pytest.raises(UsageError, match="gets none of"):
            ds.split(fractions, by="who", seed=seed)
    else:
        assert splits_of(ds, fractions, by="who", seed=seed) == expected
        assert splits_of(ds, fractions, by=each, seed=seed) == expected


@given(numbers=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40), seed=st.integers(0, 5))
def test_a_whole_number_is_the_group_of_the_text_that_writes_it(numbers: list[int], seed: int) -> None:
    both = {"a": 0.5, "b": 0.5}
    by_number = chosen(made({"s": len(numbers)}, {"n": np.array(numbers)}), both, by="n", seed=seed)
    assert by_number == chosen(of_texts([str(n) for n in numbers]), both, by="who", seed=seed)
    small = [n % 1000 - 500 for n in numbers]
    kinds = (np.int16, np.int64, np.float32, np.float64)
    as_kinds = [chosen(made({"s": len(small)}, {"n": np.array(small, dtype=kind)}), both, by="n") for kind in kinds]
    assert all(found == as_kinds[0] for found in as_kinds)


def test_numbers_with_equal_bits_are_told_apart() -> None:
    both = {"a": 0.5, "b": 0.5}
    for one, other in (("-1", "18446744073709551615"), ("0", ""), ("4602678819172646912", 0.5)):
        assert len(np.unique(hashed_values([one, other]))) == 2
    unsigned = np.array([2**64 - 1, 2**63, 2**63 - 1, *range(40)], dtype=np.uint64)
    assert splits_of(made({"s": 43}, {"n": unsigned}), both, by="n") == splits_of(
        of_texts([str(number) for number in unsigned.tolist()]), both, by="who"
    )


def test_other_numbers_are_told_apart_and_missing_ones_are_one_group() -> None:
    numbers = np.array([0.25, 0.5, -0.0, 0.0, np.nan, -np.nan, np.inf, -np.inf, 1e300] * 2)
    numbers = np.concatenate([numbers, np.arange(2000) / 7])
    found = splits_of(made({"s": len(numbers)}, {"x": numbers}), {"a": 0.5, "b": 0.5}, by="x")
    assert all(found[i] == found[i + 9] for i in range(9))
    assert found[2] == found[3]
    assert found[4] == found[5]
    assert abs(sum(found[i] == "a" for i in range(18, len(numbers))) / 2000 - 0.5) < 5 * 0.5 / 2000**0.5


@given(groups=GROUPS, more=GROUPS, seed=st.integers(0, 5))
def test_a_group_never_moves(groups: list[str], more: list[str], seed: int) -> None:
    """Samples and shards are added, and texts get other numbers: what there was stays where it was."""
    fractions = {"a": 0.4, "b": 0.4}
    before = chosen(of_texts(groups), fractions, by="who", seed=seed)
    after = chosen(
        of_texts(groups + more + groups[::-1], a=len(groups), b=len(more), c=len(groups)),
        fractions,
        by="who",
        seed=seed,
    )
    if before and after:
        assert {i: name for i, name in after.items() if i < len(groups)} == before
        last = len(groups) + len(more) + len(groups) - 1
        assert {last - i: name for i, name in after.items() if i >= len(groups) + len(more)} == before


@given(counts=st.lists(st.integers(0, 20), min_size=1, max_size=6), data=st.data())
def test_single_samples_stay_where_they_are_if_shards_come_and_grow(counts: list[int], data: st.DataObject) -> None:
    both = {"a": 0.5, "b": 0.5}
    here = {f"dir/s-{number}.tar": count for number, count in enumerate(counts)}
    grown = {f"elsewhere/s-{number}.tar": count + data.draw(st.integers(0, 5)) for number, count in enumerate(counts)}
    grown = {"elsewhere/a-new-one.tar": 7} | dict(data.draw(st.permutations(sorted(grown.items()))))

    def places(shards: Mapping[str, int]) -> dict[tuple[str, int], str]:
        where = [(name.rpartition("/")[2], i) for name, count in shards.items() for i in range(count)]
        return {where[number]: split for number, split in chosen(made(shards), both).items()}

    before, after = places(here), places(grown)
    if before and after:
        assert {place: after[place] for place in before} == before


@given(seed=st.integers(0, 2**64 - 1), data=st.data())
def test_fractions_only_move_borders(seed: int, data: st.DataObject) -> None:
    ds = made({"s": 400}, {"n": np.arange(400)})
    shares = [data.draw(st.integers(10, 40)) for _ in range(4)]
    small, large = sorted(shares[:2])
    steps = [{"train": share / 100, "val": 0.2, "test": 0.2} for share in (small, large)]
    less, more = (splits_of(ds, fractions, by="n", seed=seed) for fractions in steps)
    assert less.items() <= more.items(), "train grows out of what is in no split, and the others stay"
    small, large = sorted(shares[2:])
    steps = [{"val": share / 100, "train": (80 - share) / 100, "test": 0.2} for share in (small, large)]
    less, more = (splits_of(ds, fractions, by="n", seed=seed) for fractions in steps)
    assert {(less[i], more[i]) for i in range(400) if less[i] != more[i]} <= {("train", "val")}
    assert splits_of(ds, dict(reversed(steps[0].items())), by="n", seed=seed) == less, "listed in another order"


def test_shares_are_as_close_as_chance_allows_and_seeds_are_unrelated() -> None:
    number = 40_000
    ds = made({"s": number}, {"n": np.arange(number)})
    inside = []
    for seed in range(6):
        found = splits_of(ds, THREE, by="n", seed=seed)
        for name, share in THREE.items():
            count = sum(split == name for split in found.values())
            assert abs(count - share * number) < 4.5 * math.sqrt(share * (1 - share) * number)
        inside.append([found[i] == "train" for i in range(number)])
    apart = np.corrcoef(np.array(inside, dtype=float)) - np.eye(len(inside))
    assert np.abs(apart).max() < 5 / math.sqrt(number)
    neighbours = np.array(inside[0], dtype=float) - 0.8
    assert all(abs((neighbours[lag:] * neighbours[:-lag]).mean() / 0.16) < 5 / math.sqrt(number) for lag in range(1, 9))


@pytest.mark.golden
def _third(number: int) -> int:
    return number // 3


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "b806e2d0c9b9"),
        ({"by": "shard"}, "f13ff28c7277"),
        ({"by": "text"}, "113f506ceee7"),
        ({"by": "whole"}, "fb76587d8eee"),
        ({"by": "real"}, "e4bbfcfe6165"),
        ({"by": "whole", "seed": 2**64 - 1}, "2b317335f91c"),
        ({"by": "whole", "group": _third}, "c332e00958dd"),
    ],
    ids=["each sample", "shard", "text", "whole number", "real number", "largest seed", "function"],
)
def test_splits_are_fixed_for_ever(options: dict[str, Any], expected: str) -> None:
    number = np.arange(3000)
    words = sorted(f"{'speaker-' * (i % 5)}{i}/ä" for i in range(700))
    columns = {"text": number % 700, "whole": number * 7919 - 9_000_000, "real": number / 8}
    ds = made({f"data/train-{i:02}.tar": 30 for i in range(100)}, columns, {"text": words})
    found = splits_of(ds, THREE, **options)
    text = "".join(found[i][1] for i in range(3000))
    assert hashlib.blake2b(text.encode(), digest_size=6).hexdigest() == expected


def test_fractions_that_make_one_leave_nothing_out_and_others_do() -> None:
    ds = made({"s": 3000})
    third, half = 1 / 3, np.float32(0.5)
    many: list[dict[str, Any]] = [{"a": 1}, {"a": 0.7, "b": 0.2, "c": 0.1}, {"a": third, "b": third, "c": third}]
    for fractions in [*many, {"a": half, "b": Fraction(1, 2)}]:
        assert len(splits_of(ds, fractions)) == 3000
    found = splits_of(ds, {"a": 0.25, "b": 0.25})
    assert abs(len(found) - 1500) < 5 * math.sqrt(750)


def test_a_part_of_a_dataset_is_split_as_the_whole() -> None:
    groups = [f"g{i // 3}" for i in range(300)]
    ds = of_texts(groups)
    whole = splits_of(ds, THREE, by="who")
    for part in (ds.select(np.arange(300) % 3 != 1), ds.skip(40).take(200).map(str)):
        found = splits_of(part, THREE, by="who")
        assert found == {i: whole[i] for i in part.ids().tolist()}
    again = ds.split(THREE, by="who")["train"].split({"x": 0.5, "y": 0.5}, by="who", seed=1)
    assert len(again["x"].ids()) + len(again["y"].ids()) == sum(name == "train" for name in whole.values())


@given(groups=GROUPS, out=st.sets(st.sampled_from(["", "x", "007", "7", "-1"])), data=st.data())
def test_excluded_groups_are_in_no_split_and_move_no_other(
    groups: list[str], out: set[str], data: st.DataObject
) -> None:
    groups = [*groups, *out, "left", *(f"other {i}" for i in range(20))]
    out |= {group for group in groups[:-21] if data.draw(st.booleans())}
    ds, both = of_texts(groups), {"a": 0.5, "b": 0.5}
    expected = {i: name for i, name in splits_of(ds, both, by="who").items() if groups[i] not in out}
    elsewhere = of_texts([*sorted(out), "never seen"])
    for exclude in (out, [*out, *out], np.array(sorted(out), dtype=object), elsewhere):
        if set(expected.values()) == {"a", "b"}:
            assert splits_of(ds, both, by="who", exclude=exclude) == expected
    taken: Any = of_texts(["left", *sorted(out)]).skip(1) if out else []
    if set(expected.values()) == {"a", "b"}:
        assert splits_of(ds, both, by="who", exclude=taken) == expected, "of a dataset, what is selected counts"


def test_numbers_and_ids_are_excluded_too() -> None:
    both = {"a": 0.5, "b": 0.5}
    ds = made({"s": 100}, {"n": np.arange(100) // 5})
    assert sorted(splits_of(ds, both, by="n", exclude=3)) == [i for i in range(100) if i // 5 != 3]
    assert sorted(splits_of(ds, both, by="n", exclude=["3", 4.0, np.int8(5)])) == [*range(15), *range(30, 100)]
    by_ten = splits_of(ds, both, by="n", group=lambda n: n // 2, exclude=[1])
    assert sorted(by_ten) == [*range(10), *range(20, 100)], "excluded are groups, not the values that they are made of"
    many = made({"s": 70_000}, {"n": np.arange(70_000)})
    assert sorted(splits_of(many, both, by="n", exclude=range(0, 70_000, 7))) == [i for i in range(70_000) if i % 7]
    whole = splits_of(ds, both)
    assert splits_of(ds, both, exclude=[3, 5, 5]) == {i: name for i, name in whole.items() if i not in (3, 5)}
    assert splits_of(ds, both, exclude=ds.take(30)) == {i: name for i, name in whole.items() if i >= 30}
    assert splits_of(ds, both, exclude=()) == whole
    for wrong in ([100], [-1], "s"):
        with pytest.raises(UsageError, match="samples are chosen"):
            ds.split(both, exclude=wrong)


def test_shards_are_known_by_their_file() -> None:
    shards = {f"x/s-{i:03}.tar": 3 for i in range(60)}
    found = splits_of(made(shards), {"a": 0.5, "b": 0.5}, by="shard", exclude=["s-007.tar"])
    expected = {i: split_of_group(f"s-{i // 3:03}.tar", {"a": 0.5, "b": 0.5}) for i in range(180)}
    assert found == {i: name for i, name in expected.items() if i // 3 != 7}


@pytest.fixture
def tars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """8 shards of 5 videos of 4 clips each, shorter ones behind empty shards."""
    for shard in range(8):
        samples = [
            {"__key__": f"v{shard}{video}_{clip}".encode(), "txt": b"x" * clip, "cls": b"1"}
            for video in range(5)
            for clip in range(4)
        ]
        write_tar(tmp_path / f"clips-{shard}.tar", [] if shard == 3 else samples)
    return tmp_path


def test_keys_are_read_from_the_headers_of_tars(tars: Path) -> None:
    ds, both = shoal.open(tars), {"train": 0.6, "val": 0.4}
    keys = [sample["__key__"] for sample in ds]
    assert splits_of(ds, both, by="__key__") == splits_of(ds, both, by=keys)
    videos = splits_of(ds, both, by="__key__", group=lambda key: key.partition("_")[0])
    assert videos == splits_of(ds, both, by=[key.partition("_")[0] for key in keys])
    parts = ds.split(both, by="__key__", group=lambda key: key.partition("_")[0], exclude=["v00"])
    found = {name: {sample["__key__"].partition("_")[0] for sample in part} for name, part in parts.items()}
    assert len(found["train"]) + len(found["val"]) == len(found["train"] | found["val"]) == 34


def test_keys_of_remote_tars_are_those_of_local_ones(tars: Path) -> None:
    store = MemoryStore()
    for path in tars.glob("*.tar"):
        store.put(f"memory://split/{path.name}", path.read_bytes())
    ds, both = shoal.open("memory://split/"), {"train": 0.6, "val": 0.4}
    assert splits_of(ds, both, by="__key__") == splits_of(shoal.open(tars), both, by="__key__")


def test_keys_of_a_folder_are_paths(tmp_path: Path) -> None:
    for number in range(60):
        path = tmp_path / "images" / f"p{number % 12}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if number == 5 else b"%d" % number)
    ds, both = shoal.open(tmp_path / "images", format="folder"), {"train": 0.6, "val": 0.4}
    keys = [sample["__key__"] for sample in ds]
    found = splits_of(ds, both, by="__key__", group=lambda key: key.split("/")[0])
    assert found == splits_of(ds, both, by=[key.split("/")[0] for key in keys])
    assert found == splits_of(ds, both, by="cls"), "classes are compared by name"
    assert len(found) == 59


def test_keys_that_are_in_no_header_are_refused_unless_a_column_has_them(tmp_path: Path) -> None:
    ds = shoal.open(write_jsonl(tmp_path / "docs.jsonl"))
    with pytest.raises(UsageError, match="the keys of jsonl samples are known only by reading") as caught:
        ds.split({"a": 0.5, "b": 0.5}, by="__key__")
    assert "index_columns=" in caught.value.hint
    with Writer(tmp_path / "packed", format="jsonl", columns=["__key__=id"]) as writer:
        for sample in ds:
            writer.write({"__key__": str(sample["id"]), **sample})
    packed = shoal.open(tmp_path / "packed")
    both = {"a": 0.5, "b": 0.5}
    assert splits_of(packed, both, by="__key__") == splits_of(packed, both, by=np.arange(200))


def test_a_shard_whose_headers_are_others_is_refused(tars: Path) -> None:
    ds = shoal.open(tars)
    opened = ds.stream.opened
    one = ScannedShard(
        "clips-0.tar", int(opened.index.shard_bytes[0]), "", ShardScan(np.array([0, 512]), np.zeros(1, dtype=np.uint32))
    )
    wrong = replace(opened, index=assemble("tar", [one]), paths=opened.paths[:1])
    with pytest.raises(ShardError, match="its headers have 20 samples, but the index has 1"):
        Dataset(DatasetSpec.of(wrong)).split({"a": 0.5, "b": 0.5}, by="__key__")


def test_a_function_makes_groups_of_values() -> None:
    both = {"a": 0.5, "b": 0.5}
    sites = [f"https://site{i % 40}.org/{i}" for i in range(400)]
    ds = made({"s": 400}, {"n": np.arange(400)})
    hosts = splits_of(of_texts(sites), both, by="who", group=lambda url: url.split("/")[2])
    assert hosts == splits_of(ds, both, by=[site.split("/")[2] for site in sites])
    tens = splits_of(ds, both, by="n", group=lambda number: number // 10)
    assert tens == splits_of(ds, both, by=np.arange(400) // 10)
    assert tens == splits_of(ds, both, by="n", group=lambda number: str(number // 10))
    assert tens == splits_of(ds, both, by="n", group=lambda number: number // 10 / 1)


def test_a_number_without_a_text_is_a_group_of_its_own() -> None:
    codes = np.array([0, 1, -1, 2, -1, 0] * 50)
    found = splits_of(made({"s": 300}, {"who": codes}, {"who": ["x", "y"]}), {"a": 0.5, "b": 0.5}, by="who")
    expected: dict[int, str | int] = {0: "x", 1: "y", 2: 2, -1: -1}
    assert found == {i: split_of_group(expected[code], {"a": 0.5, "b": 0.5}) for i, code in enumerate(codes.tolist())}


@pytest.mark.parametrize(
    ("make", "message", "hint"),
    [
        (lambda ds: ds.shuffle().split({"a": 1}), "after shuffle", "before shuffle"),
        (lambda ds: ds.sample(by="who", balanced=True).split({"a": 1}), "after sample", "before sample"),
        (lambda ds: ds.batch(2).split({"a": 1}), "after batch", "before batch"),
        (lambda ds: ds.filter(bool).split({"a": 1}), "after filter", "before filter"),
        (lambda ds: ds.split({"a": 1}, by="hwo"), "no column 'hwo'", "did you mean 'who'"),
        (lambda ds: ds.split({"a": 1}, by=str), "group= is a function of the value of by=", 'by="__key__"'),
        (lambda ds: ds.split({"a": 1}, group=str), "group= is a function of the value of by=", 'by="__key__"'),
        (
            lambda ds: ds.split({"a": 1}, by="who", group=lambda who: None),
            "a group is a text or a number; got None",
            "",
        ),
        (lambda ds: ds.split({"a": 1}, by="who", exclude=[b"x"]), "a group is a text or a number; got b'x'", ""),
        (lambda ds: ds.split({"a": 1}, by=[1, 2]), "for each of 30 samples by id; got int64 of shape", ""),
        (lambda ds: ds.split({"a": 1}, by=["x"] * 29), "for each of 30 samples", ""),
        (lambda ds: ds.split({"a": 1}, by=np.zeros((30, 2))), "for each of 30 samples", ""),
        (
            lambda ds: ds.split({"a": 1}, by=np.arange(30), exclude=ds),
            "exclude= is another dataset",
            "texts or numbers",
        ),
        (lambda ds: ds.split({}), "a fraction for each split by name", '"train"'),
        (lambda ds: ds.split([0.5, 0.5]), "a fraction for each split by name", '"train"'),
        (lambda ds: ds.split({1: 0.5}), "a fraction for each split by name", '"train"'),
        (lambda ds: ds.split({"a": 0.9, "b": 0.2}), "add up to 1.1, more than 1", ""),
        *[
            (lambda ds, value=value: ds.split({"a": 0.5, "b": value}), "'b' must have a fraction above 0", "")
            for value in (0, -0.1, 1.5, math.nan, math.inf, "0.5", None, True)
        ],
        (lambda ds: ds.split({str(i): 0.001 for i in range(255)}), "at most 254 splits", ""),
        (lambda ds: ds.split({"a": 0.999, "b": 0.001}, by="who"), "none of 30 samples in 10 groups", "larger fraction"),
        (lambda ds: ds.split({"a": 0.999, "b": 0.001}), "'b' gets none of 30 samples:", "another seed="),
        (lambda ds: ds.split({"a": 1}, by="who", exclude=ds), "'a' gets none", ""),
        (lambda ds: ds.split({"a": 1}, seed=-1), "seed must be", ""),
        (lambda _: made({"s": 0}).split({"a": 1}, by="shard"), "none of 0 samples in 0 groups", ""),
    ],
)
def test_what_cannot_be_is_refused(make: Any, message: str, hint: str) -> None:
    ds = of_texts([f"g{i // 3}" for i in range(30)])
    with pytest.raises(UsageError) as caught:
        make(ds)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_split_may_be_sampled() -> None:
    groups = [f"g{i // 3}" for i in range(300)]
    part = of_texts(groups).split(THREE, by="who")["train"]
    drawn = part.sample(by="who", balanced=True).shuffle(seed=1)
    assert set(drawn.ids(epoch=0)) | set(drawn.ids(epoch=1)) <= set(part.ids())
    assert drawn.num_samples == part.num_samples


def test_splits_are_datasets_like_any_other(tmp_path: Path) -> None:
    """Two ranks, a stop in the middle, three ranks: every sample of a split once, and none of the other."""
    write_tar_shards(tmp_path / "data")

    def part(name: str) -> Dataset:
        ds = shoal.open(tmp_path / "data").split({"train": 0.7, "val": 0.3}, by="__key__", group=lambda key: key[:3])
        return ds[name].shuffle(seed=5).with_ids()

    train, val = part("train"), part("val")
    expected = sorted(train.ids().tolist())
    assert sorted([*expected, *val.ids().tolist()]) == list(range(200))
    iterators = [iter(part("train").partition(rank=rank, world_size=2).batch(10)) for rank in range(2)]
    seen = flat([next(it)["__id__"].tolist() for it in iterators])
    state = iterators[0].state_dict()
    after = [part("train").partition(rank=rank, world_size=3).batch(7) for rank in range(3)]
    for each in after:
        each.load_state_dict(state)
        for batch in each:
            seen += [
                number for number, again in zip(batch["__id__"].tolist(), repeats_of(batch), strict=True) if not again
            ]
    assert sorted(seen) == expected
    done = part("train").batch(16)
    list(done)
    part("train").check_certificate(done.certificate())
    with pytest.raises(shoal.errors.StateError):
        val.load_state_dict(state)
