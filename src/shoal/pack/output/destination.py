"""Output of a packing: its shards, and finally the index, which is the one commit: readers trust nothing else.

Nothing that a packing publishes replaces anything, so whoever comes late, of this packing or an older one, cannot
change what is committed. Until then its `Journal` lies beside the shards: so the same command continues a killed
packing, any machine can make any shard, and an output without an index is unfinished.
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
from shoal.storage.atomic_writes import UnfinishedObject, begin_object
from shoal.storage.cache_directory import expand_home
from shoal.storage.machine_locks import InheritedLock
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
"""Bytes of the digest of a shard, of SHA-256, which has hardware instructions: half the time of blake2b."""


class Output:
    """A directory, or a prefix of an object store, into which one packing writes.

    ``url`` as everywhere; ``plan`` is the digest of the request: only the same request may continue an unfinished
    output. Can be pickled for workers, which share the lock of the process that began.
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
        self.may_withdraw = False  # only who is alone here may remove a shard: another might just commit it

    def __reduce__(self) -> tuple[object, ...]:
        make = partial(Output, plan=self.plan, storage_options=self._options)
        return make, (self.url,), {"may_withdraw": self.may_withdraw}

    @property
    def lock_descriptor(self) -> int | None:
        """File descriptor of the lock, inherited by workers so that it is held while any of them runs."""
        return self._lock.descriptor if self._lock is not None else None

    def begin(
        self, *, suffix: str, asked: Mapping[str, Any], may_skip: bool = True, shared: bool = False
    ) -> Index | None:
        """Check that this packing may write here, and continue an earlier run of it; returns the index if all is done.

        ``suffix`` is that of its shards, ``asked`` the requested settings in readable form. Unless this packing
        ``may_skip`` inputs, a finished dataset that skipped some is refused. For a packing that is ``shared``, by
        engines that run units without a lock and perhaps twice, the store must be able to refuse to replace an object.

        Raises
        ------
        UsageError
            There are shards already, or another packing is unfinished; or a shared one cannot be protected.
        StorageError
            The output cannot be written, or another process is writing to it.
        """
        if not scheme_of(self.url):
            if not self.journal.exists() and (done := self._finished_index()) is not None:
                # No process is packing here; nothing is written, as the directory may be read-only.
                self._check_whole(done, may_skip=may_skip)
                return done
            self.lock()
        try:
            finished = self._begin(suffix, asked, shared=shared)
            if finished is not None:
                self._check_whole(finished, may_skip=may_skip)
        except BaseException:
            self.release()
            raise
        if finished is not None:
            self.release()
        return finished

    def _check_whole(self, finished: Index, *, may_skip: bool) -> None:
        """Check that the finished dataset is what this packing would make, and that its shards still exist."""
        there = self._listed(self.url)
        sizes = zip(finished.shard_names, finished.shard_bytes.tolist(), strict=True)
        if lost := [name for name, num_bytes in sizes if there.get(join(self.url, name)) != num_bytes]:
            which = f"{lost[0]} is" if len(lost) == 1 else f"{lost[0]} and {counted(len(lost) - 1, 'other')} are"
            msg = f"{without_secrets(self.url)}: this was finished, and {which} missing now, or of another size"
            raise UsageError(msg, hint="restore them, `shoal verify` lists all; or pack into another directory")
        if not may_skip and (skipped := failures_in(finished.metadata.get("skipped", ()))):
            msg = f"{without_secrets(self.url)}: there is a dataset already, made without "
            msg += counted(len(skipped), "input")
            hint = f"the first of them is {skipped[0][0]}; pack into another directory, or take it as it is"
            raise UsageError(msg, hint=hint)

    def _begin(self, suffix: str, asked: Mapping[str, Any], *, shared: bool) -> Index | None:
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
                    return self._begin(suffix, asked, shared=shared)
                if is_local:
                    self.journal.clear()
                raise
            known = {}
        elif not is_begun and (not is_local or self.journal.has_progress([*self._listed(self.url)])):
            # What merely beginning a packing leaves is no reason to keep the plan of a process that is gone.
            raise other_plan(self.url, known.get("asked"), asked)
        was_shared = is_begun and bool(known.get("shared"))
        self.may_withdraw = is_local and not shared and not was_shared
        self.journal.remove_abandoned(is_alone=self.may_withdraw)
        is_recorded = is_begun and (was_shared or not shared or not is_local)
        if not is_recorded:
            is_first = self.journal.begin(asked, shared=shared, replaces=is_local)
            self.store.close()  # drops cached facts about what was not there before
            if not is_first:
                return self._begin(suffix, asked, shared=shared)
            if (finished := self._found_meanwhile()) is not None:
                return finished
        if shared and (reason := self.journal.lacks()):
            if not is_begun:
                self.journal.clear()
            raise unprotected(self.url, reason)
        return None

    def _found_meanwhile(self) -> Index | None:
        """Return the index that another machine wrote while this one began, whose record is then of no use."""
        try:
            finished = self._finished_index()
        except UsageError:
            self.journal.clear()
            raise
        if finished is not None:
            self.journal.clear()
        return finished

    def begin_shard(self, name: str) -> UnfinishedObject:
        """Begin a new shard, which appears when it is finished."""
        return begin_object(join(self.url, name), store=self.store, scratch=self.journal.directory)

    def publish(self, unfinished: UnfinishedObject, part: Index) -> None:
        """Make a complete shard visible; one of the same name and bytes that is there already stays.

        Raises
        ------
        UsageError
            There is a shard of this name with other bytes.
        """
        name, digest = part.shard_names[0], str(part.metadata["digest"])
        path = join(self.url, name)
        self.journal.made(name, digest)
        if unfinished.finish_new():
            return
        self.store.close()  # drops cached facts about what was not there before
        there = digest_of(path, self.store)
        if there != digest:
            msg = f"{without_secrets(path)}: a shard of this name is there already, with other bytes (its digest is "
            msg += f"{there}, and now {digest} came out)"
            hint = "the inputs, or what is made of them, are not the same each time; remove a shard that is of no use"
            raise UsageError(msg, hint=hint)

    def undo(self, name: str, digest: str) -> None:
        """Remove a shard that this job published too late, unless another job here has made the same bytes."""
        path = join(self.url, name)
        is_own = self.journal.unmake(name, digest) and self.store.find(path) is not None
        if is_own and digest_of(path, self.store) == digest:
            self.store.delete(path)

    def withdraw(self, part: Index) -> None:
        """Remove a shard of an unfinished packing, since it is to be made in another way."""
        self.journal.withdraw(part)
        self.store.delete(join(self.url, part.shard_names[0]))

    def committed(self) -> Index | None:
        """Return the index if this packing is finished, here or by another machine; None if it is under way.

        Raises
        ------
        UsageError
            It was never begun here, or is no longer the one that may write here.
        """
        self.store.close()  # drops cached facts about what other machines have written since
        is_under_way = self.journal.is_own()
        # The index alone decides: whoever has written it removes the plan last.
        path = join(self.url, INDEX_NAME)
        if self.store.find(path) is not None:
            index = load_index(path, store=self.store)
            if index.metadata.get("plan") == self.plan:
                return index
        if is_under_way:
            return None
        raise taken(self.url)

    def versions(self, sizes: Mapping[str, int]) -> list[str]:
        """Return the versions that the store reports for these shards, given by name and size.

        Raises
        ------
        StorageError
            A shard is gone, or has another size.
        """
        self.store.close()  # drops cached facts about shards that other processes may have rewritten since
        infos = stat_all([join(self.url, name) for name in sizes], self.store)
        for info, num_bytes in zip(infos, sizes.values(), strict=True):
            if info.num_bytes != num_bytes:
                msg = f"{without_secrets(info.path)}: this has {info.num_bytes} bytes, and {num_bytes} were written"
                raise StorageError(msg, hint="does something else write here? nothing was committed")
        return [info.version for info in infos]

    def put(self, name: str, data: bytes) -> None:
        """Write a file beside the shards; it replaces only what this packing has written under this name.

        Raises
        ------
        UsageError
            There is another file of this name.
        """
        digest = hashlib.sha256(data).hexdigest()[: 2 * DIGEST_BYTES]
        path, replaces = join(self.url, name), None
        self.journal.made(name, digest)
        while True:
            unfinished = self.begin_shard(name)
            unfinished.write([data])
            if unfinished.finish_new(replaces=replaces):
                return
            self.store.close()  # drops cached facts about what was not there before
            replaces = self.store.find(path)
            there = digest if replaces is None else digest_of(path, self.store)
            if replaces is not None and there == digest:
                return
            # An earlier attempt to finish may have died between this file and the index, and have skipped other inputs.
            if there != digest and there not in self.journal.made_by_name(self.journal.records()).get(name, ()):
                msg = f"{without_secrets(path)}: a file of this name is there already, which this packing has not made"
                raise UsageError(msg, hint="move it, then finish again; nothing was committed")

    def commit(self, write: Callable[[UnfinishedObject], str], sizes: Mapping[str, int]) -> str:
        """Write the index, from then on the dataset exists; returns what ``write`` does, which writes its bytes.

        ``sizes`` has the bytes of each shard.

        Raises
        ------
        UsageError
            Another packing has written its own index meanwhile, or has taken this destination.
        """
        path, replaces = join(self.url, INDEX_NAME), None
        while True:
            unfinished = self.begin_shard(INDEX_NAME)
            try:
                written = write(unfinished)
                self.store.close()  # drops cached facts about what was not there before
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
        """Remove the index that was written just now, if the job was removed in the moment before it."""
        self.store.close()
        known = self.journal.planned()
        if known is not None and known.get("plan") == self.plan:
            return
        if known is None:
            with suppress(StorageError):
                self.versions(sizes)
                return  # another machine has seen that this is committed, and removed the records
        self.store.delete(join(self.url, INDEX_NAME))
        raise taken(self.url)

    def _is_committed(self) -> bool:
        """Return True if another machine has committed this packing; `UsageError` if another packing took its place."""
        if self.journal.is_own():
            return False
        path = join(self.url, INDEX_NAME)
        if self.store.find(path) is None or self._is_in_the_way(path):
            raise taken(self.url)
        return True

    def discard(self, names: Sequence[str]) -> None:
        """Remove these empty shards and all records of the packing, as if it had not begun."""
        for name in names:
            self.store.delete(join(self.url, name))
        self.journal.clear()

    def _is_in_the_way(self, path: str) -> bool:
        """Return True if the index there must be replaced, False if it is our own; raise if it is another packing's."""
        index = load_index(path, store=self.store)
        if index.metadata.get("plan") == self.plan:
            return False
        if was_left_by_opening(index):
            return True
        msg = f"{without_secrets(path)}: another packing has written this while this one was under way"
        raise UsageError(msg, hint="pack again, into another directory: shards of both may have the same names")

    def index(self) -> Index:
        """Return the index of the finished dataset."""
        self.store.close()
        return load_index(join(self.url, INDEX_NAME), store=self.store)

    def lock(self) -> None:
        """On a local file system, keep other processes of this machine from packing here; `StorageError` if one is."""
        if not scheme_of(self.url):
            self._lock = InheritedLock(self.journal.lock_path, wait_seconds=_WAIT_SECONDS)

    def release(self) -> None:
        """Release the lock, so that others can pack here."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _finished_index(self) -> Index | None:
        """Return the index if it is what this packing makes, None if there is none; raise if it is another one."""
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
        msg = f"{without_secrets(self.url)}: there is a dataset already, and this would make another one"
        raise UsageError(msg, hint="pack into another directory, or remove what is there")

    def _listed(self, directory: str) -> Mapping[str, int]:
        """Return the size of every object below a directory, by path."""
        if not scheme_of(directory) and not Path(directory).is_dir():
            return {}
        self.store.close()  # some stores list other versions than they tell when asked for one object
        sizes = {info.path: info.num_bytes for info in self.store.list(directory)}
        self.store.close()
        return sizes


def digest_of(path: str, store: Store) -> str:
    """Return the digest of an object, as `ShardSummary` has it; 8 MiB at a time."""
    found = hashlib.sha256()
    num_bytes = store.stat(path).num_bytes
    for first in range(0, num_bytes, _READ_BYTES):
        found.update(store.read_range(path, first, min(num_bytes, first + _READ_BYTES)))
    return found.hexdigest()[: 2 * DIGEST_BYTES]
