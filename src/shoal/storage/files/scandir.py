"""Directory scans: names, sizes and times of the files in a directory, as fast as one process can.

Also a program, ``python -I -S scandir.py``, which answers requests on its standard input: it imports only modules that
every interpreter has loaded already, and so starts within some milliseconds.
"""

from __future__ import annotations

import marshal
import os
from array import array
from bisect import bisect_left
from contextlib import suppress
from typing import Any

Found = tuple[str, int, bytes, bytes, bytes, list[tuple[int, str]], tuple[int, int], int, str]
"""Directory, number of files, names joined by NUL, sizes and times as int64, subdirectories, device and inode, number
of hidden files that have a suffix, the first of those."""

_LENGTH_BYTES = 8


def scan_directory(root: str, directory: str, above: tuple[tuple[int, int], ...]) -> Found | None:
    """Return the sorted files and subdirectories of a directory below ``root``, and count hidden files; 2.7 us each.

    ``directory`` is empty or ends with a slash. ``above`` has device and inode of all parent directories; the result is
    None if the directory is a link back to a parent. Each subdirectory has the number of files that sort before it.
    All files in a ``__MACOSX``, which macOS adds to archives, are hidden. An entry that is neither file nor directory,
    or fails in stat, has the size -1: reading it raises an error. Raises `OSError` if the directory cannot be listed.
    """
    descriptor = os.open(f"{root}/{directory}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            return None
        files: list[tuple[str, int, int]] = []
        directories: list[str] = []
        hidden: list[str] = []
        is_of_macos = "/__MACOSX/" in f"/{directory}"
        add = files.append
        with os.scandir(descriptor) as entries:  # by descriptor: the path is not resolved again for each file
            for entry in entries:
                name = entry.name
                if name[0] == "." or is_of_macos:
                    if not entry.is_dir():
                        hidden += [name] if "." in name.lstrip("._") else []
                    elif name[0] != ".":
                        directories.append(name)
                    continue
                try:
                    if entry.is_file():
                        info = entry.stat()
                        add((name, info.st_size, info.st_mtime_ns))
                    elif entry.is_dir():
                        directories.append(name)
                    else:
                        add((name, -1, 0))
                except OSError:  # gone meanwhile, or a circular link
                    add((name, -1, 0))
    finally:
        os.close(descriptor)
    files.sort()
    names = [name for name, _, _ in files]
    # A directory with its slash sorts like the names in it.
    inside = [(bisect_left(names, f"{name}/"), name) for name in sorted(directories, key=lambda name: f"{name}/")]
    sizes = array("q", [size for _, size, _ in files]).tobytes()
    try:
        times = array("q", [modified_ns for _, _, modified_ns in files]).tobytes()
    except OverflowError:
        times = array("q", [wrap_int64(modified_ns) for _, _, modified_ns in files]).tobytes()
    joined = "\0".join(names).encode("utf-8", "surrogateescape")
    return directory, len(files), joined, sizes, times, inside, identity, len(hidden), min(hidden, default="")


def directories_in(path: str) -> list[str]:
    """Return the names of the directories in a directory, sorted, without hidden ones; links are followed.

    A ``__MACOSX``, which macOS adds to archives, counts as hidden.
    """
    with os.scandir(path) as entries:
        names = [entry.name for entry in entries if entry.is_dir()]
    return sorted(name for name in names if name[0] != "." and name != "__MACOSX")


def wrap_int64(modified_ns: int) -> int:
    """Return a time wrapped to int64, for comparison: times from the year 2263 on wrap around.

    >>> wrap_int64(7), wrap_int64(-7), wrap_int64((1 << 63) + 7) == 7 - (1 << 63)
    (7, -7, True)
    """
    return (modified_ns + (1 << 63)) % (1 << 64) - (1 << 63)


def frame(what: Any) -> bytes:
    """Return a message prefixed with its length."""
    data = marshal.dumps(what)
    return len(data).to_bytes(_LENGTH_BYTES, "little") + data


def parsed_frames(buffer: bytearray) -> list[Any]:
    """Remove the complete messages from the buffer, and return them."""
    messages = []
    while len(buffer) >= _LENGTH_BYTES:
        end = _LENGTH_BYTES + int.from_bytes(buffer[:_LENGTH_BYTES], "little")
        if len(buffer) < end:
            break
        messages.append(marshal.loads(bytes(buffer[_LENGTH_BYTES:end])))  # noqa: S302  # from our own child, or parent
        del buffer[:end]
    return messages


def _answer(root: str, requested: list[tuple[str, Any]]) -> list[Any]:
    """Scan directories; if one cannot be listed, return only the number and text of its error."""
    answers: list[Any] = []
    for directory, above in requested:
        try:
            answers.append(scan_directory(root, directory, above))
        except OSError as error:
            return [(directory, error.errno or 0, os.strerror(error.errno or 0))]
    return answers


def _serve(requests: int, answers: int) -> None:
    """Answer requests until there are no more."""
    buffer = bytearray()
    while data := os.read(requests, 1 << 16):
        buffer += data
        for root, requested in parsed_frames(buffer):
            rest = memoryview(frame(_answer(root, requested)))
            while rest:
                rest = rest[os.write(answers, rest) :]


if __name__ == "__main__":
    with suppress(BrokenPipeError):  # the requesting process was killed
        _serve(0, 1)
