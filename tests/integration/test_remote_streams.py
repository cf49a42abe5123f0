"""Streams from real servers: what they deliver is what the files on this machine hold, and what is wrong is said."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.environments import CannotHaveError
from tests.integration.places import NUM_SHARDS, SAMPLES_PER_SHARD, Dataset
from tests.integration.servers import nginx

import shoal
from shoal.cli.main import main
from shoal.errors import ShoalError, StorageError

pytestmark = pytest.mark.usefixtures("http_client")

NUM_SAMPLES = NUM_SHARDS * SAMPLES_PER_SHARD


def delivered(samples: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Ids, keys and bytes, in order."""
    return [(sample["__id__"], sample["__key__"], sample["bin"], sample["cls"]) for sample in samples]


def shuffled(ds: shoal.Dataset) -> shoal.Dataset:
    return ds.shuffle(seed=5, window="4MiB").with_ids()


def test_an_epoch_is_the_same_as_from_files(remote: Dataset, shards: Path) -> None:
    near, far = shuffled(shoal.open(shards)), shuffled(remote.open(remote.all_shards))
    assert str(far.resolved) == str(near.resolved)
    expected = delivered(near)
    assert len(expected) == NUM_SAMPLES
    assert delivered(far) == expected
    assert far.stats()["num_retries"] == 0


@pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")  # the window suits one rank
def test_a_state_goes_from_files_to_a_server_and_on_to_more_ranks(remote: Dataset, shards: Path) -> None:
    near = shuffled(shoal.open(shards)).batch(10)
    iterator = iter(near)
    first = [id_ for _ in range(20) for id_ in next(iterator)["__id__"].tolist()]
    state = json.loads(json.dumps(iterator.state_dict()))
    rest: list[int] = []
    for rank in range(3):
        far = shuffled(remote.open(remote.all_shards)).partition(rank=rank, world_size=3).batch(10)
        far.load_state_dict(state)
        rest.extend(id_ for batch in far for id_ in batch["__id__"].tolist())
    assert sorted(first + rest) == list(range(NUM_SAMPLES))


def test_directories_and_globs_are_listed(bucket: Dataset, shards: Path) -> None:
    everything = list(range(NUM_SAMPLES))
    bucket.put("readme.txt", b"not a shard")
    for source, ids in (
        ("", everything),
        ("*.tar", everything),
        ("train-00000[01].tar", everything[: 2 * SAMPLES_PER_SHARD]),
        ("train-{000000,000004}.tar", everything[: 2 * SAMPLES_PER_SHARD]),
    ):
        ds = bucket.open(source)
        assert [sample["__id__"] for sample in ds.with_ids()] == ids, source
    with pytest.raises(ShoalError, match="valid-"):
        bucket.open("valid-*.tar")


def test_a_missing_shard_is_named(remote: Dataset) -> None:
    with pytest.raises(ShoalError, match=r"train-000005\.tar"):
        remote.open("train-{000003..000005}.tar")


def test_opening_publishes_an_index_where_that_is_asked_for(bucket: Dataset, cache: Path) -> None:
    path = f"{bucket.root}/shoal.index"
    assert bucket.open(publish_index=True).stream.opened.index_path == path
    shutil.rmtree(cache, ignore_errors=True)
    ds = bucket.open()
    assert ds.stream.opened.index_path == path
    assert sum(1 for _ in shuffled(ds)) == NUM_SAMPLES
    assert [sample["__id__"] for sample in bucket.open("shoal.index").with_ids()] == list(range(NUM_SAMPLES))


def test_the_command_line_indexes_with_checksums(bucket: Dataset, capfd: pytest.CaptureFixture[str]) -> None:
    given = [f"--storage-option={name}={value}" for name, value in bucket.server.options.items()]
    assert main(["index", f"{bucket.root}/", "--checksum", *given]) == 0
    assert bucket.open().stream.opened.index.extent_checksum is not None
    printed = "".join(capfd.readouterr())
    for name in ("secret_access_key", "account_key"):
        assert bucket.server.options.get(name, "none") not in printed


def test_wrong_credentials_are_a_clear_error_without_them(bucket: Dataset) -> None:
    wrong = bucket.server.wrong_options
    with pytest.raises(StorageError) as raised:
        bucket.open(storage_options=wrong)
    text = f"{raised.value} {raised.value!r} {raised.value.__cause__!r} {raised.value.__context__!r}"
    assert bucket.root in text
    assert raised.value.hint
    assert not raised.value.transient
    for name in ("secret_access_key", "account_key"):
        if name in wrong:
            assert wrong[name] not in text


@pytest.mark.parametrize("remote", ["nginx"], indirect=True)
def test_a_password_for_http(remote: Dataset, shards: Path) -> None:
    place = remote.server.directory
    assert place is not None
    (place / "private" / "a.tar").write_bytes((shards / "train-000000.tar").read_bytes())
    url = f"{remote.server.root}/private/a.tar"
    with pytest.raises(StorageError, match=r"401.*private/a\.tar|private/a\.tar.*401"):
        shoal.open(url)
    with pytest.raises(StorageError) as raised:
        shoal.open(url.replace("http://", "http://reader:not-the-pass@"))
    assert "not-the-pass" not in str(raised.value)
    ds = shoal.open(url.replace("http://", "http://reader:pass-of-the-test@"))
    assert len(list(ds)) == SAMPLES_PER_SHARD


def test_a_shard_written_again_during_a_run_is_an_error(remote: Dataset, shards: Path) -> None:
    ds = remote.open(remote.all_shards).reading(deadline=20).shuffle(seed=1, window="512KiB").with_ids()
    iterator = iter(ds)
    before = [next(iterator)["__id__"] for _ in range(3)]
    for path in sorted(shards.iterdir()):
        data = bytearray(path.read_bytes())
        data[600] ^= 1  # inside the first sample: the same length, another etag
        remote.put(path.name, bytes(data))
    with pytest.raises(StorageError, match="changed"):
        before.extend(sample["__id__"] for sample in iterator)
    assert before == ds.ids(stop=len(before)).tolist()


def test_short_processes_that_stream_and_exit_return_0(remote: Dataset, tmp_path: Path) -> None:
    script = tmp_path / "short.py"
    script.write_text(
        "import json, sys, shoal\n"
        "url, options, num = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])\n"
        "for number, _ in enumerate(shoal.open(url, storage_options=options).shuffle(seed=1, window='1MiB')):\n"
        "    if number == num:\n"
        "        break\n"
    )
    remote.open(remote.all_shards)  # the index, once
    options = json.dumps(remote.server.options)
    for number in range(4):
        command = [sys.executable, str(script), f"{remote.root}/{remote.all_shards}", options, str(number * 50)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        said = [line for line in done.stderr.splitlines() if not line.startswith("http is read by")]
        assert (done.returncode, said) == (0, [])


def test_shards_packed_here_and_served_by_nginx_are_fetched_once(
    shards: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    try:
        with nginx() as server:
            assert server.directory is not None
            packed = shutil.copytree(shards, server.directory / "packed", copy_function=shutil.copyfile)
            assert main(["index", str(packed), "--checksum"]) == 0
            ds = shoal.open(f"{server.root}/packed/shoal.index").shuffle(seed=1)
            assert sum(1 for _ in ds) == NUM_SAMPLES
            num_bytes = sum(path.stat().st_size for path in packed.glob("*.tar"))
            assert ds.stats()["requested_bytes"] < 1.1 * num_bytes
    except CannotHaveError as error:
        pytest.skip(f"no nginx here: {error}")
    assert "differ" not in caplog.text
