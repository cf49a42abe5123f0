"""Mixtures through worker processes: the same batches and states for any number of them, from near and from far."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.pipeline.test_gathering import mds_shard
from tests.stream.mixed import SIZES, WEIGHTS, check_batch, ids_in, mixed, of_lines, of_tar, sources_in

import shoal
from shoal.errors import StateError
from shoal.mixing import MixedDataset
from shoal.stream.workers import packed_work
from shoal.testing import RangeServer
from shoal.torch import DataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than this machine has cores
]

EVEN = dict.fromkeys(SIZES, 1)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("mixed")
    sources_in(directory)
    return directory


def part(home: Path, *, rank: int = 1, world_size: int = 2, size: int = 11) -> Any:
    ds = mixed(home, epoch_size=300).reweight(at=100, weights=EVEN, ramp=64)
    return ds.with_ids().batch(size).partition(rank=rank, world_size=world_size)


@pytest.mark.parametrize("num_workers", [0, 2, pytest.param(3, marks=pytest.mark.drill)])
def test_batches_do_not_depend_on_who_makes_them(num_workers: int, home: Path) -> None:
    here, loader = part(home), DataLoader(part(home), num_workers=num_workers)
    for _ in range(2):
        assert [check_batch(batch) for batch in loader] == [check_batch(batch) for batch in here]
    assert loader.state_dict() == here.state_dict()
    assert loader.certificate() == here.certificate()


@pytest.mark.parametrize(("num_workers", "then"), [(0, 2), (2, 0), pytest.param(3, 1, marks=pytest.mark.drill)])
def test_a_run_goes_on_with_any_number_of_workers(num_workers: int, then: int, home: Path) -> None:
    expected = [check_batch(batch) for batch in part(home)]
    loader = DataLoader(part(home), num_workers=num_workers)
    begun = [check_batch(batch) for batch in itertools.islice(loader, 5)]
    again = DataLoader(part(home), num_workers=then)
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert begun + [check_batch(batch) for batch in again] == expected
    whole = part(home)
    list(whole)
    assert shoal.merge_certificates([loader.certificate(), again.certificate()]) == whole.certificate()


def test_workers_that_stay_learn_of_changes_that_a_state_brings(home: Path) -> None:
    """A loader whose mixture has no changes gets them with the state: its workers must follow."""
    changed = part(home)
    plain = mixed(home, epoch_size=300).with_ids().batch(11).partition(rank=1, world_size=2)
    loader = DataLoader(plain, num_workers=2, persistent_workers=True)
    assert len(list(loader)) == len(plain)
    loader.load_state_dict(changed.state_at(44))
    changed.load_state_dict(changed.state_at(44))
    assert ids_in(loader) == ids_in(changed)
    with pytest.raises(StateError, match=r"weights before position .* differ"):
        loader.load_state_dict(mixed(home, epoch_size=300).reweight(at=20, weights=EVEN).state_at(44, epoch=3))
    loader.close()


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.drill)])
def test_mixtures_travel_to_fresh_processes(method: str, home: Path) -> None:
    loader = DataLoader(part(home), num_workers=1, multiprocessing_context=method)
    assert ids_in(loader) == ids_in(part(home))


@pytest.mark.parametrize("least", [0, 10**9])
def test_what_arrives_gives_the_same_order(least: int, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_work, "_SMALL_ROWS", least)
    work = part(home).stream.iterator_spec().work
    arrived = packed_work.unpack(packed_work.pack(work)[0])[0]
    assert arrived.resolved.untouched(3).ids(0, 300).tolist() == work.resolved.untouched(3).ids(0, 300).tolist()
    assert arrived.resolved.state_order == work.resolved.state_order


def from_far(home: Path, servers: list[RangeServer]) -> MixedDataset:
    near = sources_in(home)
    tars = [server.url_of(f"s-{number:03d}.tar") for server in servers[:1] for number in range(4)]
    lines = [server.url_of(f"s-{number:03d}.jsonl") for server in servers[1:] for number in range(4)]
    sources = {
        **near,
        "tar": shoal.open(tars, index=home / "tar" / "fine.index").decode().map(of_tar),
        "lines": shoal.open(lines).map(of_lines),
    }
    return shoal.mix(sources, weights=WEIGHTS, epoch_size=300).shuffle(seed=3, window=60_000)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_sources_may_lie_on_servers(num_workers: int, home: Path) -> None:
    near = mixed(home, epoch_size=300).with_ids().batch(16)
    with RangeServer(home / "tar" / "data") as one, RangeServer(home / "lines") as two:
        far = from_far(home, [one, two]).with_ids().batch(16)
        loader = DataLoader(far, num_workers=num_workers)
        batches = [check_batch(batch) for batch in loader]
        assert ids_in(near) == [number for batch in batches for number in batch]
        assert one.num_requests() > 1
        assert two.num_requests() > 1
        far.load_state_dict(far.state_at(160))
        rest = ids_in(far)
    assert rest == near.ids()[160:].tolist()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_tokens_are_gathered_from_near_and_far_by_any_worker(num_workers: int, tmp_path: Path) -> None:
    for number, name in enumerate(("near", "far")):
        (tmp_path / name).mkdir()
        for shard in range(3):
            tokens = np.arange(90 * 16).reshape(90, 16).astype(np.int32) + 10_000 * (3 * number + shard)
            (tmp_path / name / f"{shard}.mds").write_bytes(mds_shard({"tokens": tokens}))
    with RangeServer(tmp_path / "far") as server:
        far = shoal.open([server.url_of(f"{shard}.mds") for shard in range(3)])
        mix = shoal.mix({"near": shoal.open(tmp_path / "near"), "far": far}).shuffle(seed=3, window="4KiB")
        expected = [(batch["tokens"].tolist(), batch["__source__"]) for batch in mix.map(dict).batch(16)]
        loader = DataLoader(mix.batch(16), num_workers=num_workers)
        begun = list(itertools.islice(loader, 7))
        again = DataLoader(mix.batch(16), num_workers=2 - num_workers)
        again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        batches = [(batch["tokens"].tolist(), batch["__source__"]) for batch in (*begun, *again)]
    assert batches == expected
