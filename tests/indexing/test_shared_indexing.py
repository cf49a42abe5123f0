"""The ranks of a starting job share the work of indexing, in processes of their own; some are killed, or never come."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.storage.servers import moto, s3_client, s3_options, torch_server
from tests.stream.made import write_tars

import shoal
from shoal.errors import ShardError, StorageError
from shoal.indexing import index_making
from shoal.indexing.jobs import job_units, shared_indexing
from shoal.storage.files.local_store import LocalStore
from shoal.storage.objects.torch_store import TorchStore
from shoal.stream.ranks import job_rank

COUNTS = [20, 30, 10, 5, 40, 1, 7, 9, 12, 3]
WORLD_SIZE = 3

RANK = """
    import json, os, signal, sys
    sys.path[:0] = {path!r}
    if {is_torch}:
        import torch.distributed
    import shoal
    from shoal.indexing import index_making
    from shoal.indexing.jobs import index_from_parts, job_units, shared_indexing
    index_making.small_bytes = lambda store: 0
    job_units._LEAST_SHARDS, shared_indexing._LEAST_WAIT_SECONDS, dies = {least}, {wait}, {dies}
    ran, keep = [], index_from_parts.IndexTask.keep
    def kept(self, part):
        if dies is not None and len(ran) == dies:
            os.kill(os.getpid(), signal.SIGKILL)
        ran.append(self.number)
        return keep(self, part)
    index_from_parts.IndexTask.keep = kept
    ds = shoal.open({source!r}, storage_options={options!r}, publish_index={publish})
    index = ds.stream.opened.index
    print(json.dumps([index.fingerprint, list(index.shard_versions), ran, ds.stream.opened.index_path]))
"""


class Ranks:
    """Processes that open one dataset as the ranks of a job."""

    def __init__(self, tmp_path: Path) -> None:
        self._caches = tmp_path
        self.processes: list[subprocess.Popen[str]] = []

    def start(
        self, source: object, *, cache: str, ranks: list[int], dies: dict[int, int] | None = None, **how: Any
    ) -> None:
        """Start these ranks; ``dies`` has those that are killed, and the number of units after which."""
        how = {"wait": 60.0, "options": None, "publish": False, "least": 1, "store": None, **how}
        for rank in ranks:
            path = [str(Path(shoal.__file__).parents[1])]
            terms = how | {"path": path, "source": str(source), "dies": (dies or {}).get(rank)}
            code = textwrap.dedent(RANK).format(**terms, is_torch=how["store"] is not None)
            environment = {
                "RANK": str(rank),
                "WORLD_SIZE": str(WORLD_SIZE),
                "SHOAL_CACHE_DIR": str(self._caches / cache),
            }
            if how["store"] is not None:
                environment |= {"MASTER_ADDR": how["store"].host, "MASTER_PORT": str(how["store"].port)}
                environment["LOCAL_WORLD_SIZE"] = "1"
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ | environment
                )
            )

    def ended(self) -> list[tuple[str, list[str], list[int], str] | None]:
        """What each of them found; None for one that was killed."""
        found: list[Any] = []
        for process in self.processes:
            said, _ = process.communicate(timeout=300)
            assert process.returncode in (0, -9)
            found.append(tuple(json.loads(said)) if process.returncode == 0 else None)
        self.processes = []
        return found


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    ranks = Ranks(tmp_path)
    yield ranks
    for process in ranks.processes:
        process.kill()
        process.communicate()


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    return write_tars(tmp_path / "tars", COUNTS)


@pytest.fixture
def expected(tars: Path) -> str:
    return shoal.open(tars).stream.opened.index.fingerprint


def test_each_rank_indexes_its_share(ranks: Ranks, tars: Path, expected: str, tmp_path: Path) -> None:
    ranks.start(tars, cache="shared", ranks=[0, 1, 2])
    found = ranks.ended()
    assert [one[0] for one in found if one] == [expected] * 3
    assert [sorted(one[2]) for one in found if one] == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]
    assert not list((tmp_path / "shared").rglob("*.part"))
    assert len(list((tmp_path / "shared" / "indexes").glob("*.index"))) == 1


def test_a_killed_rank_costs_its_share_alone(ranks: Ranks, tars: Path, expected: str, tmp_path: Path) -> None:
    ranks.start(tars, cache="shared", ranks=[0, 1, 2], dies={1: 1}, wait=1.0)
    found = ranks.ended()
    assert found[1] is None
    assert [one[0] for one in found if one] == [expected] * 2
    done = [set(one[2]) for one in found if one]
    assert {0, 3, 6, 9} <= done[0]
    assert {2, 5, 8} <= done[1]
    assert set.union(*done) >= set(range(10)) - {1, 4, 7}
    assert not list((tmp_path / "shared").rglob("*.part"))
    # Started again, it finds what the others have made.
    ranks.start(tars, cache="shared", ranks=[1])
    ((again, _, ran, _),) = [one for one in ranks.ended() if one]
    assert (again, ran) == (expected, [])


def test_a_rank_that_opens_alone_does_all(ranks: Ranks, tars: Path, expected: str) -> None:
    ranks.start(tars, cache="shared", ranks=[2], wait=0.1)
    ((fingerprint, _, ran, _),) = [one for one in ranks.ended() if one]
    assert (fingerprint, sorted(ran)) == (expected, list(range(10)))


def test_machines_that_share_nothing_each_do_all(ranks: Ranks, tars: Path, expected: str) -> None:
    ranks.start(tars, cache="one", ranks=[0], wait=0.1)
    ranks.start(tars, cache="other", ranks=[1], wait=0.1)
    assert [(one[0], sorted(one[2])) for one in ranks.ended() if one] == [(expected, list(range(10)))] * 2


def test_parts_are_exchanged_beside_the_shards_where_the_index_is_published(
    ranks: Ranks, tars: Path, expected: str
) -> None:
    """Machines with caches of their own; one of the ranks is killed."""
    with moto() as endpoint:
        client = s3_client(endpoint)
        client.create_bucket(Bucket="shared-indexing")
        for path in tars.glob("*.tar"):
            client.put_object(Bucket="shared-indexing", Key=f"train/{path.name}", Body=path.read_bytes())
        for rank in range(WORLD_SIZE):
            ranks.start(
                "s3://shared-indexing/train", cache=f"machine-{rank}", ranks=[rank], dies={1: 1},
                wait=3.0, publish=True, options=s3_options(endpoint),
            )  # fmt: skip
        found = ranks.ended()
        keys = [item["Key"] for item in client.list_objects_v2(Bucket="shared-indexing")["Contents"]]
    assert found[1] is None
    there = [one for one in found if one]
    assert [(one[0], one[3]) for one in there] == [(expected, "s3://shared-indexing/train/shoal.index")] * 2
    assert {0, 3, 6, 9} <= set(there[0][2])
    assert {2, 5, 8} <= set(there[1][2])
    assert [key for key in keys if not key.endswith(".tar")] == ["train/shoal.index"]


@pytest.mark.parametrize("dies", [{}, {1: 1}])
def test_machines_without_a_common_place_use_the_store_of_torch(
    ranks: Ranks, tars: Path, expected: str, tmp_path: Path, dies: dict[int, int]
) -> None:
    server = torch_server()
    store = TorchStore(server.host, server.port)
    for rank in range(WORLD_SIZE):
        ranks.start(tars, cache=f"machine-{rank}", ranks=[rank], wait=3.0 if dies else 60.0, store=store, dies=dies)
    found = ranks.ended()
    there = {rank: one for rank, one in enumerate(found) if one is not None}
    assert set(there) == set(range(WORLD_SIZE)) - set(dies)
    assert {one[0] for one in there.values()} == {expected}
    shares = [{0, 3, 6, 9}, {1, 4, 7}, {2, 5, 8}]
    assert all(set(one[2]) >= shares[rank] for rank, one in there.items())
    assert dies or all(set(one[2]) == shares[rank] for rank, one in there.items())
    for rank, one in there.items():
        assert Path(one[3]).is_relative_to(tmp_path / f"machine-{rank}")
    (left,) = store.list(store.url)  # the index alone, for machines that come later
    assert left.path.endswith(".index")


@pytest.mark.slow
def test_ranks_killed_in_any_number(ranks: Ranks, tars: Path, expected: str) -> None:
    for trial in range(6):
        dies = dict.fromkeys(([0, 1], [2], [0, 2], [1, 2], [1], [0])[trial], trial // 2)
        ranks.start(tars, cache=f"shared-{trial}", ranks=[0, 1, 2], dies=dies, wait=0.5, least=1 + trial % 2)
        found = ranks.ended()
        assert {one[0] for one in found if one} <= {expected}
        assert sum(one is not None for one in found) >= 1


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
