"""Objects of S3, Google Cloud Storage and Azure, through obstore.

Only its synchronous calls are used, from whatever thread asks: ending a process after asynchronous ones aborted it in a
third of the runs tried. A child forked after its parent used obstore would wait for ever at its first call, whatever it
calls; here it raises `ForkError` instead.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shoal.errors import ForkError, StorageError
from shoal.storage.http.dates import nanoseconds_of
from shoal.storage.objects.object_failures import cannot_compare, failure, was_written_meanwhile
from shoal.storage.objects.object_options import ObjectPlace, client_of, place_of
from shoal.storage.refusals import is_missing
from shoal.storage.remote_objects import Known, ReadsRanges, check_length, check_range, read_whole, version_of, whole
from shoal.storage.store import Buffer, ObjectInfo, Reader

__all__ = ["ObjectStore"]

_LISTED_AT_A_TIME = 1000


class ObjectStore:
    """Objects by URLs like ``s3://bucket/key``, ``gs://bucket/key``, ``az://container/path``.

    Credentials come from ``storage_options``, else from where the tools of each cloud look for them. A client is made
    for each bucket when it is first needed, and belongs to the process that made it.
    """

    reads_ahead = False

    def __init__(self, storage_options: Mapping[str, Any] | None = None) -> None:
        self._options = dict(storage_options or {})
        self._known = Known()
        self._clients: dict[tuple[str, str, str], Any] = {}
        self._answered: set[str] = set()  # buckets whose server took our credentials
        self._reached: set[str] = set()  # buckets whose server said anything
        self._only_listed: set[str] = set()  # of which nothing was read since they were listed

    def __repr__(self) -> str:
        return "ObjectStore()"

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (self._options, self._answered, self._reached)

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        """Exactly the bytes ``[first_byte, end_byte)``, by one request.

        Raises
        ------
        StorageError
            Anything but these bytes of this object came; ``transient`` says whether asking again may help.
        ForkError
            This is a forked child of a process that has read through obstore.
        """
        return bytes(self._read(path, first_byte, end_byte))

    def fill(self, path: str, first_byte: int, buffer: memoryview) -> None:
        """Fill a buffer with the bytes from ``first_byte`` on; raises what `read_range` would."""
        buffer[:] = memoryview(self._read(path, first_byte, first_byte + len(buffer)))

    def _read(self, path: str, first_byte: int, end_byte: int) -> Any:
        """The bytes of a range, as obstore has them."""
        check_range(path, first_byte, end_byte)
        if first_byte == end_byte:
            return b""
        verb = f"read bytes [{first_byte}, {end_byte}) of"
        client, place = self._client(path)
        try:
            result = _obstore().get(client, place.key, options={"range": (first_byte, end_byte)})
            info = self._met(path, result.meta)
            first, end = result.range
            check_length(path, first_byte, end_byte, end - first, info.num_bytes)
            data = result.bytes()
        except BaseException as error:  # noqa: BLE001  # what is none of the store's is raised on
            raise self._failure(error, path, place, verb=verb) from None
        self._answered.add(place.bucket)
        check_length(path, first_byte, end_byte, len(data), info.num_bytes)
        return data

    def reader(self, path: str) -> Reader:
        """Reads parts of one object, each of which is compared."""
        return ReadsRanges(self, path)

    def advise(self, path: str, first_byte: int, end_byte: int) -> None:
        """Does nothing: nobody reads ahead for us."""

    def stat(self, path: str) -> ObjectInfo:
        """Size and version (etag) of an object; asks, unless it was met before.

        Raises
        ------
        StorageError
            It is not there, or may not be looked at.
        """
        if known := self._known.get(path):
            return known
        client, place = self._client(path)
        try:
            found = _obstore().head(client, place.key)
        except BaseException as error:  # noqa: BLE001  # the same
            raise self._failure(error, path, place, verb="look at") from None
        self._answered.add(place.bucket)
        return self._met(path, found)

    def look_again(self, path: str) -> ObjectInfo:
        """The same as `stat`, asked anew: what was met first may have come from a server that lags."""
        self._known.forget(path)
        return self.stat(path)

    def find(self, path: str) -> ObjectInfo | None:
        """The same, or None where the store says that nothing of that name is there."""
        try:
            return self.stat(path)
        except StorageError as error:
            if is_missing(error):
                return None
            raise

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object below the directory ``prefix``, in the order of the store: by path, but for S3 Express.

        One request for each 1000 objects, made as they are taken.

        Raises
        ------
        StorageError
            The bucket is not there, or may not be listed.
        """
        client, place = self._client(prefix)
        directory = place.key.rstrip("/")
        try:
            stream = _obstore().list(client, prefix=directory or None, chunk_size=_LISTED_AT_A_TIME)
            for meta in _without_directories(meta for found in stream for meta in found):
                self._answered.add(place.bucket)
                if not directory or meta["path"].startswith(f"{directory}/"):
                    path = f"{place.root}/{meta['path']}"
                    if self._known.get(path) is None:
                        self._only_listed.add(path)
                    yield self._remembered(path, meta)
        except BaseException as error:  # noqa: BLE001  # the same
            raise self._failure(error, prefix, place, verb="list") from None

    def put(self, path: str, data: Buffer | Sequence[Buffer]) -> None:
        """Write the whole object: it is there when this returns, and not at all when it raises.

        Raises
        ------
        StorageError
            It could not be written.
        """
        client, place = self._client(path)
        try:
            _obstore().put(client, place.key, whole(data))
        except BaseException as error:  # noqa: BLE001  # the same
            raise self._failure(error, path, place, verb="write") from None
        self._known.forget(path)

    def put_if(self, path: str, data: Buffer | Sequence[Buffer], *, replaces: ObjectInfo | None) -> bool:
        """Write the whole object if the one there is still ``replaces`` (None: if none is); whether it was written.

        A server that does not know conditions, and does not say so, writes in any case.

        Raises
        ------
        StorageError
            It could not be written; with the number ENOTSUP where the store cannot compare.
        """
        client, place = self._client(path)
        try:
            mode: Any = "create"
            if replaces is not None:
                there = _obstore().head(client, place.key)  # for the etag as it is spelt, or what else is compared
                if version_of(there["e_tag"]) != replaces.version or not replaces.version:
                    self._known.forget(path)
                    return False
                mode = {name: there[name] for name in ("e_tag", "version") if there[name] is not None}
            _obstore().put(client, place.key, whole(data), mode=mode)
        except BaseException as error:  # noqa: BLE001  # the same
            said = self._failure(error, path, place, verb="write")
            self._known.forget(path)
            if isinstance(said, StorageError):
                if was_written_meanwhile(error, said) or (replaces is not None and is_missing(said)):
                    return False
                if cannot_compare(error, said):
                    said.errno, said.transient = errno.ENOTSUP, False
            raise said from None
        self._known.forget(path)
        return True

    def delete(self, path: str) -> None:
        """Remove the object, if it is there.

        Raises
        ------
        StorageError
            It could not be removed.
        """
        client, place = self._client(path)
        try:
            _obstore().delete(client, place.key)
        except BaseException as error:  # noqa: BLE001  # the same
            failure_said = self._failure(error, path, place, verb="remove")
            if not (isinstance(failure_said, StorageError) and is_missing(failure_said)):
                raise failure_said from None
        self._known.forget(path)

    def map(self, path: str) -> memoryview:
        """The whole object, read into memory."""
        return read_whole(self, path)

    def close(self) -> None:
        """Let go of the clients, and forget what objects looked like."""
        self._clients.clear()
        self._known.forget()
        self._only_listed.clear()

    def _client(self, path: str) -> tuple[Any, ObjectPlace]:
        place = place_of(path)
        key = (place.kind, place.bucket, place.account)
        client = self._clients.get(key)
        # Two threads may both make one; the first to arrive is used by both.
        client = client or self._clients.setdefault(key, client_of(place, self._options))
        _use(path)
        return client, place

    def _met(self, path: str, meta: Mapping[str, Any]) -> ObjectInfo:
        """What an answer about an object says of it; its first may say another version than the listing did.

        Some stores list what was uploaded in parts with an etag of another kind than they answer with. So where the
        first answer differs, it is asked whether the listing is still what it was: then the object is, too.
        """
        version = version_of(meta["e_tag"])
        if path in self._only_listed:
            self._only_listed.discard(path)
            known = self._known.get(path)
            if known is not None and known.version != version and self._is_still_listed(known):
                self._known.forget(path)
        return self._remembered(path, meta)

    def _remembered(self, path: str, meta: Mapping[str, Any]) -> ObjectInfo:
        modified_ns = None if self._known.get(path) else nanoseconds_of(meta["last_modified"])
        return self._known.met(path, meta["size"], version_of(meta["e_tag"]), modified_ns)

    def _is_still_listed(self, info: ObjectInfo) -> bool:
        """Whether the store lists an object with this very size and version."""
        client, place = self._client(info.path)
        directory, _, _ = place.key.rpartition("/")
        # From just before it: names begin with the same letters but for the last one.
        stream = _obstore().list(client, prefix=directory or None, offset=place.key[:-1], chunk_size=_LISTED_AT_A_TIME)
        for meta in next(iter(stream), []):
            if meta["path"] == place.key:
                return (meta["size"], version_of(meta["e_tag"])) == (info.num_bytes, info.version)
        return False

    def _failure(self, error: BaseException, path: str, place: ObjectPlace, *, verb: str) -> BaseException:
        said = failure(error, path, self._options, verb=verb, answered=place.bucket in self._answered)
        if isinstance(said, StorageError):
            if not said.unmet:
                self._reached.add(place.bucket)
            said.unmet = place.bucket not in self._reached | self._answered
        return said


def _restore(options: Mapping[str, Any], answered: set[str], reached: set[str]) -> ObjectStore:
    store = ObjectStore(options)
    store._answered, store._reached = answered, reached  # noqa: SLF001  # the same module
    return store


def _without_directories(metas: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Some tools write an empty object for each directory, named "directory/"; the slash is lost on the way to here."""
    last = next(metas, None)
    for meta in metas:
        if last is not None and (last["size"] or not meta["path"].startswith(f"{last['path']}/")):
            yield last
        last = meta
    if last is not None:
        yield last


_used = False
_used_before_fork = False


def _after_fork() -> None:
    global _used_before_fork  # noqa: PLW0603  # a fact about this process
    _used_before_fork = _used


os.register_at_fork(after_in_child=_after_fork)


def _use(path: str) -> None:
    global _used  # noqa: PLW0603  # the same
    if _used_before_fork:
        msg = f"{path}: this process was forked from one that had read such a store, and cannot read it: it would hang"
        hint = 'start workers anew: multiprocessing_context="forkserver" (as shoal.torch.DataLoader does) or "spawn"'
        raise ForkError(msg, hint=hint)
    _used = True


def _obstore() -> Any:
    import obstore  # noqa: PLC0415  # optional

    return obstore
