"""The ranks of a starting job share the work of indexing, in processes of their own; some are killed, or never come."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.forks import Fork, Interpreter, Meeting
from tests.storage.servers import moto, s3_client, s3_options, torch_server
from tests.stream.made import write_tars

import shoal
from shoal.errors import ShardError, StorageError
from shoal.indexing import index_making
from shoal.indexing.growing.unindexed import Unindexed
from shoal.indexing.jobs import job_units, shared_indexing
from shoal.indexing.jobs.index_from_parts import IndexTask
from shoal.indexing.jobs.shared_indexing import Sharing
from shoal.indexing.open_source import find_source
from shoal.processes.job_rank import JobRank
from shoal.storage.files.local_store import LocalStore
from shoal.storage.memory_store import MemoryStore
from shoal.storage.objects.torch_store import TorchStore
from shoal.stream.ranks import job_rank

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

COUNTS = [20, 30, 10, 5, 40, 1, 7, 9, 12, 3]
WORLD_SIZE = 3
SHARES = [{0, 3, 6, 9}, {1, 4, 7}, {2, 5, 8}]

# The fingerprint, the units that this rank ran, and where the index is.
Opening = tuple[str, list[int], str]


def open_as_rank(
    source: str,
    environment: dict[str, str],
    *,
    dies: int | None = None,
    wait: float = 60.0,
    least: int = 1,
    num_processors: int = 1,
    shares_are_run: Meeting | None = None,
    **options: Any,
) -> Opening:
    """Open a dataset as a rank; it is killed after ``dies`` units, and takes over none until ``shares_are_run``."""
    os.environ.update(environment)
    setattr(index_making, "small_bytes", lambda _: 0)  # noqa: B010
    job_units._LEAST_SHARDS, shared_indexing._LEAST_WAIT_SECONDS = least, wait
    setattr(shared_indexing, "usable_processors", lambda: num_processors)  # noqa: B010
    units_run: list[int] = []
    keep, run_own_share = IndexTask.keep, Sharing.run_own_share

    def kept(task: IndexTask, part: Any) -> Any:
        if len(units_run) == dies:
            os.kill(os.getpid(), signal.SIGKILL)
        units_run.append(task.number)
        return keep(task, part)

    def run_and_wait(sharing: Sharing) -> None:
        run_own_share(sharing)
        if shares_are_run is not None:
            shares_are_run.wait()

    setattr(IndexTask, "keep", kept)  # noqa: B010
    setattr(Sharing, "run_own_share", run_and_wait)  # noqa: B010
    opened = shoal.open(source, **options).stream.opened
    return opened.index.fingerprint, units_run, str(opened.index_path)


class Ranks:
    """Processes that open one dataset as the ranks of a job."""

    def __init__(self, tmp_path: Path, kind: type[Fork | Interpreter]) -> None:
        self._caches, self._kind = tmp_path, kind
        self.processes: list[Fork | Interpreter] = []

    def start(
        self, source: object, *, cache: str, ranks: Sequence[int], dies: dict[int, int] | None = None,
        store: TorchStore | None = None, **how: Any,
    ) -> None:  # fmt: skip
        """Start these ranks; ``dies`` has those that are killed, and the number of units after which."""
        for rank in ranks:
            environment = {
                "RANK": str(rank),
                "WORLD_SIZE": str(WORLD_SIZE),
                "SHOAL_CACHE_DIR": str(self._caches / cache.format(rank=rank)),
            }
            if store is not None:
                environment |= {
                    "MASTER_ADDR": store.host, "MASTER_PORT": str(store.port), "LOCAL_WORLD_SIZE": "1",
                }  # fmt: skip
            call = partial(open_as_rank, str(source), environment, dies=(dies or {}).get(rank), **how)
            self.processes.append(self._kind(call))

    def start_after_death_of(self, killed: int, source: object, **how: Any) -> None:
        """Start a rank that is killed after one unit, and then the others, which run their shares before any more."""
        self.start(source, ranks=[killed], dies={killed: 1}, **how)
        assert self.processes[0].exit_code() == -signal.SIGKILL
        left = [rank for rank in range(WORLD_SIZE) if rank != killed]
        both = Meeting(self._caches / "meeting", len(left))
        self.start(source, ranks=left, shares_are_run=both, wait=0.05, **how)

    def ended(self) -> list[Opening | None]:
        """What each of them has opened; None for one that was killed."""
        openings = [process.result() for process in self.processes]
        self.processes = []
        return openings


@pytest.fixture
def ranks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ranks]:
    ranks = Ranks(tmp_path, getattr(request, "param", Fork))
    yield ranks
    for process in ranks.processes:
        process.kill()


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    return write_tars(tmp_path / "tars", COUNTS)


@pytest.fixture
def expected(tars: Path) -> str:
    return shoal.open(tars).stream.opened.index.fingerprint


def check_without_rank_1(openings: Sequence[Opening | None], expected: str) -> tuple[Opening, Opening]:
    """The other two have the index, each has run its share, and what rank 1 did before it was killed is used."""
    zero, one, two = openings
    assert one is None
    assert zero is not None
    assert two is not None
    assert (zero[0], two[0]) == (expected, expected)
    assert set(zero[1]) >= SHARES[0]
    assert set(two[1]) >= SHARES[2]
    assert len(SHARES[1] - {*zero[1], *two[1]}) == 1
    return zero, two


def test_each_rank_indexes_its_share(ranks: Ranks, tars: Path, expected: str, tmp_path: Path) -> None:
    ranks.start(tars, cache="shared", ranks=[0, 1, 2])
    openings = ranks.ended()
    assert [opening[0] for opening in openings if opening] == [expected] * 3
    assert [sorted(opening[1]) for opening in openings if opening] == [sorted(share) for share in SHARES]
    assert not list((tmp_path / "shared").rglob("*.part"))
    assert len(list((tmp_path / "shared" / "indexes").glob("*.index"))) == 1


def test_a_killed_rank_costs_its_share_alone(ranks: Ranks, tars: Path, expected: str, tmp_path: Path) -> None:
    ranks.start_after_death_of(1, tars, cache="shared")
    dead, *left = ranks.ended()
    check_without_rank_1([left[0], dead, left[1]], expected)
    assert not list((tmp_path / "shared").rglob("*.part"))
    # Started again, it finds what the others have made.
    ranks.start(tars, cache="shared", ranks=[1])
    ((fingerprint, units_run, _),) = [opening for opening in ranks.ended() if opening]
    assert (fingerprint, units_run) == (expected, [])


def test_a_rank_that_opens_alone_does_all(ranks: Ranks, tars: Path, expected: str) -> None:
    ranks.start(tars, cache="shared", ranks=[2], wait=0.1, num_processors=2)
    ((fingerprint, units_run, _),) = [opening for opening in ranks.ended() if opening]
    assert (fingerprint, sorted(units_run)) == (expected, list(range(10)))


def test_machines_that_share_nothing_each_do_all(ranks: Ranks, tars: Path, expected: str) -> None:
    ranks.start(tars, cache="machine-{rank}", ranks=[0, 1], wait=0.1)
    openings = [opening for opening in ranks.ended() if opening]
    assert [(opening[0], sorted(opening[1])) for opening in openings] == [(expected, list(range(10)))] * 2


class KilledError(BaseException):
    """Ends a rank that is a thread."""


def test_parts_are_exchanged_beside_the_shards_where_the_index_is_published(
    tars: Path, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks as threads, with caches of their own; one of them ends in the middle of its share."""
    source = "memory://shared-indexing/train"
    for path in tars.glob("*.tar"):
        MemoryStore().put(f"{source}/{path.name}", path.read_bytes())
    this_thread = threading.local()
    both = threading.Barrier(2)
    keep, run_own_share = IndexTask.keep, Sharing.run_own_share

    def kept(task: IndexTask, part: Any) -> Any:
        if this_thread.rank == 1 and this_thread.units_run:
            raise KilledError
        this_thread.units_run.append(task.number)
        return keep(task, part)

    def run_and_wait(sharing: Sharing) -> None:
        run_own_share(sharing)
        both.wait(60)

    def open_as(rank: int) -> Opening:
        this_thread.rank, this_thread.units_run = rank, []
        me = JobRank(rank, WORLD_SIZE, 1)
        found = find_source(source, cache_dir=tmp_path / f"machine-{rank}", publish_index=True, job_rank=me)
        assert isinstance(found, Unindexed)
        index, path = found.making.cached_or_made()
        return index.fingerprint, this_thread.units_run, str(path)

    monkeypatch.setattr(index_making, "small_bytes", lambda _: 0)
    monkeypatch.setattr(job_units, "_LEAST_SHARDS", 1)
    monkeypatch.setattr(shared_indexing, "_LEAST_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(IndexTask, "keep", kept)
    monkeypatch.setattr(Sharing, "run_own_share", run_and_wait)
    with pytest.raises(KilledError):
        open_as(1)
    with ThreadPoolExecutor(2) as threads:
        zero, two = threads.map(open_as, [0, 2])
    openings = check_without_rank_1([zero, None, two], expected)
    assert [opening[2] for opening in openings] == [f"{source}/shoal.index"] * 2
    paths = [info.path for info in MemoryStore().list(source)]
    assert [path for path in paths if not path.endswith(".tar")] == [f"{source}/shoal.index"]


@pytest.mark.drill
@pytest.mark.parametrize("ranks", [Interpreter], indirect=True)
def test_machines_that_publish_in_a_bucket_exchange_parts_there(ranks: Ranks, tars: Path, expected: str) -> None:
    with moto() as endpoint:
        client = s3_client(endpoint)
        client.create_bucket(Bucket="shared-indexing")
        for path in tars.glob("*.tar"):
            client.put_object(Bucket="shared-indexing", Key=f"train/{path.name}", Body=path.read_bytes())
        ranks.start_after_death_of(
            1, "s3://shared-indexing/train",
            cache="machine-{rank}", publish_index=True, storage_options=s3_options(endpoint),
        )  # fmt: skip
        dead, *left = ranks.ended()
        keys = [item["Key"] for item in client.list_objects_v2(Bucket="shared-indexing")["Contents"]]
    openings = check_without_rank_1([left[0], dead, left[1]], expected)
    assert [opening[2] for opening in openings] == ["s3://shared-indexing/train/shoal.index"] * 2
    assert [key for key in keys if not key.endswith(".tar")] == ["train/shoal.index"]


@pytest.mark.parametrize("has_death", [False, True])
def test_machines_without_a_common_place_use_the_store_of_torch(
    ranks: Ranks, tars: Path, expected: str, tmp_path: Path, *, has_death: bool
) -> None:
    server = torch_server()
    store = TorchStore(server.host, server.port)
    how: dict[str, Any] = {"cache": "machine-{rank}", "store": store}
    if has_death:
        ranks.start_after_death_of(1, tars, **how)
        dead, *left = ranks.ended()
        openings = dict(zip((0, 2), check_without_rank_1([left[0], dead, left[1]], expected), strict=True))
    else:
        ranks.start(tars, ranks=range(WORLD_SIZE), **how)
        openings = {rank: opening for rank, opening in enumerate(ranks.ended()) if opening is not None}
        assert {opening[0] for opening in openings.values()} == {expected}
        assert [set(opening[1]) for opening in openings.values()] == SHARES
    for rank, opening in openings.items():
        assert Path(opening[2]).is_relative_to(tmp_path / f"machine-{rank}")
    (left_there,) = store.list(store.url)  # the index alone, for machines that come later
    assert left_there.path.endswith(".index")


@pytest.mark.drill
def test_ranks_killed_in_any_number(ranks: Ranks, tars: Path, expected: str) -> None:
    """Side by side, so that a share is taken over while its rank may run it still: only the index is looked at."""
    for trial in range(6):
        dies = dict.fromkeys(([0, 1], [2], [0, 2], [1, 2], [1], [0])[trial], trial // 2)
        ranks.start(tars, cache=f"shared-{trial}", ranks=[0, 1, 2], dies=dies, wait=0.5, least=1 + trial % 2)
        openings = ranks.ended()
        assert {opening[0] for opening in openings if opening} == {expected}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"RANK": "3", "WORLD_SIZE": "16"}, (3, 16, 16)),
        ({"RANK": "3", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, (3, 16, 8)),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "16", "SLURM_NTASKS_PER_NODE": "4"}, (3, 16, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "16"}, None),  # a batch script: nobody else is there
        ({"RANK": "x", "WORLD_SIZE": "16"}, None),
    ],
)
def test_the_rank_of_a_job(environment: dict[str, str], expected: tuple[int, int, int] | None) -> None:
    assert job_rank(environment) == expected


@pytest.fixture
def as_rank(expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is a rank of a job, with a cache of its own in which there is no index; its data are not small."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setattr(index_making, "small_bytes", lambda _: 0)
    monkeypatch.setattr(job_units, "_LEAST_SHARDS", 1)
    monkeypatch.setattr(shared_indexing, "_LEAST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(shared_indexing, "_UNKNOWN_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(shared_indexing, "_JOIN_SECONDS", 0.01)
    monkeypatch.setattr(shared_indexing, "usable_processors", lambda: 1)


@pytest.mark.usefixtures("as_rank")
@pytest.mark.parametrize("verb", ["put", "find", "list", "read_range"])
def test_where_parts_cannot_be_kept_each_rank_does_it_alone(
    verb: str, tars: Path, expected: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = getattr(LocalStore, verb)

    def fail(self: LocalStore, path: str, *given: Any) -> Any:
        if "/units" in path:
            msg = "the disk does not work"
            raise StorageError(msg)
        return whole(self, path, *given)

    monkeypatch.setattr(LocalStore, verb, fail)
    assert shoal.open(tars).stream.opened.index.fingerprint == expected
    assert "ranks cannot share the work" in caplog.text


@pytest.mark.usefixtures("as_rank")
def test_what_it_costs_to_share_nothing_is_said(
    tars: Path, expected: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with caplog.at_level(logging.INFO, logger="shoal"):
        assert shoal.open(tars).stream.opened.index.fingerprint == expected
    assert f"machines that do not share {tmp_path / 'own'} each index all 10 shards of 0.0 GB" in caplog.text
    assert "rank 1 of 16 indexes its share of 10 units" in caplog.text


@pytest.mark.usefixtures("as_rank")
def test_an_error_of_a_shard_is_that_of_one_machine(tars: Path) -> None:
    shard = sorted(tars.glob("*.tar"))[1]
    os.truncate(shard, 2500)
    with pytest.raises(ShardError, match=shard.name):
        shoal.open(tars)
