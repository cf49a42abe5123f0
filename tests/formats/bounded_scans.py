"""Scans of compressed shards, and of what is no shard, each with 64 MiB more address space than before it.

``python -m tests.formats.bounded_scans`` prints a line for each that needed more, or was not refused as it should be.
"""

from __future__ import annotations

import lzma
import resource
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

from tests.formats.writers import COMPRESS, framed, recordio_record, tar_of

from shoal.errors import ShardError
from shoal.formats.format_registry import format_named

ALLOWED_BYTES = 64 << 20
CONTENT_BYTES = 80 << 20
Case = tuple[bytes, int | str]
"""The bytes of a shard, and how many samples are in it or what the error says."""


def one_member(content: bytes, repeats: int) -> bytes:
    """Gzip of so many times the content, as one member, in the time of one."""
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    packer.compress(b"")
    part = packer.compress(content) + packer.flush(zlib.Z_FULL_FLUSH)
    crc = 0
    for _ in range(repeats):
        crc = zlib.crc32(content, crc)
    end = zlib.compressobj(1, zlib.DEFLATED, -15).flush()
    size = (len(content) * repeats) & 0xFFFFFFFF
    head = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    return head + part * repeats + end + crc.to_bytes(4, "little") + size.to_bytes(4, "little")


def many_members(codec: str, content: bytes, repeats: int) -> bytes:
    """So many members or frames with this content."""
    return COMPRESS[codec](content) * repeats


def cases() -> dict[str, Callable[[], Case]]:
    """By the name of a format and what is special."""
    mib = 1 << 20
    line = b'{"a": "' + b"x" * (mib - 10) + b'"}\n'
    assert len(line) == mib
    num_mib = CONTENT_BYTES // mib
    member = tar_of({"a.bin": bytes(64 << 10)})[: 65 << 10]
    return {
        "jsonl.gz of large lines": lambda: (one_member(line, num_mib), num_mib),
        "jsonl.gz in members": lambda: (many_members("gz", line, num_mib), num_mib),
        "jsonl.zst in frames": lambda: (many_members("zst", line, num_mib), num_mib),
        "text.gz of one line": lambda: (one_member(b"x" * mib, num_mib), 1),
        "text.xz of short lines": lambda: (COMPRESS["xz"](b"1\n" * (6 << 20)), 6 << 20),
        "csv.gz of zeros": lambda: (one_member(bytes(mib), num_mib), "no whole record that could name the columns"),
        "csv.gz of a quote that never closes": lambda: (
            COMPRESS["gz"](b'a,b\n1,"') + one_member(b"x,y\n" * (mib // 4), num_mib),
            "record longer than",
        ),
        "csv of a quote that never closes": lambda: (b'a,b\n1,"' + b"x,y\n" * (80 << 18), "record longer than"),
        "csv of quotes": lambda: (b"a,b\n" + b'"' * (8 * mib) + b",1\n", 1),
        "csv of quotes in fields": lambda: (b"a,b\n" + b'x",y"\n' * mib, mib),
        "tfrecord.gz": lambda: (one_member(framed(bytes(mib)), num_mib), num_mib),
        "tfrecord.gz of one record": lambda: (COMPRESS["gz"](framed(bytes(CONTENT_BYTES))), 1),
        "recordio.gz": lambda: (one_member(recordio_record(bytes(mib)), num_mib), num_mib),
        "tar.xz": lambda: (lzma.compress(tar_of({f"{n}.bin": bytes(mib) for n in range(num_mib)}), preset=0), num_mib),
        "tar.gz of one member": lambda: (COMPRESS["gz"](tar_of({"a.bin": bytes(CONTENT_BYTES)})), 1),
        "tar.gz that is cut short": lambda: (COMPRESS["gz"](member[: 60 << 10]), "ends inside this member"),
        "mds.gz of zeros": lambda: (one_member(bytes(mib), num_mib), "sample 0 begins at byte 0"),
    }


def _used_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def try_case(name: str, data: bytes, expected: int | str) -> str:
    """What is wrong; empty where nothing is."""
    reader = format_named(name.partition(" ")[0])
    limit = _used_bytes() + ALLOWED_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        found = reader.scan(lambda first, end: data[first:end], len(data), shard="a").num_samples
        said = "" if found == expected else f"{found} samples, and {expected} expected"
    except ShardError as error:
        said = "" if isinstance(expected, str) and expected in str(error) else str(error)
    except MemoryError:
        said = f"needs more than {ALLOWED_BYTES >> 20} MiB"
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return said


def main() -> int:
    """Try all, or those whose names are given; 1 where anything is wrong."""
    for codec in ("xz", "gz", "bz2", "zst", "br"):  # what is loaded once is no memory of a scan
        small = COMPRESS[codec](b"a\n")
        format_named(f"text.{codec}").scan(lambda first, end, small=small: small[first:end], len(small), shard="a")
    num_wrong, every = 0, cases()
    for name in sys.argv[1:] or every:
        if said := try_case(name, *every[name]()):
            sys.stdout.write(f"{name}: {said}\n")
            num_wrong += 1
    return int(num_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
