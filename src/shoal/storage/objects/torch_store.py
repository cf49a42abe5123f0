"""Objects in the store of torch.distributed, which every process of a job reaches from every machine."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from shoal.errors import StorageError
from shoal.storage.storage_errors import check_range, os_failure
from shoal.storage.store_protocol import Buffer, ObjectInfo, Store, as_one_buffer, check_length

_PIECE_BYTES = 4 << 20  # torch takes values of up to 8 MiB
_PREFIX, _PIECES = "shoal/", "shoal-pieces/"
_REACH_SECONDS = 1.0
_SECONDS = 30.0


class TorchStore(Store):
    """Store of objects with any names in the `torch.distributed.TCPStore` at ``host`` and ``port``.

    They stay in the memory of the serving process: the agent of torchrun's first machine, or rank 0. Each process
    connects on its own. A listing reads the names of all objects. Can be pickled.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._clients: dict[int, Any] = {}  # by process: a forked child must not use the connection of its parent

    def __repr__(self) -> str:
        return f"TorchStore({self.host!r}, {self.port})"

    def __reduce__(self) -> tuple[object, ...]:
        return TorchStore, (self.host, self.port)

    @property
    def url(self) -> str:
        """The URL of this store, a prefix of some names in it."""
        return f"c10d://{self.host}:{self.port}"

    def stat(self, path: str) -> ObjectInfo:
        """Return size and version of an object."""
        info = self.find(path)
        if info is None:
            raise os_failure(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)), path, verb="look at")
        return info

    def find(self, path: str) -> ObjectInfo | None:
        """Return size and version of an object; None if it does not exist."""
        with self._client() as client:
            if not client.check([_PREFIX + path]):
                return None
            return ObjectInfo(path, **json.loads(client.get(_PREFIX + path)))

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        """Return exactly the bytes ``[first_byte, end_byte)``."""
        check_range(path, first_byte, end_byte)
        info = self.stat(path)
        check_length(path, first_byte, end_byte, max(0, min(end_byte, info.num_bytes) - first_byte), info.num_bytes)
        first_piece = first_byte // _PIECE_BYTES
        names = _pieces(info)[first_piece : -(-end_byte // _PIECE_BYTES)]
        with self._client() as client:
            data = b"".join(client.get(name) for name in names)
        begin = first_byte - first_piece * _PIECE_BYTES
        return data[begin : begin + end_byte - first_byte]

    def put(self, path: str, data: Buffer | Sequence[Buffer]) -> None:
        """Write all pieces, and then the object itself."""
        whole = memoryview(as_one_buffer(data)).cast("B")
        version = hashlib.blake2b(whole, digest_size=16, key=hashlib.blake2b(path.encode()).digest()).hexdigest()
        info = ObjectInfo(path, len(whole), version)
        with self._client() as client:
            for number, name in enumerate(_pieces(info)):
                client.set(name, bytes(whole[number * _PIECE_BYTES : (number + 1) * _PIECE_BYTES]))
            client.set(_PREFIX + path, json.dumps({"num_bytes": info.num_bytes, "version": info.version}))

    def first(self, path: str, data: bytes) -> bytes:
        """Return the object that any process was the first to give under ``path``: ``data`` if there is none yet."""
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        self.put(f"{path}/{digest}", data)
        with self._client() as client:
            name = _PREFIX + path + "/first"
            chosen = client.compare_set(name, "", digest).decode()
        whole = f"{path}/{chosen}"
        return data if chosen == digest else self.read_range(whole, 0, self.stat(whole).num_bytes)

    def delete(self, path: str) -> None:
        """Remove the object, if it exists."""
        if (info := self.find(path)) is not None:
            with self._client() as client:
                for name in (_PREFIX + path, *_pieces(info)):
                    client.delete_key(name)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Return every object below the directory ``prefix``, sorted by path."""
        directory = _PREFIX + prefix.rstrip("/") + "/"
        with self._client() as client:
            names = sorted(name for name in client.list_keys() if name.startswith(directory))
        infos = (self.find(name.removeprefix(_PREFIX)) for name in names)
        return iter([info for info in infos if info is not None])

    @contextmanager
    def _client(self) -> Iterator[Any]:
        """Yield the connection of this process; errors of torch become `StorageError`."""
        try:
            if os.getpid() not in self._clients:
                import torch.distributed  # noqa: PLC0415  # takes seconds, unless it is in use already

                store: Any = getattr(torch.distributed, "TCPStore")  # noqa: B009  # mypy finds no such name
                self._clients[os.getpid()] = store(
                    self.host, self.port, timeout=timedelta(seconds=_SECONDS), wait_for_workers=False
                )
            yield self._clients[os.getpid()]
        except RuntimeError as error:  # torch's own errors are of this kind
            msg = f"the store of torch.distributed at {self.host}:{self.port} cannot be used: {error}"
            raise StorageError(msg) from error


def reachable_torch_store(environment: Mapping[str, str] = os.environ) -> TorchStore | None:
    """Return the store that the launcher's variables name; None if nothing listens there, or torch is not in use."""
    host, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if "torch.distributed" not in sys.modules or not host or not port.isdecimal():
        return None
    try:
        socket.create_connection((host, int(port)), timeout=_REACH_SECONDS).close()
    except OSError:
        return None
    return TorchStore(host, int(port))


def _pieces(info: ObjectInfo) -> list[str]:
    """Return the names of an object's values: they depend on its contents, so two writers do not mix values."""
    count = -(-info.num_bytes // _PIECE_BYTES)
    return [f"{_PIECES}{info.version}/{number}" for number in range(count)]
