"""Over real connections, http and S3: whatever goes wrong on the way, an epoch is the one that a clean run delivers.

What stores and readers do about each fault is tested where they are; here they are all there.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.samples import write_tar

import shoal
from shoal.cli.main import main
from shoal.errors import StorageError
from shoal.indexing import open_source
from shoal.storage import retry
from shoal.testing import FAULT_KINDS, Fault, FaultKind, RangeServer

NUM_SHARDS, SAMPLES_PER_SHARD = 4, 300
SHARDS = f"train-{{000000..{NUM_SHARDS - 1:06d}}}.tar"
# A silence longer than the client waits for, and a Retry-After that must not be what the test lasts.
FAULTS = [
    Fault(kind, probability=0.1, seconds=2.0) for kind in FAULT_KINDS if kind not in {"slow", "trickle", "trickle_head"}
]
FAULTS += [
    Fault("slow", probability=0.1, seconds=0.1),
    Fault("status", probability=0.1, status=429, retry_after_seconds=0.1),
    Fault("status", probability=0.1, status=500),
]
# A byte every now and then, so that the client never meets a silence. Not for S3: obstore gives up such an answer, too,
# but after five minutes.
TRICKLE = Fault("trickle", probability=0.1, seconds=0.3)

pytestmark = [
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
    pytest.mark.usefixtures("http_client"),
]


@dataclass(frozen=True)
class Far:
    """The shards as a server serves them, an index with checksums, and what a clean run delivers."""

    shards: Path
    index: str
    clean: list[tuple[int, bytes]]

    def open(self, server: RangeServer, scheme: str, *faults: Fault, **cut: str) -> shoal.Dataset:
        """By http or by S3, with little patience for silence; the faults begin when it is open."""
        options: dict[str, Any] = {"timeout_seconds": 0.7}
        root = f"{server.url}/bucket"
        if scheme == "s3":
            options |= {"endpoint": server.url, "anonymous": True, "region": "us-east-1"}
            root = "s3://bucket"
        ds = shuffled(shoal.open(f"{root}/{SHARDS}", index=self.index, storage_options=options), **cut)
        server.clear()
        server.faults = faults
        return ds


def shuffled(ds: shoal.Dataset, *, window: str = "1MiB", chunk: str = "64KiB") -> shoal.Dataset:
    return ds.shuffle(seed=3, window=window, chunk=chunk).with_ids()


def delivered(ds: shoal.Dataset) -> list[tuple[int, bytes]]:
    return [(sample["__id__"], sample["bin"]) for sample in ds]


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    home = tmp_path_factory.mktemp("far")
    shards = home / "served" / "bucket"
    shards.mkdir(parents=True)
    random = np.random.default_rng(0)
    for shard in range(NUM_SHARDS):
        numbers = range(shard * SAMPLES_PER_SHARD, (shard + 1) * SAMPLES_PER_SHARD)
        samples = [{"__key__": f"{n:05d}".encode(), "bin": random.bytes(int(random.integers(9000)))} for n in numbers]
        write_tar(shards / f"train-{shard:06d}.tar", samples)
    index = home / "kept.index"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_CACHE_DIR", str(home / "cache"))
        patch.setenv("no_proxy", "127.0.0.1")
        with RangeServer(shards.parent) as server:
            assert main(["index", "--checksum", "--output", str(index), f"{server.url}/bucket/{SHARDS}"]) == 0
        yield Far(shards.parent, str(index), delivered(shuffled(shoal.open(shards, index=index))))


def name_of(fault: Fault) -> str:
    return f"{fault.kind}-{fault.status}" if fault.kind == "status" else fault.kind


# Each fault over http and S3; the client for http is compiled or plain in turn, and libcurl in drills.
PAIRS = [
    (fault, scheme, client)
    for number, fault in enumerate(FAULTS)
    for scheme, client in (("http", ("compiled", "plain")[number % 2]), ("s3", "libcurl"))
]
OTHERS = [
    (fault, "http", client)
    for number, fault in enumerate(FAULTS)
    for client in ("libcurl", ("plain", "compiled")[number % 2])
]


@pytest.mark.parametrize(
    ("fault", "scheme", "http_client"),
    [*PAIRS, *(pytest.param(*other, marks=pytest.mark.drill) for other in OTHERS)],
    indirect=["http_client"],
    ids=lambda value: name_of(value) if isinstance(value, Fault) else value,
)
def test_a_fault_in_one_of_ten_requests_changes_nothing(fault: Fault, scheme: str, far: Far) -> None:
    with RangeServer(far.shards, seed=1) as server:
        assert delivered(far.open(server, scheme, fault)) == far.clean
        assert server.num_faults()[fault.kind] >= 3


@pytest.mark.drill
@pytest.mark.parametrize("kind", ["trickle", "trickle_head"])
def test_answers_that_trickle_are_given_up(kind: FaultKind, far: Far) -> None:
    with RangeServer(far.shards, seed=1) as server:
        fault = replace(TRICKLE, kind=kind, requests=[1, 2, 9], probability=0)
        assert delivered(far.open(server, "http", fault)) == far.clean
        assert server.num_faults()[kind] == 3


@pytest.mark.drill
@pytest.mark.parametrize("kind", ["trickle", "trickle_head"])
def test_an_opening_that_meets_nothing_else_ends(kind: FaultKind, far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the thread that opens, where nobody else looks at the clock."""
    rule = retry.RetryRule(first_pause_seconds=0.01, deadline_seconds=1.0)
    monkeypatch.setattr(open_source, "with_retries", lambda store, _: retry.RetryingStore(store, rule))
    with RangeServer(far.shards, seed=1) as server:
        server.faults = [Fault(kind, probability=1, seconds=0.2)]
        options = {"timeout_seconds": 0.7}
        with pytest.raises(StorageError, match=r"attempts? in .* the deadline is 1 s.*timed out|sent nothing for too"):
            shoal.open(f"{server.url}/bucket/{SHARDS}", storage_options=options)


def check_together(far: Far, scheme: str, *more: Fault, chunk: str) -> None:
    """Of four requests three fail, each in one of thirteen ways or more."""
    with RangeServer(far.shards, seed=2, latency_seconds=0.001) as server:
        cut = {"window": "16MiB", "chunk": chunk}
        ds = far.open(server, scheme, *FAULTS, *more, **cut).reading(hedge=True, deadline=600)
        clean = delivered(shuffled(shoal.open(far.shards / "bucket", index=far.index), **cut))
        assert delivered(ds) == clean
        num_failed = sum(server.num_faults().values())
        assert len(server.num_faults()) >= 8
        assert num_failed > 0.6 * server.num_requests()


@pytest.mark.drill
@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_all_of_them_together_change_nothing(scheme: str, far: Far) -> None:
    check_together(far, scheme, chunk="256KiB")


@pytest.mark.soak
@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_all_of_them_together_change_nothing_over_many_requests(scheme: str, far: Far) -> None:
    check_together(far, scheme, *[TRICKLE][: scheme == "http"], chunk="64KiB")


@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_a_clean_epoch_asks_for_each_chunk_once(scheme: str, far: Far) -> None:
    with RangeServer(far.shards) as server:
        ds = far.open(server, scheme)
        assert delivered(ds) == far.clean
        asked = [(seen.path, seen.first_byte, seen.num_bytes) for seen in server.exchanges]
        assert len(set(asked)) == len(asked)
        chunks = ds.resolved.chunks
        assert sum(num_bytes for _, _, num_bytes in asked) <= 1.02 * int((chunks.end_byte - chunks.first_byte).sum())


def check_outage(far: Far, scheme: str, seconds: float) -> None:
    with RangeServer(far.shards, latency_seconds=0.005) as server:
        iterator = iter(far.open(server, scheme))
        first = [(sample["__id__"], sample["bin"]) for _, sample in zip(range(10), iterator, strict=False)]
        server.down()
        comes_back = threading.Timer(seconds, server.up)
        comes_back.start()
        try:
            rest = [(sample["__id__"], sample["bin"]) for sample in iterator]
        finally:
            comes_back.join()
        assert first + rest == far.clean


@pytest.mark.drill
@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_a_server_that_dies_and_returns_is_waited_for(scheme: str, far: Far) -> None:
    check_outage(far, scheme, 1.0)


@pytest.mark.soak
@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_even_when_it_takes_half_a_minute(scheme: str, far: Far) -> None:
    check_outage(far, scheme, 30.0)


@pytest.mark.drill
@pytest.mark.parametrize("scheme", ["http", "s3"])
@pytest.mark.parametrize("silent", [False, True], ids=["down", "silent"])
def test_one_that_never_returns_is_an_error_in_time(scheme: str, silent: bool, far: Far) -> None:
    with RangeServer(far.shards) as server:
        iterator = iter(far.open(server, scheme).reading(deadline=1.5))
        next(iterator)
        if silent:
            server.faults = [Fault("slow", probability=1, seconds=3600)]
        else:
            server.down()
        began = time.monotonic()
        with pytest.raises(StorageError, match=r"read bytes \[\d+, \d+\) of .*train-00000\d\.tar.* attempts") as raised:
            for _ in iterator:
                pass
        assert time.monotonic() - began < 30
        assert raised.value.hint


@pytest.mark.drill
@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_an_object_that_changes_is_an_error_and_no_other_bytes(scheme: str, far: Far, tmp_path: Path) -> None:
    shards = shutil.copytree(far.shards, tmp_path / "served")  # their times, too
    with RangeServer(shards) as server:
        # Little of the 5 MB is read ahead, so that most is read after the change.
        iterator = iter(far.open(server, scheme).reading(memory_limit="1280KiB"))
        seen = [(sample["__id__"], sample["bin"]) for _, sample in zip(range(5), iterator, strict=False)]
        for path in shards.rglob("*.tar"):
            written = path.with_suffix(".new")
            written.write_bytes(path.read_bytes())  # the same bytes, but who would know
            written.replace(path)
        with pytest.raises(StorageError, match="changed"):
            seen.extend((sample["__id__"], sample["bin"]) for sample in iterator)
        assert seen == far.clean[: len(seen)]
