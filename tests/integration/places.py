"""Shards, and the same shards on a server, put there by something that is not shoal."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.integration.servers import Server, azurite, nginx, swift
from tests.samples import write_tar

import shoal

SERVERS: dict[str, Callable[[], AbstractContextManager[Server]]] = {"azurite": azurite, "nginx": nginx, "swift": swift}
NUM_SHARDS, SAMPLES_PER_SHARD = 5, 120
_PART_BYTES = 5 << 20  # the smallest part of a multipart upload, but for the last
_numbers = itertools.count()


@dataclass(frozen=True)
class Dataset:
    """Shards below the URL ``root``; ``put(name, data)`` writes another object there."""

    kind: str
    root: str
    server: Server
    put: Callable[[str, bytes], None]

    def open(self, source: str = "", **options: Any) -> shoal.Dataset:
        """The dataset of a source below the root: a name, a glob, braces."""
        asked: dict[str, Any] = {"storage_options": self.server.options, **options}
        return shoal.open(f"{self.root}/{source}" if source else self.root, **asked)

    @property
    def all_shards(self) -> str:
        """Braces for all of them."""
        return f"train-{{000000..{NUM_SHARDS - 1:06d}}}.tar"


def write_shards(directory: Path) -> Path:
    """Tars of small samples, of one large one, and one of more than one part of an upload."""
    random = np.random.default_rng(0)
    for shard in range(NUM_SHARDS):
        samples = []
        for number in range(SAMPLES_PER_SHARD):
            key = f"{shard * SAMPLES_PER_SHARD + number:06d}"
            size = 300_000 if number == 7 else int(random.integers(0, 20_000 if shard else 120_000))
            samples.append({"__key__": key.encode(), "bin": random.bytes(size), "cls": str(shard).encode()})
        write_tar(directory / f"train-{shard:06d}.tar", samples)
    return directory


def filled(kind: str, server: Server, shards: Path) -> Dataset:
    """The shards on a server, below a name of their own."""
    name = f"set {next(_numbers)}" if kind != "nginx" else f"set-{next(_numbers)}"
    put = {"azurite": _azure, "nginx": _files, "swift": _s3}[kind](server, name)
    for path in sorted(shards.iterdir()):
        put(path.name, path.read_bytes())
    return Dataset(kind, f"{server.root}/{name}", server, put)


def _files(server: Server, name: str) -> Callable[[str, bytes], None]:
    assert server.directory is not None
    directory = server.directory / name
    directory.mkdir(parents=True)

    def put(key: str, data: bytes) -> None:
        new = directory / f"{key}.new"
        new.write_bytes(data)
        # Etags of nginx are length and time in whole seconds: what is written again within a second looks the same.
        os.utime(new, (1_700_000_000 + next(_numbers),) * 2)
        new.rename(directory / key)

    return put


def _s3(server: Server, name: str) -> Callable[[str, bytes], None]:
    import boto3
    from boto3.s3.transfer import TransferConfig

    client = boto3.client(
        "s3",
        endpoint_url=server.options["endpoint"],
        aws_access_key_id=server.options["access_key_id"],
        aws_secret_access_key=server.options["secret_access_key"],
        region_name=server.options["region"],
    )
    bucket = server.root.removeprefix("s3://")
    if bucket not in [known["Name"] for known in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket=bucket)
    parts = TransferConfig(multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES)

    def put(key: str, data: bytes) -> None:
        client.upload_fileobj(io.BytesIO(data), bucket, f"{name}/{key}", Config=parts)

    return put


def _azure(server: Server, name: str) -> Callable[[str, bytes], None]:
    # By obstore itself: no other client of Azure is in the test environment.
    import obstore
    from obstore.store import AzureStore

    options = {key: value for key, value in server.options.items() if key != "allow_http"}
    # Any: its types know of literal dicts only.
    made: Any = AzureStore
    store = made(server.root.removeprefix("az://"), config=options, client_options={"allow_http": True})

    def put(key: str, data: bytes) -> None:
        obstore.put(store, f"{name}/{key}", data)

    return put
