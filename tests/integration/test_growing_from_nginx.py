"""Somebody else's tars on a plain web server, trained on before they are indexed, killed and resumed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.environments import CannotHaveError
from tests.integration.servers import Server, nginx
from tests.samples import write_tar

import shoal
from shoal.errors import SourceError

NUM_SHARDS, SAMPLES_PER_SHARD = 64, 24
WINDOW = "512KiB"
SHARDS = "train-{000000..000063}.tar"

# What a user writes: batches with the state after each; killed in the middle, and once more with the state.
_RUN = """
import json, logging, os, sys
import shoal

logging.basicConfig(level=logging.INFO, format="%(message)s")
url, rank, world_size, stop, state = sys.argv[1], *map(int, sys.argv[2:5]), json.loads(sys.argv[5])
ds = shoal.open(url, index="grow").shuffle(seed=7, window="512KiB").batch(8).partition(rank=rank, world_size=world_size)
if state:
    ds.load_state_dict(state)
for step, batch in enumerate(ds):
    segments = ds.growth[:2]
    print(json.dumps([batch["__key__"], ds.state_dict(), segments, ds.stats()["num_pieces"]]), flush=True)
    if step == stop:
        os.kill(os.getpid(), 9)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    try:
        context = nginx(more="limit_rate 200k;")  # of a connection, as such servers do
        with context as started:
            yield started
    except CannotHaveError as error:
        pytest.skip(f"no nginx here: {error}")


@pytest.fixture(scope="module")
def tars(server: Server) -> Path:
    """The directory that the server serves; its samples are small, so that an index takes all bytes."""
    assert server.directory is not None
    directory, random = server.directory / "public", np.random.default_rng(3)
    directory.mkdir()
    for shard in range(NUM_SHARDS):
        keys = [f"{shard:03d}{number:04d}" for number in range(SAMPLES_PER_SHARD)]
        samples = [{"__key__": key.encode(), "bin": random.bytes(int(random.integers(500, 6000)))} for key in keys]
        write_tar(directory / f"train-{shard:06d}.tar", samples)
    return directory


@pytest.fixture(scope="module")
def expected(tars: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The keys of the epoch in their order, from the files themselves with a whole index."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        shoal.open(tars, index="wait")
        return [sample["__key__"] for sample in shoal.open(tars, index="grow").shuffle(seed=7, window=WINDOW)]


def started(url: str, cache: Path, *, rank: int = 0, world_size: int = 1, stop: int = -1, state: Any = None) -> Any:
    environment = {**os.environ, "SHOAL_CACHE_DIR": str(cache)}
    words = [url, str(rank), str(world_size), str(stop), json.dumps(state or {})]
    return subprocess.Popen(
        [sys.executable, "-c", _RUN, *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def finished(run: Any) -> tuple[int, list[Any], str]:
    """Return the exit code, what the batches printed, and the log."""
    try:
        out, log = run.communicate(timeout=100)
    finally:
        run.kill()
    return run.returncode, [json.loads(line) for line in out.splitlines()], log


def test_the_bytes_cross_the_network_once(server: Server, tars: Path, expected: list[str], tmp_path: Path) -> None:
    before = server.sent_bytes()
    code, lines, log = finished(started(f"{server.root}/public/{SHARDS}", tmp_path / "cache"))
    assert code == 0, log
    assert [key for keys, *_ in lines for key in keys] == expected
    num_segments, num_made = lines[0][2]
    assert num_made < num_segments  # at the first batch
    assert lines[-1][3] > 1
    assert f"all {NUM_SHARDS} shards are indexed: {tmp_path / 'cache'}" in log
    assert "machines" not in log  # there is one
    num_bytes = sum(path.stat().st_size for path in tars.iterdir())
    assert num_bytes <= server.sent_bytes() - before < 1.1 * num_bytes


@pytest.mark.parametrize("keeps_cache", [True, False])
def test_a_killed_run_resumes_on_more_ranks(
    server: Server, expected: list[str], tmp_path: Path, keeps_cache: bool
) -> None:
    url = f"{server.root}/public/{SHARDS}"
    code, lines, log = finished(started(url, tmp_path / "first", stop=40))
    assert code == -signal.SIGKILL, log
    _, state, (num_segments, num_made), _ = lines[-1]
    assert num_made < num_segments
    first = [key for keys, *_ in lines for key in keys]
    assert first == expected[: len(first)]
    cache = tmp_path / ("first" if keeps_cache else "second")
    with contextlib.ExitStack() as stack:
        runs = [started(url, cache, rank=rank, world_size=3, state=state) for rank in range(3)]
        for run in runs:
            stack.callback(run.kill)
        ranks = [finished(run) for run in runs]
    assert [code for code, *_ in ranks] == [0, 0, 0], [log[-2000:] for *_, log in ranks]
    steps = zip(*([keys for keys, *_ in lines] for _, lines, _ in ranks), strict=True)
    rest = [key for step in steps for keys in step for key in keys]
    assert sorted({*first, *rest}) == sorted(expected)
    assert len(first) + len(rest) - len(expected) < 3  # repeats that fill the last batch
    assert set(rest[:24]) == set(expected[len(first) : len(first) + 24])  # of the first global batch


def test_a_server_that_lists_for_browsers_is_read_by_braces(tars: Path) -> None:
    try:
        with nginx(more="autoindex on;") as other:
            assert other.directory is not None
            (other.directory / "public").symlink_to(tars)
            with pytest.raises(SourceError, match="http cannot list other files") as raised:
                shoal.open(f"{other.root}/public/", index="grow")
            assert "braces or a list" in (raised.value.hint or "")
            stored = shoal.open(f"{other.root}/public/{SHARDS}", index="grow")
            assert repr(stored) == f"<shoal.Dataset: {NUM_SHARDS} tar shards, not indexed yet>"
            assert len(next(iter(stored.shuffle(seed=7, window=WINDOW).batch(8)))["__key__"]) == 8
    except CannotHaveError as error:
        pytest.skip(f"no nginx here: {error}")
