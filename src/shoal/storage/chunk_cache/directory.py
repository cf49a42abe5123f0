"""Directories for chunk caches: of this user alone, on a file system whose locks work.

Nothing outside the folder `FOLDER` of the given directory is made, changed or deleted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat as stat_bits
import tempfile

from shoal.errors import StorageError, UsageError
from shoal.storage.cache_directory import expand_home
from shoal.storage.storage_errors import os_failure

FOLDER = "shoal-chunks"
SUBFOLDERS = ("chunks", "filling", "datasets")

# Their locks are kept on a server, or not at all, depending on mount options that cannot be seen from here.
_FAR_FILE_SYSTEMS = re.compile(
    r"(nfs\d*|cifs|smb\d*|smbfs|9p|afs|ceph|lustre|gpfs|beegfs|glusterfs|ocfs2|gfs2|pvfs2|orangefs|coda|ncpfs"
    r"|fuse(?!\.fuse-overlayfs$)(\..*)?)"
)
_SHARED_MEMORY = "/dev/shm"  # noqa: S108  # a folder of this user, checked before use, is made in it
_TRIES_TO_MAKE = 20


def open_folder(directory: str | os.PathLike[str], *, make: bool = True) -> tuple[int, str]:
    """Return a descriptor and the path of the cache's folder in ``directory``, made if missing.

    Raises
    ------
    UsageError
        It belongs to somebody else, is open to others, or lies on a file system whose locks cannot be trusted.
    StorageError
        It cannot be made or opened.
    """
    path = os.path.join(os.path.abspath(expand_home(os.fspath(directory))), FOLDER)
    num_tries = _TRIES_TO_MAKE if make else 1
    while True:
        num_tries -= 1
        try:
            return _opened(path, make=make), path
        except StorageError:
            raise
        except OSError as error:
            # A folder that existed a moment ago may be gone: its last user removed it.
            if error.errno not in (errno.ENOENT, errno.EEXIST) or not num_tries:
                raise _refused(error, path) from error


def _opened(path: str, *, make: bool) -> int:
    if make:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    _check_above(os.path.dirname(path))
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _check_owner(path, os.fstat(descriptor))
        _check_file_system(path, os.fstat(descriptor))
        for name in SUBFOLDERS if make else ():
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _refused(error: OSError, path: str) -> StorageError:
    failure = os_failure(error, path, verb="open the chunk cache")
    if error.errno in (errno.EACCES, errno.EPERM):
        failure.hint = "it belongs to somebody else: give cache= a directory of your own"
    return failure


def _check_above(directory: str) -> None:
    """Check that the directory asked for is this user's or the system's: its owner can put another folder there."""
    owner = os.stat(directory).st_uid
    if owner not in (os.geteuid(), 0):
        msg = f"{directory}: this directory belongs to user number {owner}, and this process is {os.geteuid()}"
        hint = f"give cache= a directory of your own, {os.path.join(directory, f'shoal-{os.geteuid()}')} for instance"
        raise UsageError(msg, hint=hint)


def _check_owner(path: str, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        msg = f"{path}: this chunk cache belongs to user number {found.st_uid}, and this process is {os.geteuid()}"
        raise UsageError(msg, hint="give cache= a directory of your own: what others can write cannot be believed")
    if stat_bits.S_IMODE(found.st_mode) & 0o077:
        msg = f"{path}: this chunk cache is open to other users (mode {stat_bits.S_IMODE(found.st_mode):04o})"
        raise UsageError(msg, hint="what others can write cannot be believed: delete it, or chmod 700 if you trust it")


def _check_file_system(path: str, found: os.stat_result) -> None:
    kind = _file_system_of(path, found)
    if _FAR_FILE_SYSTEMS.fullmatch(kind):
        msg = f"{path}: lies on a file system of type {kind}, whose locks between processes cannot be trusted"
        raise UsageError(msg, hint="give cache= a directory on a disk of this machine, or in its memory")


def _file_system_of(path: str, found: os.stat_result, *, mounts: str = "/proc/self/mountinfo") -> str:
    """Return the type of the file system by the mount table; "" if there is no such table."""
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            rows = [line.split() for line in file]
    except OSError:
        return ""
    device = f"{os.major(found.st_dev)}:{os.minor(found.st_dev)}"
    best, kind = -1, ""
    for row in rows:
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), row[4])
        here = row[row.index("-") + 1]
        is_above = (os.path.realpath(path) + "/").startswith(point.rstrip("/") + "/")
        # On some file systems parts have another device number than the table says: then take the deepest mount.
        weight = (len(point) if is_above else -1) + (10**6 if row[2] == device and is_above else 0)
        if weight >= best and is_above:
            best, kind = weight, here
    return kind


def place_for_sharing(budget_bytes: int) -> str:
    """Return the directory in which running processes of this machine share chunks: in memory if there is enough.

    Containers often have 64 MiB of shared memory; and data there counts as memory of the container, which is killed
    without notice when it has too much. So twice the budget must be free there and four times in memory; otherwise
    it is the directory for temporary files. $SHOAL_SHARED_MEMORY_DIR names another directory for shared memory.
    """
    memory = os.environ.get("SHOAL_SHARED_MEMORY_DIR") or _SHARED_MEMORY
    with contextlib.suppress(OSError):
        found = os.statvfs(memory)
        is_large = found.f_bavail * found.f_frsize >= 2 * budget_bytes
        if is_large and spare_memory_bytes() >= 4 * budget_bytes and os.access(memory, os.W_OK):
            return os.path.join(memory, _name_for_sharing())
    return os.path.join(tempfile.gettempdir(), _name_for_sharing())


def is_place_for_sharing(path: str) -> bool:
    """Return True if a directory was made for sharing alone, and may be removed when it is empty."""
    return os.path.basename(path) == _name_for_sharing()


def _name_for_sharing() -> str:
    return f"shoal-{os.geteuid()}"


def spare_memory_bytes() -> int:
    """Return the memory that this process may still take, within machine and container; 0 if unknown."""
    spare = [int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo") if line.startswith("MemAvailable:")]
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(ValueError, IndexError):  # "max" is no limit
            spare.append(int(_lines(limit)[0]) - int(_lines(used)[0]))
    return max(0, min(spare, default=0))


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().splitlines()
    except OSError:
        return []
