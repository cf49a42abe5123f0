"""Directories that the processes of one user share, such as chunk caches, on file systems whose locks work.

Nothing outside the one folder in the directory is created, changed or deleted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat as stat_bits
import tempfile
from collections.abc import Sequence

from shoal.errors import UsageError
from shoal.storage.cache_directory import expand_home
from shoal.storage.storage_errors import os_failure

FOLDER = "shoal-chunks"
SUBFOLDERS = ("chunks", "filling", "datasets")

# Their locks are on a server, or do not work: that depends on mount options that no program can read.
_NETWORK_FILE_SYSTEMS = re.compile(
    r"(nfs\d*|cifs|smb\d*|smbfs|9p|afs|ceph|lustre|gpfs|beegfs|glusterfs|ocfs2|gfs2|pvfs2|orangefs|coda|ncpfs"
    r"|fuse(?!\.fuse-overlayfs$)(\..*)?)"
)
_SHARED_MEMORY = "/dev/shm"  # noqa: S108  # a folder of this user, checked before use, is made in it
_TRIES_TO_MAKE = 20


def open_folder(
    directory: str | os.PathLike[str],
    *,
    make: bool = True,
    folder: str = FOLDER,
    subfolders: Sequence[str] = SUBFOLDERS,
) -> tuple[int, str]:
    """Return a descriptor and the path of ``folder`` in ``directory``; create it with its subfolders if missing.

    Raises `UsageError` if the folder belongs to another user, is open to other users, or lies on a file system whose
    locks cannot be trusted; `StorageError` if the folder cannot be created or opened.
    """
    path = os.path.join(os.path.abspath(expand_home(os.fspath(directory))), folder)
    num_tries = _TRIES_TO_MAKE if make else 1
    while True:
        num_tries -= 1
        try:
            return _opened(path, subfolders if make else None), path
        except OSError as error:
            # A folder that existed a moment ago may be gone: its last user removed it.
            if error.errno in (errno.ENOENT, errno.EEXIST) and num_tries:
                continue
            failure = os_failure(error, path, verb="open the chunk cache")
            if error.errno in (errno.EACCES, errno.EPERM):
                failure.hint = "it belongs to another user: give cache= a directory of your own"
            raise failure from error


def _opened(path: str, subfolders: Sequence[str] | None) -> int:
    above, user = os.path.dirname(path), os.geteuid()
    if subfolders is not None:
        os.makedirs(above, exist_ok=True)
    # The owner of the directory can replace the folder: the owner must be this user, or the system.
    owner = os.stat(above).st_uid
    if owner not in (user, 0):
        msg = f"{above}: this directory belongs to user number {owner}, but this process is {user}"
        hint = f"give cache= a directory of your own, {os.path.join(above, f'shoal-{user}')} for instance"
        raise UsageError(msg, hint=hint)
    if subfolders is not None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _check_folder(path, os.fstat(descriptor))
        for name in subfolders or ():
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_folder(path: str, status: os.stat_result) -> None:
    """Check that only this user can write to the folder, and that locks work there."""
    mode = stat_bits.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid():
        msg = f"{path}: this folder belongs to user number {status.st_uid}, but this process is {os.geteuid()}"
        raise UsageError(msg, hint="give cache= a directory of your own: files of other users are not trusted")
    if mode & 0o077:
        msg = f"{path}: this folder is open to other users (mode {mode:04o})"
        raise UsageError(msg, hint="files that other users can write are not trusted: delete the folder, or chmod 700")
    kind = _file_system_of(path, status)
    if _NETWORK_FILE_SYSTEMS.fullmatch(kind):
        msg = f"{path}: is on a file system of type {kind}, whose locks between processes cannot be trusted"
        raise UsageError(msg, hint="give cache= a directory on a disk of this machine, or in its memory")


def _file_system_of(path: str, status: os.stat_result, *, mounts: str = "/proc/self/mountinfo") -> str:
    """Return the type of the file system by the mount table; "" if there is no such table."""
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    best, kind = (False, -1), ""
    for row in map(str.split, _lines(mounts)):
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), row[4])
        # On some file systems parts have another device number than in the table: then take the deepest mount.
        rank = (row[2] == device, len(point))
        if rank >= best and (os.path.realpath(path) + "/").startswith(point.rstrip("/") + "/"):
            best, kind = rank, row[row.index("-") + 1]
    return kind


def shared_directory(budget_bytes: int) -> str:
    """Return the directory in which running processes of this machine share chunks: in memory if there is enough.

    Containers often have 64 MiB of shared memory. Data there counts as memory of the container, and a container with
    too much memory is killed without notice. So the directory is in shared memory only if that has twice the budget
    free, and the machine four times; else among temporary files. $SHOAL_SHARED_MEMORY_DIR names other shared memory.
    """
    memory, parent = os.environ.get("SHOAL_SHARED_MEMORY_DIR") or _SHARED_MEMORY, tempfile.gettempdir()
    with contextlib.suppress(OSError):
        file_system = os.statvfs(memory)
        is_large = file_system.f_bavail * file_system.f_frsize >= 2 * budget_bytes
        if is_large and spare_memory_bytes() >= 4 * budget_bytes and os.access(memory, os.W_OK):
            parent = memory
    return os.path.join(parent, f"shoal-{os.geteuid()}")


def is_shared_directory(path: str) -> bool:
    """Return True if shoal made a directory for sharing, and may remove it when it is empty."""
    return os.path.basename(path) == f"shoal-{os.geteuid()}"


def spare_memory_bytes() -> int:
    """Return the memory that this process may still take, within machine and container; 0 if unknown."""
    spare = [int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo") if line.startswith("MemAvailable:")]
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(ValueError, IndexError):  # "max" is not a limit
            spare.append(int(_lines(limit)[0]) - int(_lines(used)[0]))
    return max(0, min(spare, default=0))


def most_memory_bytes() -> int:
    """Return the memory of this machine, or the limit of the container or job if that is less; 0 if unknown."""
    most = [int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo") if line.startswith("MemTotal:")]
    for group in _lines("/proc/self/cgroup"):
        _, controllers, path = group.rstrip("\n").split(":", 2)
        is_first = "memory" in controllers.split(",")
        if controllers and not is_first:
            continue
        root, name = ("/memory", "memory.limit_in_bytes") if is_first else ("", "memory.max")
        parts = path.strip("/").split("/")
        for depth in range(len(parts) + 1):  # a limit of any group above holds as well
            with contextlib.suppress(ValueError, IndexError):  # "max" is not a limit
                most.append(int(_lines("/".join([f"/sys/fs/cgroup{root}", *parts[:depth], name]))[0]))
    return min(most, default=0)


def _lines(path: str) -> list[str]:
    """Return the lines of a file in /proc or /sys; an empty list if the file cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return list(file)
    except OSError:
        return []
