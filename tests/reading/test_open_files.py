"""Streams of local files leave descriptors to the rest of the process."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.samples import write_tar_shards

import shoal
from shoal.errors import UsageError

NUM_SHARDS = 90
LIMIT = 96


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("many") / "data"
    write_tar_shards(directory, num_shards=NUM_SHARDS, samples_per_shard=4)
    return directory


@contextlib.contextmanager
def soft_limit(limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def shards_open(data: Path) -> int:
    """How many descriptors of this process are of these shards."""
    count = 0
    for name in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            count += str(name.readlink()).startswith(str(data))
    return count


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counted by /proc")
@pytest.mark.parametrize("order", ["window", pytest.param("full", marks=pytest.mark.drill)])
def test_at_most_half_of_the_descriptors_are_taken(data: Path, order: str) -> None:
    # In a process of its own: what other tests left open would count against the limit.
    script = f"from tests.reading.test_open_files import take_descriptors; take_descriptors({str(data)!r}, {order!r})"
    home = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(home), str(home / "src")])}
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr


def take_descriptors(data: str, order: str) -> None:
    """Stream twice at once within a small limit, and then open files as a user would."""
    with soft_limit(LIMIT):
        several = [shoal.open(data).shuffle(order, seed=seed) for seed in range(2)]
        most = 0
        for samples in zip(*several, strict=True):
            assert len(samples) == 2
            most = max(most, shards_open(Path(data)))
        assert 8 < most <= LIMIT // 2, most
        with contextlib.ExitStack() as own:  # as many of the user's own
            for _ in range(LIMIT // 4):
                own.enter_context(Path(os.devnull).open())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counted by /proc")
def test_fewer_are_taken_when_that_is_asked(data: Path) -> None:
    before = shards_open(data)
    ds = shoal.open(data, storage_options={"max_open_files": 8}).shuffle("full", seed=1)
    assert all(shards_open(data) - before <= 8 for _ in ds)


@pytest.mark.parametrize("wrong", [0, -1, "many", True, 1.5])
def test_a_number_of_files_is_asked_for(data: Path, wrong: object) -> None:
    with pytest.raises(UsageError, match="max_open_files is a number of files"):
        shoal.open(data, storage_options={"max_open_files": wrong})
