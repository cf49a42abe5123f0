"""Growing directories: files are read once complete, in order; positions resume anywhere, on any number of ranks."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.samples import write_tar

import shoal
from shoal.errors import ShardError, SourceError, StateError, UsageError
from shoal.live.followed_files import records_of
from shoal.live.live_dataset import LiveDataset


def write(path: Path, numbers: range, *, as_name: str | None = None) -> None:
    """Write a file of JSON lines whole, as a careful writer does."""
    part = path.with_name(f".{path.name}.part")
    part.write_text("".join(json.dumps({"id": number}) + "\n" for number in numbers))
    part.rename(path if as_name is None else path.with_name(as_name))


def write_many(directory: Path, sizes: list[int], *, first_file: int = 0, first: int = 0) -> None:
    directory.mkdir(exist_ok=True)
    for number, size in enumerate(sizes, first_file):
        write(directory / f"{number:04d}.jsonl", range(first, first + size))
        first += size


def ids_of(ds: Any, count: int | None = None) -> list[int]:
    return [sample["id"] for sample in itertools.islice(ds, count)]


def test_files_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    write_many(tmp_path / "d", [3, 0, 1, 5])
    assert ids_of(shoal.follow(str(tmp_path / "d"), idle_seconds=0)) == list(range(9))
    assert ids_of(shoal.follow(f"{tmp_path}/d/000[23].jsonl", idle_seconds=0)) == list(range(3, 9))


def test_or_of_their_times(tmp_path: Path) -> None:
    for name, first, seconds in (("b", 0, 1000), ("a", 3, 2000), ("c", 6, 1500)):
        write(tmp_path / f"{name}.jsonl", range(first, first + 3))
        os.utime(tmp_path / f"{name}.jsonl", (seconds, seconds))
    ds = shoal.follow(str(tmp_path), order="mtime", idle_seconds=0)
    assert ids_of(ds) == [0, 1, 2, 6, 7, 8, 3, 4, 5]


def test_shards_of_any_format_are_followed(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", [{"__key__": b"%d" % number, "cls": b"%d" % number} for number in range(4)])
    ds = shoal.follow(f"{tmp_path}/*.tar", idle_seconds=0).decode().batch(4)
    assert next(iter(ds))["cls"].tolist() == [0, 1, 2, 3]


def test_new_files_are_awaited(tmp_path: Path) -> None:
    done = threading.Event()

    def grow() -> None:
        for number in range(5):
            write(tmp_path / f"{number}.jsonl", range(10 * number, 10 * number + 10))
        done.set()

    ds = shoal.follow(str(tmp_path), poll_seconds=0.002, stop=done.is_set)
    threading.Timer(0.05, grow).start()
    assert ids_of(ds) == list(range(50))
    assert ds.stats()["num_waits"] > 0
    assert ds.stats()["num_files"] == 5
    write(tmp_path / "9.jsonl", range(50, 52))
    assert ids_of(ds) == [50, 51]  # another loop looks again


def test_a_file_is_complete_when_it_has_settled_or_a_marker_says_so(tmp_path: Path) -> None:
    write(tmp_path / "0.jsonl", range(3))
    write(tmp_path / "1.jsonl", range(3, 6))
    os.utime(tmp_path / "0.jsonl", (1000, 1000))
    assert ids_of(shoal.follow(str(tmp_path), settle_seconds=3600, idle_seconds=0)) == [0, 1, 2]
    marked = shoal.follow(str(tmp_path), marker=".done", idle_seconds=0)
    assert ids_of(marked) == []
    (tmp_path / "1.jsonl.done").touch()
    assert ids_of(marked) == [3, 4, 5]


def test_a_late_file_is_read_next_and_counted_by_one_rank_and_refused_by_several(tmp_path: Path) -> None:
    write(tmp_path / "1.jsonl", range(2))
    write(tmp_path / "3.jsonl", range(2, 4))
    ds = shoal.follow(str(tmp_path), idle_seconds=0)
    rank = shoal.follow(str(tmp_path), idle_seconds=0).partition(rank=0, world_size=2)
    assert ids_of(ds) == [0, 1, 2, 3]
    ids_of(rank)
    write(tmp_path / "2.jsonl", range(4, 6))
    write(tmp_path / "4.jsonl", range(6, 8))
    with pytest.warns(UserWarning, match=r"2.jsonl came late: 3.jsonl sorts after this file, and was read before"):
        first = ids_of(ds, 1)
    assert ds.stats()["num_late_files"] == 1
    again = shoal.follow(str(tmp_path), idle_seconds=0)
    again.load_state_dict(json.loads(json.dumps(ds.state_dict())))
    assert first + ids_of(again) == [4, 5, 6, 7]
    with pytest.raises(SourceError, match=r"different times(?s:.)*ascend"):
        ids_of(rank)


@pytest.mark.parametrize("is_coarse", [False, True], ids=["as written", "in whole seconds"])
def test_a_late_file_that_nobody_saw_come_is_known_by_its_time(is_coarse: bool, tmp_path: Path) -> None:
    write(tmp_path / "1.jsonl", range(2))
    write(tmp_path / "3.jsonl", range(2, 4))
    ds = shoal.follow(str(tmp_path), idle_seconds=0)
    assert ids_of(ds) == [0, 1, 2, 3]
    state = ds.state_dict()
    write(tmp_path / "2.jsonl", range(4, 6))
    if is_coarse:
        os.utime(tmp_path / "2.jsonl", (int(time.time()),) * 2)
    again = shoal.follow(str(tmp_path), idle_seconds=0)
    again.load_state_dict(state)
    with pytest.warns(UserWarning, match=r"2.jsonl"):
        assert ids_of(again) == [4, 5]


SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=7)


@settings(max_examples=25, deadline=None)
@given(
    sizes=SIZES,
    more=SIZES,
    buffer=st.none() | st.integers(1, 30) | st.just("2KiB"),
    legs=st.lists(st.integers(0, 15), max_size=4),
    contents=st.booleans(),
)
def test_a_chain_of_resumes_is_one_run_while_the_directory_grows(
    sizes: list[int],
    more: list[int],
    buffer: int | str | None,
    legs: list[int],
    contents: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("grows")

    def made() -> LiveDataset:
        ds = shoal.follow(str(directory), idle_seconds=0)
        return ds if buffer is None else ds.shuffle(seed=4, buffer=buffer)

    write_many(directory, sizes)
    got: list[int] = []
    state: dict[str, Any] | None = None
    fed = sum(sizes)
    for number, leg in enumerate([*legs, None]):
        ds = made()
        if state is not None:
            ds.load_state_dict(state)
        room = max(0, fed - len(got) - 31) if buffer != "2KiB" else 0
        got += ids_of(ds, leg if leg is None else min(leg, room))  # so that none comes because the source seems to end
        assert ds.stats()["num_lost"] == 0
        state = json.loads(json.dumps(ds.state_dict(contents=contents)))
        if number == len(legs) // 2 and leg is not None:
            write_many(directory, more, first_file=len(sizes), first=fed)
            fed += sum(more)
    assert sorted(got) == list(range(fed))
    assert got == ids_of(made())


@settings(max_examples=25, deadline=None)
@given(
    sizes=SIZES,
    buffer=st.none() | st.integers(1, 12),
    legs=st.lists(st.tuples(st.integers(1, 5), st.lists(st.integers(0, 7), min_size=5, max_size=5)), max_size=4),
)
def test_any_number_of_ranks_goes_on_with_what_all_had_left(
    sizes: list[int],
    buffer: int | None,
    legs: list[tuple[int, list[int]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Also where ranks stopped at different steps, and where what was left before is not all delivered."""
    directory = tmp_path_factory.mktemp("ranks")
    write_many(directory, sizes)
    states: list[dict[str, Any]] = []
    got: list[int] = []
    runs: list[tuple[int, Any]] = [*legs, (3, [None] * 3)]
    for world_size, counts in runs:
        after = []
        for rank in range(world_size):
            ds = shoal.follow(str(directory), idle_seconds=0).partition(rank=rank, world_size=world_size)
            ds = ds if buffer is None else ds.shuffle(seed=1, buffer=buffer)
            if states:
                ds.load_state_dict(states)
            got += ids_of(ds, counts[rank])
            after.append(json.loads(json.dumps(ds.state_dict())))
        states = after
    assert sorted(got) == list(range(sum(sizes)))


@given(st.text(max_size=4), st.integers(0, 9), st.integers(0, 20), st.integers(1, 7))
def test_ranks_share_the_records_of_a_file(name: str, first: int, stop: int, world_size: int) -> None:
    parts = [records_of(name, first, stop, rank, world_size) for rank in range(world_size)]
    assert sorted(itertools.chain(*parts)) == list(range(first, stop))
    whole = [set(records_of(name, 0, stop, rank, world_size)) for rank in range(world_size)]
    assert all(set(part) <= own for part, own in zip(parts, whole, strict=True))


def test_a_file_that_is_gone_is_an_error_and_no_loss(tmp_path: Path) -> None:
    write_many(tmp_path / "d", [5, 5])
    ds = shoal.follow(str(tmp_path / "d"), idle_seconds=0).shuffle(seed=0, buffer=8)
    ids_of(ds, 1)
    (tmp_path / "d" / "0000.jsonl").unlink()
    again = shoal.follow(str(tmp_path / "d"), idle_seconds=0).shuffle(seed=0, buffer=8)
    with pytest.raises(SourceError, match=r"0000.jsonl is still unread(?s:.)*keep a file"):
        again.load_state_dict(ds.state_dict())
    again = shoal.follow(str(tmp_path / "d"), idle_seconds=0).shuffle(seed=0, buffer=8)
    again.load_state_dict(ds.state_dict(contents=True))
    assert ids_of(again) == ids_of(ds)


@pytest.mark.parametrize("buffer", [None, 4])
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("size", [3, 20, 40])
def test_a_file_that_was_replaced_is_an_error_and_a_copy_is_not(
    tmp_path: Path, size: int, world_size: int, buffer: int | None
) -> None:
    def made(rank: int = 0, world_size: int = 1) -> LiveDataset:
        ds = shoal.follow(str(tmp_path / "d"), idle_seconds=0).partition(rank=rank, world_size=world_size)
        return ds if buffer is None else ds.shuffle(seed=0, buffer=buffer)

    write_many(tmp_path / "d", [20, 20])
    ds = made()
    got = ids_of(ds, 10)
    state = ds.state_dict()
    path = tmp_path / "d" / "0000.jsonl"
    path.write_bytes(path.read_bytes())
    for rank in range(world_size):
        again = made(rank, world_size)
        again.load_state_dict([state])
        got += ids_of(again)
    assert sorted(got) == list(range(40))
    write(path, range(100, 100 + size))
    with pytest.raises(StateError, match=r"0000\.jsonl has changed since the state was saved"):
        for rank in range(world_size):
            again = made(rank, world_size)
            again.load_state_dict([state])
            ids_of(again)


def test_what_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no directory"):
        next(iter(shoal.follow(f"{tmp_path}/typo/*.jsonl")))
    with pytest.raises(SourceError, match="there is no directory"):
        next(iter(shoal.follow(f"{tmp_path}/typo")))
    for arguments, text in (
        ({"order": "size"}, "order='size'"),
        ({"marker": ""}, "marker"),
        ({"settle_seconds": -1}, "seconds"),
        ({"idle_seconds": "1"}, "idle_seconds"),
    ):
        with pytest.raises(UsageError, match=text):
            shoal.follow(str(tmp_path), **arguments)
    ds = shoal.follow(str(tmp_path), order="mtime", idle_seconds=0)
    with pytest.raises(StateError, match="order='mtime'"):
        shoal.follow(str(tmp_path)).load_state_dict(ds.state_dict())


def test_a_pattern_that_names_nothing_yet_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ds = shoal.follow(f"{tmp_path}/*.jsonl", poll_seconds=0.001, idle_seconds=0.01)
    assert ids_of(ds) == []
    assert caplog.text.count("nothing to read yet") == 1
    write(tmp_path / "0.jsonl", range(2))
    assert ids_of(ds) == [0, 1]


def test_remote_files_are_followed() -> None:
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("memory")
    for number in range(3):
        files.pipe(f"/followed/{number}.jsonl", b"".join(b'{"id": %d}\n' % (2 * number + i) for i in range(2)))
    try:
        ds = shoal.follow("followed/*.jsonl", idle_seconds=0, storage_options={"filesystem": files}).shuffle(
            seed=0, buffer=3
        )
        first = ids_of(ds, 2)
        again = shoal.follow("followed/*.jsonl", idle_seconds=0, storage_options={"filesystem": files}).shuffle(
            seed=0, buffer=3
        )
        again.load_state_dict(ds.state_dict())
        assert sorted(first + ids_of(again)) == list(range(6))
    finally:
        files.rm("/followed", recursive=True)


def test_manifests_beside_shards_are_no_shards(tmp_path: Path) -> None:
    write(tmp_path / "1.jsonl", range(2))
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / "index.json").write_text("{}")
    (tmp_path / "sizes.json").write_text("{}")
    assert ids_of(shoal.follow(str(tmp_path), idle_seconds=0)) == [0, 1]


def test_a_file_with_a_time_to_come_is_not_late_after_a_resume(tmp_path: Path) -> None:
    """As one that is written while a listing is under way, or by a machine whose clock is ahead."""
    for number in (1, 3):
        write(tmp_path / f"{number}.jsonl", range(number, number + 2))
        os.utime(tmp_path / f"{number}.jsonl", (time.time() + 3600,) * 2)
    ds = shoal.follow(str(tmp_path), idle_seconds=0)
    assert ids_of(ds) == [1, 2, 3, 4]
    again = shoal.follow(str(tmp_path), idle_seconds=0)
    again.load_state_dict(ds.state_dict())
    assert ids_of(again) == []


class FollowedInTorch:
    """Iterates over a followed directory, as the ``__iter__`` of torch's IterableDataset does in each worker."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def __iter__(self) -> Any:
        for batch in shoal.follow(self.directory, idle_seconds=0).shuffle(seed=0, buffer=8).batch(5):
            yield batch["id"].tolist()


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_workers_of_torch_share_the_files_like_ranks(tmp_path: Path, num_workers: int) -> None:
    data = pytest.importorskip("torch.utils.data")
    write_many(tmp_path / "d", [20, 0, 13])
    kind = type("Live", (FollowedInTorch, data.IterableDataset), {})
    loader = data.DataLoader(kind(str(tmp_path / "d")), batch_size=None, num_workers=num_workers)
    assert sorted(itertools.chain(*loader)) == list(range(33))


def test_a_state_is_of_plain_types_and_goes_through_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    write_many(tmp_path / "d", [10, 10])
    ds = shoal.follow(str(tmp_path / "d"), idle_seconds=0).shuffle(seed=0, buffer=6)
    got = ids_of(ds, 9)
    state = ds.state_dict()
    assert types_of(state) <= {dict, list, int, str, type(None)}
    torch.save({"data": state}, tmp_path / "state.pt")
    again = shoal.follow(str(tmp_path / "d"), idle_seconds=0).shuffle(seed=0, buffer=6)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True)["data"])
    assert sorted(got + ids_of(again)) == list(range(20))
    assert types_of(again.state_dict()) <= {dict, list, int, str, type(None)}


def types_of(value: Any) -> set[type]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return {type(value)}.union(*map(types_of, inner))


@pytest.mark.parametrize("half", ['{"id": 5', '{"id": 5}\n{"id"'])
@pytest.mark.parametrize("anew", [False, True])
def test_a_file_that_was_read_half_written_is_read_on_when_it_is_whole(tmp_path: Path, half: str, anew: bool) -> None:
    path = tmp_path / "0.jsonl"
    path.write_text("".join(f'{{"id": {number}}}\n' for number in range(5)) + half)
    ds = shoal.follow(str(tmp_path), idle_seconds=0).shuffle(seed=0, buffer=3)
    got: list[int] = []
    with pytest.raises(ShardError, match=r"0\.jsonl(?s:.)*settle_seconds=(?s:.)*marker="):
        got.extend(sample["id"] for sample in ds)
    whole = [f'{{"id": {number}}}\n' for number in range(9)]
    path.write_text("".join(whole))
    if anew:
        state = ds.state_dict()
        ds = shoal.follow(str(tmp_path), idle_seconds=0).shuffle(seed=0, buffer=3)
        ds.load_state_dict(state)
    got += ids_of(ds)
    assert sorted(got) == list(range(9))


def test_a_file_that_shrank_is_named(tmp_path: Path) -> None:
    path = tmp_path / "0.jsonl"
    path.write_text("".join(f'{{"id": {number}}}\n' for number in range(5)) + "{")
    for buffer in (1, 3):
        ds = shoal.follow(str(tmp_path), idle_seconds=0).shuffle(seed=0, buffer=buffer)
        with pytest.raises(ShardError):
            ids_of(ds)
        state, text = ds.state_dict(), path.read_text()
        path.write_text('{"id": 0}\n')
        again = shoal.follow(str(tmp_path), idle_seconds=0).shuffle(seed=0, buffer=buffer)
        with pytest.raises(StateError, match=r"0\.jsonl has 1 sample, but had(?s:.)*names of their own"):
            again.load_state_dict(state)
            ids_of(again)
        path.write_text(text)


def test_an_error_of_a_function_names_the_file_and_the_sample(tmp_path: Path) -> None:
    write(tmp_path / "0.jsonl", range(3))
    with pytest.raises(ZeroDivisionError) as caught:
        list(shoal.follow(str(tmp_path), idle_seconds=0).map(lambda sample: 1 // (sample["id"] - 2)))
    assert "of sample 2 of 0.jsonl" in caught.value.__notes__[0]
    assert "with id" not in caught.value.__notes__[0]


@pytest.mark.parametrize("order", ["name", "mtime"])
def test_a_copy_without_its_times_is_refused_and_one_with_them_goes_on(tmp_path: Path, order: str) -> None:
    def made(directory: str) -> LiveDataset:
        return shoal.follow(str(tmp_path / directory), order=order, idle_seconds=0).shuffle(seed=0, buffer=4)

    write_many(tmp_path / "d", [5, 5, 5, 5])
    for number in range(4):
        os.utime(tmp_path / "d" / f"{number:04d}.jsonl", (1000 + number,) * 2)
    ds = made("d")
    got = ids_of(ds, 9)
    shutil.copytree(tmp_path / "d", tmp_path / "kept")
    shutil.copytree(tmp_path / "d", tmp_path / "lost", copy_function=shutil.copyfile)
    for directory in ("kept", "lost"):
        again = made(directory)
        again.load_state_dict(ds.state_dict())
        if directory == "kept":
            assert sorted(got + ids_of(again)) == list(range(20))
        else:
            with pytest.raises(StateError, match=r"000\d\.jsonl was read before(?s:.)*rsync -t"):
                ids_of(again)


def test_a_state_from_before_the_first_sample_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As the dataset in the parent has it, where only workers iterate."""
    write_many(tmp_path / "d", [5])
    state = shoal.follow(str(tmp_path / "d"), idle_seconds=0).state_dict()
    ds = shoal.follow(str(tmp_path / "d"), idle_seconds=0)
    ds.load_state_dict(state)
    assert "the stream starts again" in caplog.text
    ids_of(ds, 2)
    caplog.clear()
    shoal.follow(str(tmp_path / "d"), idle_seconds=0).load_state_dict(ds.state_dict())
    assert not caplog.text
