"""Stores of every kind with something in them, and servers on this machine behind those that need one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from shoal.storage.memory_store import MemoryStore
from shoal.storage.store_of_url import open_store
from shoal.storage.store_protocol import Store
from shoal.testing import RangeServer

KEY, SECRET = "AKIAOFTHETESTS", "secret-of-the-tests"
KINDS = ("memory", "http", "s3", "fsspec")
CAN_LIST = ("memory", "s3", "fsspec")


@dataclass
class Place:
    """Where the objects of a test lie: their URL is ``root`` and a name; ``put`` writes one past every store."""

    kind: str
    root: str
    put: Callable[[str, bytes], None]
    options: dict[str, Any] = field(default_factory=dict)

    def store(self) -> Store:
        return open_store(f"{self.root}/x.tar", self.options)


def s3_options(endpoint: str) -> dict[str, Any]:
    """Credentials for a moto server."""
    return {"access_key_id": KEY, "secret_access_key": SECRET, "region": "us-east-1", "endpoint": endpoint}


@contextmanager
def moto() -> Iterator[str]:
    """The endpoint of an S3 server of this process."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def s3_client(endpoint: str) -> Any:
    """A client of another library, by which tests put objects there."""
    import boto3

    return boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name="us-east-1"
    )


@contextmanager
def place_of_kind(kind: str, name: str, endpoint: str) -> Iterator[Place]:
    """A place of its own for one test."""
    if kind == "memory":
        root = f"memory://{name}"
        yield Place(kind, root, lambda key, data: MemoryStore().put(f"{root}/{key}", data))
    elif kind == "http":
        objects: dict[str, bytes] = {}
        with RangeServer(objects) as server:
            yield Place(kind, f"{server.url}/{name}", lambda key, data: objects.update({f"{name}/{key}": data}))
    elif kind == "s3":
        client = s3_client(endpoint)
        client.create_bucket(Bucket=name)

        def put(key: str, data: bytes) -> None:
            client.put_object(Bucket=name, Key=key, Body=data)

        yield Place(kind, f"s3://{name}", put, s3_options(endpoint))
    else:
        import fsspec

        filesystem = fsspec.filesystem("memory", skip_instance_cache=True)
        options = {"filesystem": filesystem}
        yield Place(kind, f"memory:///{name}", lambda key, data: filesystem.pipe_file(f"/{name}/{key}", data), options)


def torch_server() -> Any:
    """Return a `torch.distributed.TCPStore` that serves as long as it is referenced."""
    import torch.distributed

    return getattr(torch.distributed, "TCPStore")(  # noqa: B009  # mypy finds no such name
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )
