"""Explanations of the system's error numbers for users whose dataset does not open."""

from __future__ import annotations

import errno
import os

from shoal.errors import StorageError

_HINTS = {
    errno.ENOENT: "check the path; was it moved or deleted?",
    errno.ENOTDIR: "a part of the path is a file, not a directory",
    errno.EISDIR: "name a file",
    errno.EACCES: "its permissions, or those of a directory above it, forbid this",
    errno.EPERM: "its permissions, or those of a directory above it, forbid this",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "this file system is mounted read-only",
    errno.EMFILE: "this process may not open more files (see ulimit -n)",
    errno.ENFILE: "this machine has too many files open",
    errno.ESTALE: "the file was removed on the server that it is mounted from",
    errno.EIO: "the disk, or the network that it is mounted over, reports a failure",
    errno.ELOOP: "the links on this path lead in a circle",
    errno.ENAMETOOLONG: "a part of the path is longer than the file system allows",
}


def explained(error: OSError, path: str, *, verb: str) -> StorageError:
    """Return the failure as a `StorageError` that says what was tried on ``path`` and what to check."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    msg = f"could not {verb} {path}: {reason}"
    failure = StorageError(msg, hint=_HINTS.get(error.errno or 0, ""))
    failure.errno = error.errno
    return failure
