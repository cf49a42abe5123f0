"""Feeds damaged shards to every parser: ``python -m tests.formats.fuzz --inputs 100000``.

An input may give samples or be refused by an error of shoal's; anything else is a failure: another exception, a crash
of the process, more than 20 seconds, more than 256 MiB beside what the parser may read at once. Each parser runs in a
process of its own. Inputs are the same for the same ``--seed``; a failure prints what is needed to see it again.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import faulthandler
import gzip
import io
import json
import multiprocessing
import os
import re
import resource
import signal
import sys
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.formats import test_foreign as foreign_indexes
from tests.formats import writers
from tests.formats.fuzz_gathering import inputs_of_gathering
from tests.formats.made_shards import made

from shoal.errors import ShardError, SourceError, UsageError
from shoal.formats.compressed.codecs import CODECS, CodecError, decompress
from shoal.formats.decoding.decoders import decoder_for, decoders_of
from shoal.formats.folder.reader import metadata_rows
from shoal.formats.format_registry import FORMATS
from shoal.formats.metadata.manifests import read_manifest
from shoal.formats.metadata.third_party_index import scan_by_index
from shoal.formats.rows.litdata.reader import LitData
from shoal.formats.rows.litdata.tokens import LitDataTokens
from shoal.formats.rows.tfrecord.tf_example import NotAnExampleError, parse_example
from shoal.formats.shard_format import Format, Span
from shoal.index.shard_scan import ShardScan
from shoal.testing import Damage, damaged
from shoal.testing.format_damage import answers_of_damaged
from shoal.testing.known_shards import KnownShard

MOST_SECONDS = 20
MOST_BYTES = 256 << 20
"""Beside a window: what a parser reads at once of a shard, or a codec may give."""
ADDRESS_SPACE_BYTES = 6 << 30
_DATA = Path(__file__).parent / "data"
_BOMB_BYTES = 320 << 20  # more than is allowed, should they be held
_BOMB_LINES = 6 << 20
_MOST_BOMBS = 4  # damaged copies of each, since one takes a second
_LARGEST_SHARD_BYTES = 64 << 10
_LIMIT_BYTES = 1 << 20
_IS_SANITIZED = "asan" in os.environ.get("LD_PRELOAD", "")  # a sanitizer takes terabytes of addresses

Try = Callable[[Damage], bool]
"""Gives one damaged input to a parser, and says whether it was refused; raises where it should not have."""


@dataclass(frozen=True)
class Input:
    """Bytes to damage, and what then takes them."""

    name: str
    data: bytes
    take: Try


def _inputs_of_format(name: str) -> Iterator[Input]:
    found = made(name, huge=False)
    shards = {shard: data for shard, (data, _) in found.shards.items()}
    if name == "tar":
        shards["nasty.tar"] = (_DATA / "nasty.tar").read_bytes()
    shards |= {path.name: path.read_bytes() for path in (_DATA / "seekable").glob(f"*.{name}")}
    if name == "mds":
        shards |= {f"all {path.name}": path.read_bytes() for path in sorted((_DATA / "mds" / "all").glob("*.mds"))}
    for shard, data in shards.items():
        if 0 < len(data) <= _LARGEST_SHARD_BYTES:
            known = KnownShard(shard, data, [], format_name=name)
            yield Input(shard, data, _format_taker(found.format, known, known.scan(found.format)))


def _format_taker(format: Format, known: KnownShard, found: ShardScan) -> Try:  # noqa: A002
    def take(damage: Damage) -> bool:
        broken = KnownShard(known.name, damage.data, [], known.format_name, found.piece_decoded_bytes is not None)
        answers = answers_of_damaged(format, broken, found, damage, f"{damage.kind} at {damage.byte}")
        return any(answer.error is not None for answer in answers)

    return take


def _inputs_of_litdata() -> Iterator[Input]:
    made_by_peer = _DATA / "peers" / "litdata"
    for directory in (_DATA / "litdata", *(made_by_peer / kind for kind in ("rows-zstd", "nested", "batch", "sample"))):
        reader = LitData(json.loads((directory / "index.json").read_text()))
        for path in sorted(directory.glob("*.bin")):
            known = KnownShard(path.name, path.read_bytes(), [], format_name=reader.name)
            yield Input(f"{directory.name} {path.name}", known.data, _format_taker(reader, known, known.scan(reader)))


def _inputs_of_litdata_tokens() -> Iterator[Input]:
    directory = _DATA / "peers" / "litdata" / "numpy"
    reader = LitDataTokens(json.loads((directory / "index.json").read_text()), block_size=8)
    for path in sorted(directory.glob("*.bin")):
        known = KnownShard(path.name, path.read_bytes(), [], format_name=reader.name)
        yield Input(path.name, known.data, _format_taker(reader, known, known.scan(reader)))


def _inputs_of_examples() -> Iterator[Input]:
    for number, (data, _) in enumerate(made("tfrecord", huge=False).shards.values()):
        if data:
            yield Input(f"example {number}", data[12 : 12 + int.from_bytes(data[:8], "little")] or b"\n", _take_example)


def _take_example(damage: Damage) -> bool:
    try:
        parse_example(damage.data)
    except NotAnExampleError:
        return True
    return False


def _inputs_of_codec(codec: str) -> Iterator[Input]:
    for number, content in enumerate((b"a line of text\n" * 50 + bytes(range(256)), bytes(_LIMIT_BYTES), b"")):
        packed = writers.COMPRESS[codec](content)
        yield Input(f"{codec} {number}", packed, lambda damage: _take_packed(codec, damage))
        if codec not in ("br", "snappy"):
            yield Input(f"{codec} {number} twice", packed * 2, lambda damage: _take_packed(codec, damage))
        if codec == "snappy":
            framed = writers.framed_snappy(content)
            yield Input(f"{codec} {number} in frames", framed, lambda damage: _take_packed(codec, damage))


def _inputs_of_pieces() -> Iterator[Input]:
    """What an index says of the pieces of a shard that share frames."""
    path = _DATA / "seekable" / "pyzstd.jsonl.zst"
    reader, data = FORMATS["jsonl.zst"], path.read_bytes()
    found = reader.scan(lambda first, end: data[first:end], len(data), shard="a")
    numbers = list(range(found.num_samples))
    table = zlib.decompress(base64.b64decode(found.head["pieces"]["table"]))

    def take(damage: Damage) -> bool:
        packed = base64.b64encode(zlib.compress(damage.data)).decode()
        head = {**found.head, "pieces": {**found.head["pieces"], "table": packed}}
        before, refused = found.samples_before().tolist(), False
        for first, end in [(0, 8), (3, 4), (7, 8), (0, 1), (2, 6)]:
            begin, stop = int(found.sample_starts[first]), int(found.ends[end - 1])
            try:
                records = reader.parse(data[begin:stop], Span("a", begin, before[end] - before[first], None, head))
                given = [records.sample(number)["n"] for number in range(len(records))]
            except ShardError:
                refused = True
                continue
            if given != numbers[given[0] : given[0] + len(given)]:
                msg = f"samples {given[:9]} of pieces {first} to {end}"
                raise AssertionError(msg)
        return refused

    yield Input("table", table, take)


def _inputs_of_bombs(codec: str) -> Iterator[Input]:
    """Shards that are decompressed to far more than they may take, with nothing in them, one sample, or millions."""
    num_parts = 10
    head, member = writers.tar_of({"a.bin": bytes(_BOMB_BYTES)})[:512], bytes(_BOMB_BYTES // num_parts)
    lines = b"1\n" * (_BOMB_LINES // num_parts)
    zeros = _bomb(codec, b"", member, num_parts)
    for name in ("text", "jsonl", "csv", "tfrecord", "recordio", "mds", "tar"):
        yield Input(f"{name}.{codec} of zeros", zeros, _bomb_taker(f"{name}.{codec}"))
    yield Input(f"tar.{codec} of a member", _bomb(codec, head, member, num_parts), _bomb_taker(f"tar.{codec}"))
    for name in ("text", "csv"):
        yield Input(f"{name}.{codec} of lines", _bomb(codec, b"", lines, num_parts), _bomb_taker(f"{name}.{codec}"))
    yield Input(f"csv.{codec} of a quote", _bomb(codec, b'a\n"', member, num_parts), _bomb_taker(f"csv.{codec}"))


def _bomb(codec: str, head: bytes, part: bytes, repeats: int) -> bytes:
    """The head, and so many times the part, in as little time as a codec allows."""
    if codec == "br":
        import brotli

        return bytes(brotli.compress(head + part * repeats, quality=1))
    if codec == "snappy":
        return writers.framed_snappy(head + part * repeats)
    return (writers.COMPRESS[codec](head) if head else b"") + writers.COMPRESS[codec](part) * repeats


def _bomb_taker(name: str) -> Try:
    def take(damage: Damage) -> bool:
        try:
            FORMATS[name].scan(lambda first, end: damage.data[first:end], len(damage.data), shard="a")
        except ShardError:
            return True
        return False

    return take


def _take_packed(codec: str, damage: Damage) -> bool:
    try:
        found = decompress(codec, damage.data, limit_bytes=_LIMIT_BYTES)
    except CodecError:
        return True
    if len(found) > _LIMIT_BYTES:
        msg = f"{len(found)} bytes of at most {_LIMIT_BYTES}"
        raise AssertionError(msg)
    return False


def _inputs_of_fields() -> Iterator[Input]:
    import cbor2
    import msgpack

    npy, npz = io.BytesIO(), io.BytesIO()
    np.save(npy, np.arange(12, dtype=np.float32).reshape(3, 4))
    np.savez_compressed(npz, a=np.arange(99), b=np.float16(2))
    value = {"a": [1, 2.5, None, True], "b": {"text": "d\u00e9j\u00e0 vu", "bytes": b"\0\1"}}
    contents = {
        "npy": npy.getvalue(),
        "npz": npz.getvalue(),
        "mp": msgpack.packb(value),
        "cbor": cbor2.dumps(value),
        "json.gz": gzip.compress(json.dumps([value["a"]] * 9).encode()),
        "txt": "d\u00e9j\u00e0 vu".encode(),
        "cls": b"12",
    }
    known = decoders_of(None)
    for field, data in contents.items():
        decode = decoder_for(field, known)
        assert decode is not None
        yield Input(field, data, _field_taker(decode))


def _field_taker(decode: Callable[[bytes], Any]) -> Try:
    def take(damage: Damage) -> bool:
        try:
            with warnings.catch_warnings(action="ignore"):  # of headers that look like those of Python 2
                decode(damage.data)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001  # whatever a library says is damage of the field; only memory is not
            return True
        return False

    return take


def _inputs_of_foreign_indexes() -> Iterator[Input]:
    for kind in foreign_indexes.KINDS:
        for num_samples in (1, 9):
            name, data, index = foreign_indexes.made(kind, num_samples)
            known = KnownShard("shard", data, [], format_name=name)
            starts = known.scan(FORMATS[name]).sample_starts.tolist()
            yield Input(f"{kind} {num_samples}", index, _index_taker(known, starts))


def _index_taker(known: KnownShard, starts: list[int]) -> Try:
    def take(damage: Damage) -> bool:
        reader = FORMATS[known.format_name]
        found = scan_by_index(reader, damage.data, known.read, len(known.data), shard=known.name)
        if found is not None and found.sample_starts.tolist() != starts:
            msg = f"samples are said to begin at {found.sample_starts.tolist()}, and do at {starts}"
            raise AssertionError(msg)
        return found is None

    return take


def _inputs_of_manifests() -> Iterator[Input]:
    for path in sorted([*(_DATA / "mds").glob("*/index.json"), _DATA / "litdata" / "index.json"]):
        yield Input(str(path.parent.name), path.read_bytes(), _take_manifest)


def _take_manifest(damage: Damage) -> bool:
    try:
        found = read_manifest(damage.data, path="index.json")
    except SourceError:
        return True
    if found is not None and any(".." in shard.name.split("/") or shard.name[0] == "/" for shard in found.shards):
        msg = "a shard that lies elsewhere"
        raise AssertionError(msg)
    return found is None


def _inputs_of_tables() -> Iterator[Input]:
    rows = [{"file_name": f"a b/{number}.jpg", "text": 'a, "b"', "n": number} for number in range(9)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    cells = "file_name,text\n" + "".join(f'{row["file_name"]},"x ""y"", z"\n' for row in rows)
    for name, text in (("metadata.jsonl", lines), ("metadata.csv", cells)):
        yield Input(name, text.encode(), lambda damage, name=name: _take_table(damage, name))  # type: ignore[misc]


def _take_table(damage: Damage, name: str) -> bool:
    try:
        metadata_rows(damage.data, name=name, path=name)
    except SourceError:
        return True
    return False


TARGETS: dict[str, Callable[[], Iterator[Input]]] = {
    **{name: lambda name=name: _inputs_of_format(name) for name in FORMATS if "." not in name},  # type: ignore[misc]
    "litdata": _inputs_of_litdata,
    "litdata tokens": _inputs_of_litdata_tokens,
    "folder": lambda: _inputs_of_format("folder"),
    "foreign indexes": _inputs_of_foreign_indexes,
    "manifests": _inputs_of_manifests,
    "tables": _inputs_of_tables,
    "tf_example": _inputs_of_examples,
    "gathering": lambda: (Input(*each) for each in inputs_of_gathering()),
    "fields": _inputs_of_fields,
    **{f"codec {codec}": lambda codec=codec: _inputs_of_codec(codec) for codec in CODECS},  # type: ignore[misc]
    **{f"bombs {codec}": lambda codec=codec: _inputs_of_bombs(codec) for codec in CODECS},  # type: ignore[misc]
    "pieces": _inputs_of_pieces,
    "tar.gz": lambda: _inputs_of_format("tar.gz"),
    "jsonl.zst": lambda: _inputs_of_format("jsonl.zst"),
    "tfrecord.zst": lambda: _inputs_of_format("tfrecord.zst"),
}


def fuzz(name: str, count: int, seed: int, tell: Any) -> None:
    """Run one target in this process; ``tell`` has four numbers: inputs done, refused, which input, what memory."""
    faulthandler.enable()
    inputs = list(TARGETS[name]())
    are_bombs = name.startswith("bombs ")
    for chosen in inputs:  # what is loaded and cached once is no memory of an input
        with contextlib.suppress(Exception):
            chosen.take(Damage("flip", 0, chosen.data[:100] if are_bombs else chosen.data))
    if not _IS_SANITIZED:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    signal.signal(signal.SIGALRM, _too_long)
    before = _begin_to_count()
    count = min(count, _MOST_BOMBS * len(inputs)) if are_bombs else count
    per_input = -(-count // len(inputs))
    most_bytes = MOST_BYTES + _window_bytes(name)
    for place, chosen in enumerate(inputs):
        for number, damage in enumerate(_damages(chosen.data, min(per_input, count - place * per_input), seed)):
            tell[2] = place * per_input + number
            signal.alarm(MOST_SECONDS)
            try:
                tell[1] += chosen.take(damage)
                if _most_bytes() - before > most_bytes and not _IS_SANITIZED:
                    msg = f"{_most_bytes() - before} bytes of memory"
                    raise MemoryError(msg)  # told below with its input
            except UsageError as error:
                if "can run any code" not in str(error):  # pickles are refused, and rightly so
                    raise
                tell[1] += 1
            except BaseException:
                traceback.print_exc()
                sys.stderr.write(f"{name}: {chosen.name!r}, number {number}: {damage.kind} at {damage.byte}\n")
                sys.stderr.write(f"{damage.data[:2000]!r}\n")
                raise
            finally:
                signal.alarm(0)
            tell[0] += 1
        tell[3] = _most_bytes() - before


def _window_bytes(name: str) -> int:
    """What a target may hold by its nature: a window of its format, or what a codec may give."""
    if name == "bombs snappy":  # which has no parts where it is one block
        return _BOMB_BYTES
    return int(getattr(FORMATS.get(name), "window_bytes", _LIMIT_BYTES))


def _damages(data: bytes, count: int, seed: int) -> Iterator[Damage]:
    """The bytes as they are, and damaged copies; every third one damaged twice."""
    if count > 0:
        yield Damage("flip", 0, data)
    for number, damage in enumerate(damaged(data, max(0, count - 1), seed=seed)):
        again = [*damaged(damage.data, 1 + number // 3 % 6, seed=number)] if number % 3 == 2 else []
        yield Damage(again[-1].kind, min(again[-1].byte, damage.byte), again[-1].data) if again else damage


def _begin_to_count() -> int:
    """Count the most memory of this process from here on, and not what it took to make the inputs; what it has now."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _most_bytes()


def _most_bytes() -> int:
    """The memory of this process at most."""
    try:
        found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        found = None
    return 1024 * (int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _too_long(number: int, frame: object) -> None:
    msg = f"an input took more than {MOST_SECONDS} seconds"
    raise TimeoutError(msg)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all by default")
    parser.add_argument("--inputs", type=int, default=100_000, help="how many in all (default 100000)")
    parser.add_argument("--each", type=int, help="how many for each target, instead")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(words)
    chosen = asked.targets or list(TARGETS)
    each = asked.each or -(-asked.inputs // len(chosen))
    processes = multiprocessing.get_context("spawn")
    num_failed = num_inputs = 0
    for name in chosen:
        tell = processes.Array("q", 4)
        process = processes.Process(target=fuzz, args=(name, each, asked.seed, tell))
        start = time.monotonic()
        process.start()
        process.join()
        done, refused, last, used_bytes = tell[:]
        num_inputs += done
        line = (
            f"{name:14} {done:8} inputs {refused:8} refused {time.monotonic() - start:7.1f} s {used_bytes >> 20:5} MiB"
        )
        if process.exitcode:
            num_failed += 1
            line += f"   FAILED at input {last}, exit code {process.exitcode}"
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    sys.stdout.write(f"{num_inputs} inputs in all, {num_failed} of {len(chosen)} targets failed\n")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
