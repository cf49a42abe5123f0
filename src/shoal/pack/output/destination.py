"""Output of a packing: its shards, and finally the index, which is the one commit: readers trust nothing else.

A packing replaces no object, so late processes, also of older packings, cannot change a committed dataset. Until the
commit, a `Journal` lies beside the shards: the same command continues a killed packing, and any machine can make any
shard. An output without an index is unfinished.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from shoal.errors import IndexFileError, StorageError, UsageError
from shoal.figures import counted
from shoal.formats.metadata.manifests import MANIFEST_NAME
from shoal.index.table import Index
from shoal.indexing.index_files import load_index, was_left_by_opening
from shoal.pack.output.journal import Journal
from shoal.pack.output.refusals import failures_in, manifest_there, other_plan, refuse_shards, taken, unprotected
from shoal.storage.cache_directory import expand_home
from shoal.storage.files.atomic_writes import UnfinishedObject, begin_object
from shoal.storage.files.machine_locks import InheritedLock
from shoal.storage.retry import with_retries
from shoal.storage.sources.local_patterns import local_path
from shoal.storage.sources.shard_selection import INDEX_NAME
from shoal.storage.stat_many import stat_all
from shoal.storage.store_of_url import open_store
from shoal.storage.store_protocol import Store
from shoal.storage.urls import join, object_path, scheme_of, without_secrets

_WAIT_SECONDS = 20.0
_READ_BYTES = 8 << 20

DIGEST_BYTES = 16
"""Bytes of a shard's SHA-256 digest; hardware instructions make it twice as fast as blake2b."""


class Output:
    """The directory, or the prefix of an object store, of one packing. Can be pickled for workers.

    ``plan`` is the digest of the request: only an equal request may continue an unfinished output. Workers share the
    lock of their parent.

    Examples
    --------
    >>> shard, out = shoal.pack.Shard("a.jsonl", "jsonl"), shoal.pack.Output("packed", plan="texts, version 1")
    >>> shoal.pack.pack_shard(shard, [{"text": "a cat"}], out).num_samples
    1
    """

    def __init__(
        self, url: str | os.PathLike[str], *, plan: str, storage_options: Mapping[str, Any] | None = None
    ) -> None:
        text = local_path(os.fspath(url))
        if scheme_of(text) in ("http", "https"):
            msg = f"{without_secrets(text)}: shards cannot be written over http"
            raise UsageError(msg, hint="write them into a directory that a server serves, or an object store: s3://...")
        self.url = object_path(text).rstrip("/") if scheme_of(text) else str(Path(expand_home(text)).absolute())
        self.plan = plan
        self._options = dict(storage_options or {})
        self.store: Store = with_retries(open_store(text, self._options or None), self._options)
        self.journal = Journal(self.url, plan=plan, store=self.store)
        self._lock: InheritedLock | None = None
        self.may_withdraw = False  # other machines might just commit a shard that this one removes

    def __reduce__(self) -> tuple[object, ...]:
        make = partial(Output, plan=self.plan, storage_options=self._options)
        return make, (self.url,), {"may_withdraw": self.may_withdraw}

    @property
    def lock_descriptor(self) -> int | None:
        """File descriptor of the lock. Workers inherit it, so the lock is held until the last of them ends."""
        return self._lock.descriptor if self._lock is not None else None

    def begin(
        self, *, suffix: str, settings: Mapping[str, Any], may_skip: bool = True, shared: bool = False
    ) -> Index | None:
        """Check that this packing may write here, and continue an earlier run; return the index if all is done.

        ``suffix`` ends the names of shards; ``settings`` has the requested settings in readable form. A packing without
        ``may_skip`` refuses a finished dataset that lacks inputs. A ``shared`` packing needs a store that can refuse to
        replace an object, since engines run units without a lock and maybe twice.

        Raises `UsageError` if there are shards already, another packing is unfinished, or the store of a shared packing
        gives no protection; `StorageError` if the output cannot be written, or another process is writing to it.
        """
        if not scheme_of(self.url):
            if not self.journal.exists() and (done := self._finished_index()) is not None:
                # No process is packing here. Write nothing: the directory may be read-only.
                self._check_whole(done, may_skip=may_skip)
                return done
            self.lock()
        try:
            finished = self._begin(suffix, settings, shared=shared)
            if finished is not None:
                self._check_whole(finished, may_skip=may_skip)
        except BaseException:
            self.release()
            raise
        if finished is not None:
            self.release()
        return finished

    def _check_whole(self, finished: Index, *, may_skip: bool) -> None:
        """Check that the shards of the finished dataset still exist, and that this packing may return the dataset."""
        listed = self._listed(self.url)
        sizes = zip(finished.shard_names, finished.shard_bytes.tolist(), strict=True)
        if lost := [name for name, num_bytes in sizes if listed.get(join(self.url, name)) != num_bytes]:
            which = f"{lost[0]} is" if len(lost) == 1 else f"{lost[0]} and {counted(len(lost) - 1, 'other')} are"
            msg = f"{without_secrets(self.url)}: this was finished, but {which} missing now, or of another size"
            raise UsageError(msg, hint="restore them, `shoal verify` lists all; or pack into another directory")
        if not may_skip and (skipped := failures_in(finished.metadata.get("skipped", ()))):
            msg = f"{without_secrets(self.url)}: there is a dataset already, made without "
            msg += counted(len(skipped), "input")
            hint = f"the first of them is {skipped[0][0]}; pack into another directory, or use the existing dataset"
            raise UsageError(msg, hint=hint)

    def _begin(self, suffix: str, settings: Mapping[str, Any], *, shared: bool) -> Index | None:
        finished = self._finished_index()
        if finished is not None:
            self.journal.clear()
            return finished
        known = self.journal.planned()
        is_local, is_begun = not scheme_of(self.url), known is not None and known.get("plan") == self.plan
        if known is None:
            try:
                refuse_shards(self.url, self._listed(self.url), suffix=suffix)
                if self.store.find(join(self.url, MANIFEST_NAME)) is not None:
                    raise manifest_there(self.url)
            except UsageError:
                # Another machine may have begun just now, or finished.
                if self.store.find(join(self.url, INDEX_NAME)) is not None or self.journal.planned() is not None:
                    return self._begin(suffix, settings, shared=shared)
                if is_local:
                    self.journal.clear()
                raise
            known = {}
        elif not is_begun and (not is_local or self.journal.has_progress([*self._listed(self.url)])):
            # The plan of a dead process that only began a packing may be replaced.
            raise other_plan(self.url, known.get("asked"), settings)
        was_shared = is_begun and bool(known.get("shared"))
        self.may_withdraw = is_local and not shared and not was_shared
        self.journal.remove_abandoned(is_alone=self.may_withdraw)
        is_recorded = is_begun and (was_shared or not shared or not is_local)
        if not is_recorded:
            is_first = self.journal.begin(settings, shared=shared, replaces=is_local)
            self.store.close()  # drops cached facts about absent objects
            if not is_first:
                return self._begin(suffix, settings, shared=shared)
            try:
                finished = self._finished_index()
            except UsageError:
                self.journal.clear()
                raise
            if finished is not None:  # another machine was faster
                self.journal.clear()
                return finished
        if shared and (reason := self.journal.lacks()):
            if not is_begun:
                self.journal.clear()
            raise unprotected(self.url, reason)
        return None

    def begin_shard(self, name: str) -> UnfinishedObject:
        """Begin a new shard, which appears when it is finished."""
        return begin_object(join(self.url, name), store=self.store, scratch=self.journal.directory)

    def publish(self, unfinished: UnfinishedObject, part: Index) -> None:
        """Make a complete shard visible; an existing shard of the same name and bytes stays.

        Raises `UsageError` if a shard of this name has other bytes.
        """
        name, digest = part.shard_names[0], str(part.metadata["digest"])
        path = join(self.url, name)
        self.journal.made(name, digest)
        if unfinished.finish_new():
            return
        self.store.close()  # drops cached facts about absent objects
        present = digest_of(path, self.store)
        if present != digest:
            msg = f"{without_secrets(path)}: a shard of this name exists with other bytes (its digest is "
            msg += f"{present}; the new digest is {digest})"
            hint = "the inputs or the stages differ from run to run; remove the shard if you do not need it"
            raise UsageError(msg, hint=hint)

    def undo(self, name: str, digest: str) -> None:
        """Remove a shard that this job published too late, unless another job has made the same bytes."""
        path = join(self.url, name)
        is_own = self.journal.unmake(name, digest) and self.store.find(path) is not None
        if is_own and digest_of(path, self.store) == digest:
            self.store.delete(path)

    def withdraw(self, part: Index) -> None:
        """Remove a shard of an unfinished packing, to make it again with other inputs."""
        self.journal.withdraw(part)
        self.store.delete(join(self.url, part.shard_names[0]))

    def committed(self) -> Index | None:
        """Return the index if this packing is finished, here or by another machine; None if it is under way.

        Raises `UsageError` if it was never begun here, or another packing has taken its place.
        """
        self.store.close()  # drops cached facts about objects of other machines
        is_under_way = self.journal.is_own()
        # The index alone decides: the machine that writes it removes the plan last.
        path = join(self.url, INDEX_NAME)
        if self.store.find(path) is not None:
            index = load_index(path, store=self.store)
            if index.metadata.get("plan") == self.plan:
                return index
        if is_under_way:
            return None
        raise taken(self.url)

    def versions(self, sizes: Mapping[str, int]) -> list[str]:
        """Return the store's versions of shards, by name and size.

        Raises `StorageError` if a shard is gone, or has another size.
        """
        self.store.close()  # drops cached facts about shards of other processes
        infos = stat_all([join(self.url, name) for name in sizes], self.store)
        for info, num_bytes in zip(infos, sizes.values(), strict=True):
            if info.num_bytes != num_bytes:
                msg = f"{without_secrets(info.path)}: the shard has {info.num_bytes} bytes, not {num_bytes}"
                raise StorageError(msg, hint="does another program write here? nothing was committed")
        return [info.version for info in infos]

    def put(self, name: str, data: bytes) -> None:
        """Write a file beside the shards; it replaces only an earlier file of this packing.

        Raises `UsageError` if there is another file of this name.
        """
        digest = hashlib.sha256(data).hexdigest()[: 2 * DIGEST_BYTES]
        path, replaces = join(self.url, name), None
        self.journal.made(name, digest)
        while True:
            unfinished = self.begin_shard(name)
            unfinished.write([data])
            if unfinished.finish_new(replaces=replaces):
                return
            self.store.close()  # drops cached facts about absent objects
            replaces = self.store.find(path)
            if replaces is None:
                continue
            present = digest_of(path, self.store)
            if present == digest:
                return
            # An earlier attempt to finish may have died between this file and the index, and have skipped other inputs.
            if present not in self.journal.made_by_name(self.journal.records()).get(name, ()):
                msg = f"{without_secrets(path)}: a file of this name exists that this packing did not write"
                raise UsageError(msg, hint="move it, then finish again; nothing was committed")

    def commit(self, write: Callable[[UnfinishedObject], str], sizes: Mapping[str, int]) -> str:
        """Write the index by ``write``, and return its result: the dataset exists from then on.

        ``sizes`` has the bytes of each shard. Raises `UsageError` if another packing has written its own index
        meanwhile, or has taken this destination.
        """
        path, replaces = join(self.url, INDEX_NAME), None
        while True:
            unfinished = self.begin_shard(INDEX_NAME)
            try:
                written = write(unfinished)
                self.store.close()  # drops cached facts about absent objects
                if self._is_committed():
                    unfinished.abandon()
                    break
            except BaseException:
                unfinished.abandon()
                raise
            if unfinished.finish_new(replaces=replaces):
                self._check_committed(sizes)
                break
            self.store.close()
            replaces = self.store.find(path)
            if replaces is not None and not self._is_in_the_way(path):
                break
        self.journal.clear()
        return written

    def _check_committed(self, sizes: Mapping[str, int]) -> None:
        """Remove the index that was just written, if the job was removed in the moment before."""
        self.store.close()
        known = self.journal.planned()
        if known is not None and known.get("plan") == self.plan:
            return
        if known is None:
            with suppress(StorageError):
                self.versions(sizes)
                return  # another machine has seen this commit, and removed the records
        self.store.delete(join(self.url, INDEX_NAME))
        raise taken(self.url)

    def _is_committed(self) -> bool:
        """Return True if another machine has committed this packing; raise if another packing took its place."""
        if self.journal.is_own():
            return False
        path = join(self.url, INDEX_NAME)
        if self.store.find(path) is None or self._is_in_the_way(path):
            raise taken(self.url)
        return True

    def discard(self, names: Sequence[str]) -> None:
        """Remove empty shards and all records of the packing, as if it had not begun."""
        for name in names:
            self.store.delete(join(self.url, name))
        self.journal.clear()

    def _is_in_the_way(self, path: str) -> bool:
        """Return True if the index must be replaced, False if it is our own; raise if it is another packing's."""
        index = load_index(path, store=self.store)
        if index.metadata.get("plan") == self.plan:
            return False
        if was_left_by_opening(index):
            return True
        msg = f"{without_secrets(path)}: another packing has written this file during this packing"
        raise UsageError(msg, hint="pack again, into another directory: shards of both may have the same names")

    def index(self) -> Index:
        """Return the index of the finished dataset."""
        self.store.close()
        return load_index(join(self.url, INDEX_NAME), store=self.store)

    def lock(self) -> None:
        """Lock a local output against other processes of this machine; `StorageError` if one is packing here."""
        if not scheme_of(self.url):
            self._lock = InheritedLock(self.journal.lock_path, wait_seconds=_WAIT_SECONDS)

    def release(self) -> None:
        """Release the lock, so that other jobs can pack here."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _finished_index(self) -> Index | None:
        """Return the index of this packing, None if there is none; raise if there is another index."""
        path = join(self.url, INDEX_NAME)
        if self.store.find(path) is None:
            return None
        with suppress(IndexFileError):
            index = load_index(path, store=self.store)
            if index.metadata.get("plan") == self.plan:
                return index
            if was_left_by_opening(index) and self.journal.planned() is not None:
                return None  # the unfinished output was opened as a dataset
        if self.journal.planned() is None:
            with suppress(StorageError):
                self.journal.clear()
        msg = f"{without_secrets(self.url)}: there is a dataset already, and this packing would write another one"
        raise UsageError(msg, hint="pack into another directory, or remove the dataset")

    def _listed(self, directory: str) -> Mapping[str, int]:
        """Return the size of every object below a directory, by path."""
        if not scheme_of(directory) and not Path(directory).is_dir():
            return {}
        self.store.close()  # some stores list versions that differ from the version of a single request
        sizes = {info.path: info.num_bytes for info in self.store.list(directory)}
        self.store.close()
        return sizes


def digest_of(path: str, store: Store) -> str:
    """Return the digest of an object, as in `ShardSummary`; 8 MiB at a time."""
    digest = hashlib.sha256()
    num_bytes = store.stat(path).num_bytes
    for first in range(0, num_bytes, _READ_BYTES):
        digest.update(store.read_range(path, first, min(num_bytes, first + _READ_BYTES)))
    return digest.hexdigest()[: 2 * DIGEST_BYTES]
