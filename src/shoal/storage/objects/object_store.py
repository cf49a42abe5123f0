"""Objects of S3, Google Cloud Storage and Azure, through obstore.

Only its synchronous calls are used, from any thread: after asynchronous calls, a third of the processes aborted at
their end. A child forked after its parent used obstore would hang at its first call; here it raises `ForkError`.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shoal.errors import ForkError, StorageError
from shoal.storage.objects.object_failures import obstore_failure
from shoal.storage.objects.object_options import ObjectLocation, client_of, location_of
from shoal.storage.objects.signed_ranges import SignedRanges
from shoal.storage.storage_errors import check_range, is_missing
from shoal.storage.store_protocol import (
    Buffer,
    KnownObjects,
    ObjectInfo,
    Store,
    as_one_buffer,
    check_length,
    version_of,
)

_LISTED_AT_A_TIME = 1000
_using_pid: int | None = None  # of the process that has used obstore: this one, or a parent that forked it


class ObjectStore(Store):
    """Store of objects with URLs like ``s3://bucket/key``, ``gs://bucket/key``, ``az://container/path``.

    Credentials come from ``storage_options``, else from the places known to the tools of each cloud. Each process
    creates a client for a bucket when it first needs one.
    """

    def __init__(self, storage_options: Mapping[str, Any] | None = None) -> None:
        self._options = dict(storage_options or {})
        self._known = KnownObjects()
        self._clients: dict[tuple[str, str, str], Any] = {}
        self._answered: set[str] = set()  # buckets whose server accepted our credentials
        self._reached: set[str] = set()  # buckets whose server answered at all
        self._only_listed: set[str] = set()  # listed objects that were not read since
        self._signed = SignedRanges(self._options)

    def __repr__(self) -> str:
        return "ObjectStore()"

    def __reduce__(self) -> tuple[object, ...]:
        return ObjectStore, (self._options,), {"_answered": self._answered, "_reached": self._reached}

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        """Return exactly the bytes ``[first_byte, end_byte)``, by one request.

        Raises `StorageError` if other bytes or no bytes came (``transient`` says if a retry may help), and `ForkError`
        in a forked child of a process that has read through obstore.
        """
        data = self._read(path, first_byte, end_byte)
        return data if type(data) is bytes else bytes(data)

    def fill(self, path: str, first_byte: int, buffer: memoryview) -> None:
        """Fill a buffer with the bytes from ``first_byte`` on; raises the errors of `read_range`."""
        data = self._read(path, first_byte, first_byte + len(buffer), buffer)
        if data is not buffer:
            buffer[:] = memoryview(data)

    def _read(self, path: str, first_byte: int, end_byte: int, buffer: memoryview | None = None) -> Any:
        """Return the bytes of a range as bytes or obstore's buffer; or ``buffer``, if they are in it."""
        check_range(path, first_byte, end_byte)
        if first_byte == end_byte:
            return b""
        if self._known.get(path) is not None and path not in self._only_listed:
            _, client, location = self._client(path)
            part = self._signed.read(location, client, path, first_byte, end_byte, buffer)
            if part is not None:
                self._known.check(path, part.num_bytes, part.etag, part.modified)
                self._answered.add(location.bucket)
                return part.body if buffer is None else buffer
        verb = f"read bytes [{first_byte}, {end_byte}) of"
        with self._request(path, verb) as (obstore, client, location):
            result = obstore.get(client, location.key, options={"range": (first_byte, end_byte)})
            info = self._info(path, result.meta)
            first, end = result.range
            check_length(path, first_byte, end_byte, end - first, info.num_bytes)
            data = result.bytes()
        self._answered.add(location.bucket)
        check_length(path, first_byte, end_byte, len(data), info.num_bytes)
        return data

    def stat(self, path: str) -> ObjectInfo:
        """Return size and version (etag) of an object; makes a request unless it is known already."""
        if known := self._known.get(path):
            return known
        with self._request(path, "look at") as (obstore, client, location):
            meta = obstore.head(client, location.key)
        self._answered.add(location.bucket)
        return self._info(path, meta)

    def stat_again(self, path: str) -> ObjectInfo:
        """`stat` with a new request."""
        self._known.forget(path)
        return self.stat(path)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield every object below the directory ``prefix`` in the order of the store: by path, except for S3 Express.

        One request for each 1000 objects, as the consumer needs them.
        """
        with self._request(prefix, "list") as (obstore, client, location):
            directory = location.key.rstrip("/")
            stream = obstore.list(client, prefix=directory or None, chunk_size=_LISTED_AT_A_TIME)
            for meta in _without_directories(meta for page in stream for meta in page):
                self._answered.add(location.bucket)
                if not directory or meta["path"].startswith(f"{directory}/"):
                    path = f"{location.root}/{meta['path']}"
                    if self._known.get(path) is None:
                        self._only_listed.add(path)
                    yield self._known.check(path, meta["size"], meta["e_tag"], meta["last_modified"])

    def put(self, path: str, data: Buffer | Sequence[Buffer]) -> None:
        """Write the whole object: it exists on return, and not after an error."""
        with self._request(path, "write") as (obstore, client, location):
            obstore.put(client, location.key, as_one_buffer(data))
        self._known.forget(path)

    def put_if(self, path: str, data: Buffer | Sequence[Buffer], *, replaces: ObjectInfo | None) -> bool:
        """Write the whole object if the stored object is ``replaces`` (None: no object is stored); True if written.

        A server that silently ignores conditions writes in any case. Raises `StorageError`, with errno ENOTSUP if the
        store cannot compare.
        """
        obstore, client, location = self._client(path)
        try:
            mode: Any = "create"
            if replaces is not None:
                there = obstore.head(client, location.key)  # for the server's spelling of the etag, and the version
                if version_of(there["e_tag"]) != replaces.version or not replaces.version:
                    self._known.forget(path)
                    return False
                mode = {name: there[name] for name in ("e_tag", "version") if there[name] is not None}
            obstore.put(client, location.key, as_one_buffer(data), mode=mode)
        except BaseException as error:  # noqa: BLE001  # see `_request`
            failure = self._failure(error, path, location, "write")
            self._known.forget(path)
            if isinstance(failure, StorageError):
                was_written_meanwhile = failure.errno == errno.EEXIST
                if was_written_meanwhile or (replaces is not None and is_missing(failure)):
                    return False
            raise failure from None
        self._known.forget(path)
        return True

    def delete(self, path: str) -> None:
        """Remove the object, if it exists."""
        try:
            with self._request(path, "remove") as (obstore, client, location):
                obstore.delete(client, location.key)
        except StorageError as error:
            if not is_missing(error):
                raise
        self._known.forget(path)

    def close(self) -> None:
        """Drop the clients and connections, and forget sizes and versions of objects."""
        self._clients.clear()
        self._signed.close()
        self._known.forget()
        self._only_listed.clear()

    @contextlib.contextmanager
    def _request(self, path: str, verb: str) -> Iterator[tuple[Any, Any, ObjectLocation]]:
        """Yield obstore, a client and the location of an object; translate errors of obstore."""
        obstore, client, location = self._client(path)
        try:
            yield obstore, client, location
        except BaseException as error:  # noqa: BLE001  # other errors are raised unchanged
            raise self._failure(error, path, location, verb) from None

    def _client(self, path: str) -> tuple[Any, Any, ObjectLocation]:
        global _using_pid  # noqa: PLW0603  # state of this process
        location = location_of(path)
        key = (location.kind, location.bucket, location.account)
        client = self._clients.get(key)
        # Two threads may both create a client; both use the first one stored.
        client = client or self._clients.setdefault(key, client_of(location, self._options))
        if _using_pid not in (None, os.getpid()):
            msg = f"{path}: a parent of this forked process has read such a store, and reads would hang here"
            hint = (
                'start fresh workers: multiprocessing_context="forkserver" (as shoal.torch.DataLoader does) or "spawn"'
            )
            raise ForkError(msg, hint=hint)
        _using_pid = os.getpid()
        import obstore  # noqa: PLC0415  # optional

        return obstore, client, location

    def _info(self, path: str, meta: Mapping[str, Any]) -> ObjectInfo:
        """Return the object that a response describes; its first response may have another version than the listing.

        For multipart uploads, some stores use one kind of etag in listings and another in responses. So if the first
        response differs, the object is listed again: if its listing has not changed, the object has not changed.
        """
        if path in self._only_listed:
            self._only_listed.discard(path)
            known = self._known.get(path)
            if known is not None and known.version != version_of(meta["e_tag"]) and self._is_still_listed(known):
                self._known.forget(path)
        return self._known.check(path, meta["size"], meta["e_tag"], meta["last_modified"])

    def _is_still_listed(self, info: ObjectInfo) -> bool:
        """Return True if the store still lists the object with this size and version."""
        obstore, client, location = self._client(info.path)
        directory, _, _ = location.key.rpartition("/")
        # Start the listing just before the object, at its name without the last letter.
        stream = obstore.list(client, prefix=directory or None, offset=location.key[:-1], chunk_size=_LISTED_AT_A_TIME)
        for meta in next(iter(stream), []):
            if meta["path"] == location.key:
                return (meta["size"], version_of(meta["e_tag"])) == (info.num_bytes, info.version)
        return False

    def _failure(self, error: BaseException, path: str, location: ObjectLocation, verb: str) -> BaseException:
        answered = location.bucket in self._answered
        failure = obstore_failure(error, path, self._options, verb=verb, answered=answered)
        if isinstance(failure, StorageError):
            if not failure.unmet:
                self._reached.add(location.bucket)
            failure.unmet = not answered and location.bucket not in self._reached
        return failure


def _without_directories(metas: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Drop empty objects "directory/", which some tools write for each directory; obstore strips the slash."""
    last = next(metas, None)
    for meta in metas:
        if last is not None and (last["size"] or not meta["path"].startswith(f"{last['path']}/")):
            yield last
        last = meta
    if last is not None:
        yield last
