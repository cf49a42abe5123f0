"""What lies in a directory: names, sizes and times of its files, as quickly as one process can say.

Also a program of its own, ``python -I -S looking.py``, which answers requests on its standard input: it imports nothing
but what every interpreter has loaded already, and so begins within some milliseconds.
"""

from __future__ import annotations

import marshal
import os
from array import array
from bisect import bisect_left
from contextlib import suppress
from typing import Any

__all__ = ["Found", "frame", "look", "parsed_frames", "wrapped"]

Found = tuple[str, int, bytes, bytes, bytes, list[tuple[int, str]], tuple[int, int]]
"""Directory, number of files, names joined by NUL, sizes and times as int64, subdirectories, device and inode."""

_LENGTH_BYTES = 8


def look(root: str, directory: str, above: tuple[tuple[int, int], ...]) -> Found | None:
    """The files of a directory below ``root``, and its subdirectories, both sorted; hidden ones left out; 2.7 us each.

    ``directory`` is empty or ends with a slash. Of ``above``, which has device and inode of all directories that hold
    it, a link may lead back to one: then None. A subdirectory comes with the number of files that sort before it. What
    is neither file nor directory, or cannot be looked at, has the size -1: what is wrong is said when it is read.

    Raises
    ------
    OSError
        It cannot be listed.
    """
    descriptor = os.open(f"{root}/{directory}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        here = os.fstat(descriptor)
        identity = (here.st_dev, here.st_ino)
        if identity in above:
            return None
        files: list[tuple[str, int, int]] = []
        directories: list[str] = []
        add = files.append
        with os.scandir(descriptor) as entries:  # by descriptor: nobody resolves the path again for each file
            for entry in entries:
                name = entry.name
                if name[0] == ".":
                    continue
                try:
                    if entry.is_file():
                        info = entry.stat()
                        add((name, info.st_size, info.st_mtime_ns))
                    elif entry.is_dir():
                        directories.append(name)
                    else:
                        add((name, -1, 0))
                except OSError:  # gone meanwhile, or a link in a circle
                    add((name, -1, 0))
    finally:
        os.close(descriptor)
    files.sort()
    names = [name for name, _, _ in files]
    # With its slash a directory sorts as all names in it do.
    inside = [(bisect_left(names, f"{name}/"), name) for name in sorted(directories, key=lambda name: f"{name}/")]
    sizes = array("q", [size for _, size, _ in files]).tobytes()
    try:
        times = array("q", [modified_ns for _, _, modified_ns in files]).tobytes()
    except OverflowError:
        times = array("q", [wrapped(modified_ns) for _, _, modified_ns in files]).tobytes()
    joined = "\0".join(names).encode("utf-8", "surrogateescape")
    return directory, len(files), joined, sizes, times, inside, identity


def wrapped(modified_ns: int) -> int:
    """A time as an int64 holds it, by which it is known again: of files of the year 2263 the rest.

    >>> wrapped(7), wrapped(-7), wrapped((1 << 63) + 7) == 7 - (1 << 63)
    (7, -7, True)
    """
    return (modified_ns + (1 << 63)) % (1 << 64) - (1 << 63)


def frame(what: Any) -> bytes:
    """A message: its length, and it."""
    data = marshal.dumps(what)
    return len(data).to_bytes(_LENGTH_BYTES, "little") + data


def parsed_frames(buffer: bytearray) -> list[Any]:
    """The messages that are whole, which are taken from the buffer."""
    found = []
    while len(buffer) >= _LENGTH_BYTES:
        end = _LENGTH_BYTES + int.from_bytes(buffer[:_LENGTH_BYTES], "little")
        if len(buffer) < end:
            break
        found.append(marshal.loads(bytes(buffer[_LENGTH_BYTES:end])))  # noqa: S302  # from our own child, or parent
        del buffer[:end]
    return found


def _answer(root: str, asked: list[tuple[str, Any]]) -> list[Any]:
    """What is found in some directories; of the first that cannot be listed, number and words of the error."""
    answers: list[Any] = []
    for directory, above in asked:
        try:
            answers.append(look(root, directory, above))
        except OSError as error:
            return [(directory, error.errno or 0, os.strerror(error.errno or 0))]
    return answers


def _serve(requests: int, answers: int) -> None:
    """Answer until nobody asks."""
    buffer = bytearray()
    while data := os.read(requests, 1 << 16):
        buffer += data
        for root, asked in parsed_frames(buffer):
            rest = memoryview(frame(_answer(root, asked)))
            while rest:
                rest = rest[os.write(answers, rest) :]


if __name__ == "__main__":
    with suppress(BrokenPipeError):  # whoever asked was killed
        _serve(0, 1)
