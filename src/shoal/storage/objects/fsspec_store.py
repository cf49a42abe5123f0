"""Store for any filesystem of fsspec: passed by the user, or known to fsspec by its scheme (``hf://``)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shoal.errors import ForkError, ShoalError, SourceError, StorageError, UsageError
from shoal.storage.objects.object_failures import scrubbed
from shoal.storage.storage_errors import check_range, status_failure, trimmed
from shoal.storage.store_protocol import Buffer, KnownObjects, ObjectInfo, Store, as_one_buffer, check_length
from shoal.storage.urls import scheme_of, without_secrets

# Keys under which filesystems give the version of an object; the first one present is used.
_TIMES = ("mtime", "LastModified", "last_modified")
_VERSIONS = ("etag", "ETag", "e_tag", "blob_id", "md5Hash", *_TIMES, "created")
# The exceptions of the filesystems' libraries for a connection that was never made.
_NO_CONNECTIONS = {
    "gaierror",
    "ConnectionRefusedError",
    "ClientConnectorError",  # aiohttp
    "EndpointConnectionError",  # botocore
    "ConnectError",  # httpx
    "NewConnectionError",  # urllib3
    "ConnectTimeout",  # requests and httpx
}


class FileSystemStore(Store):
    """Store of objects by URL, read through a filesystem with the interface of fsspec.

    Reads compare only lengths: these filesystems do not report the version of the bytes that they read.
    """

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem
        self._scheme = _scheme_of(filesystem)
        self._made_in = os.getpid()
        self._known = KnownObjects()
        self._has_answered = False

    def __repr__(self) -> str:
        return f"FileSystemStore({self._scheme}://)"

    def __reduce__(self) -> tuple[object, ...]:
        return FileSystemStore, (self._filesystem,), {"_has_answered": self._has_answered}

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        """Return exactly the bytes ``[first_byte, end_byte)``."""
        check_range(path, first_byte, end_byte)
        if first_byte == end_byte:
            return b""
        try:
            data = bytes(self._filesystem.cat_file(self._inside(path), start=first_byte, end=end_byte))
        except Exception as error:  # noqa: BLE001  # filesystems raise what they like
            raise self._failure(error, path, f"read bytes [{first_byte}, {end_byte}) of") from None
        self._has_answered = True
        known = self._known.get(path)
        check_length(path, first_byte, end_byte, len(data), None if known is None else known.num_bytes)
        return data

    def stat(self, path: str) -> ObjectInfo:
        """Return size and version of an object; makes a request unless both are cached."""
        if known := self._known.get(path):
            return known
        try:
            # Some filesystems cache listings for ever.
            self._filesystem.invalidate_cache()
            info = self._filesystem.info(self._inside(path))
        except Exception as error:  # noqa: BLE001  # see `read_range`
            raise self._failure(error, path, "look at") from None
        if info.get("type") == "directory":
            raise _missing(f"could not look at {path}: it is a directory")
        return self._info(path, info)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Return every object below the directory ``prefix``, sorted by path; none if there is no such directory."""
        try:
            self._filesystem.invalidate_cache()
            infos_by_name: Mapping[str, Any] = self._filesystem.find(self._inside(prefix), detail=True)
        except FileNotFoundError:
            return iter([])
        except Exception as error:  # noqa: BLE001  # see `read_range`
            raise self._failure(error, prefix, "list") from None
        directory = f"{prefix.rstrip('/')}/"
        urls = [name if scheme_of(name) == self._scheme else f"{self._scheme}://{name}" for name in infos_by_name]
        infos = [self._info(url, info) for url, info in zip(urls, infos_by_name.values(), strict=True)]
        return iter(sorted((info for info in infos if info.path.startswith(directory)), key=lambda info: info.path))

    def put(self, path: str, data: Buffer | Sequence[Buffer]) -> None:
        """Write the whole object; the filesystem decides whether a half-written one is visible meanwhile."""
        try:
            self._filesystem.pipe_file(self._inside(path), bytes(as_one_buffer(data)))
        except Exception as error:  # noqa: BLE001  # see `read_range`
            raise self._failure(error, path, "write") from None
        self._known.forget(path)

    def delete(self, path: str) -> None:
        """Remove the object, if it exists."""
        try:
            self._filesystem.rm_file(self._inside(path))
        except FileNotFoundError:
            pass
        except Exception as error:  # noqa: BLE001  # see `read_range`
            raise self._failure(error, path, "remove") from None
        self._known.forget(path)

    def close(self) -> None:
        """Forget sizes and versions of objects; the filesystem is the user's."""
        self._known.forget()

    def _inside(self, path: str) -> Any:
        return self._filesystem._strip_protocol(path)  # noqa: SLF001  # part of fsspec's interface

    def _info(self, path: str, info: Mapping[str, Any]) -> ObjectInfo:
        self._has_answered = True
        version = next((str(info[name]) for name in _VERSIONS if info.get(name)), "")
        if info.get("size") is None:
            msg = f"could not look at {path}: its filesystem does not report its size"
            raise StorageError(msg, hint="use a server that reports the sizes of objects")
        modified = next((info[name] for name in _TIMES if info.get(name)), None)
        return self._known.check(path, int(info["size"]), version, modified)

    def _failure(self, error: Exception, path: str, verb: str) -> Exception:
        if isinstance(error, ShoalError):
            return error
        # Arguments of the constructor, by name or position, may be secrets.
        filesystem = self._filesystem
        by_position = {str(i): value for i, value in enumerate(getattr(filesystem, "storage_args", ()))}
        arguments = {**(getattr(filesystem, "storage_options", None) or {}), **by_position}
        text = trimmed(scrubbed(str(error), arguments))
        msg = f"could not {verb} {without_secrets(path)}: {text or type(error).__name__}"
        if "fork" in text.lower() and os.getpid() != self._made_in:
            hint = 'start fresh workers: multiprocessing_context="forkserver" or "spawn"'
            return ForkError(msg, hint=hint)
        if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
            return _missing(msg)
        status = getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(status, int) and status >= 400:
            return status_failure(status, without_secrets(path), verb=verb, body=text)
        refused = isinstance(error, PermissionError | NotImplementedError | ValueError | TypeError)
        failure = StorageError(msg, hint=f"raised by {type(self._filesystem).__name__}", transient=not refused)
        failure.errno = errno.EACCES if isinstance(error, PermissionError) else None
        kinds = {kind.__name__ for kind in type(error).__mro__}
        failure.unmet = not self._has_answered and bool(kinds & _NO_CONNECTIONS)
        return failure


def filesystem_for(scheme: str, options: Mapping[str, Any]) -> Any | None:
    """Return fsspec's filesystem for ``scheme``; None if fsspec is not installed or has none.

    Raises `UsageError` if the filesystem lacks a library, or does not take the options.
    """
    try:
        import fsspec  # noqa: PLC0415  # optional
    except ImportError:
        return None
    if scheme not in fsspec.available_protocols():
        return None
    try:
        return fsspec.filesystem(scheme, **options)
    except Exception as error:  # noqa: BLE001  # filesystems raise what they like
        msg = f"storage_options for {scheme}://: {trimmed(scrubbed(str(error), options))}"
        raise UsageError(msg, hint=f"this is the message of fsspec's filesystem for {scheme}://") from None


def url_in(filesystem: Any, text: str) -> str:
    """Return the URL of a path in ``filesystem``; a URL is made canonical."""
    scheme = _scheme_of(filesystem)
    name = filesystem._strip_protocol(text) or getattr(filesystem, "root_marker", "")  # noqa: SLF001  # part of fsspec's interface
    return str(name) if scheme_of(name) else f"{scheme}://{name}"


def _scheme_of(filesystem: Any) -> str:
    if not all(hasattr(filesystem, verb) for verb in ("protocol", "cat_file", "info", "find")):
        msg = f"storage_options: filesystem= is {type(filesystem).__name__}, not a filesystem of fsspec"
        raise SourceError(msg, hint="fsspec.filesystem(...) makes one")
    scheme = str(filesystem.protocol if isinstance(filesystem.protocol, str) else filesystem.protocol[0])
    # A "file" URL would be read without the filesystem.
    return "local" if scheme == "file" else scheme


def _missing(msg: str) -> StorageError:
    error = StorageError(msg, hint="check the URL; was it moved or deleted?")
    error.errno = errno.ENOENT
    return error
