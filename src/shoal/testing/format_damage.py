"""Damaged bytes, and checks that a format returns the right samples of a damaged shard, or refuses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple, TypeVar, get_args

import numpy as np

from shoal.errors import ShardError
from shoal.formats.shard_format import Format, Records, Sample, Span
from shoal.index.shard_scan import ShardScan
from shoal.order.seeds import draws, key
from shoal.testing.known_shards import KnownShard, measured, require, same

DamageKind = Literal["cut", "flip", "lie", "repeat", "remove", "insert"]
DAMAGE_KINDS: tuple[DamageKind, ...] = get_args(DamageKind)

_LONGEST_SPAN_BYTES = 64
_LIES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
_LIE_SIZES = (1, 2, 4, 8)
_MOST_SAMPLES = 40
_MOST_BYTES = 1 << 20

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Damage:
    """Damaged bytes, the kind of damage, and the first byte that it touched.

    Examples
    --------
    >>> next(shoal.testing.damaged(b"0123456789", 1, seed=1))
    Damage(kind='cut', byte=1, data=b'0')
    """

    kind: DamageKind
    byte: int
    data: bytes


def damaged(data: bytes, count: int, *, seed: int = 0) -> Iterator[Damage]:
    """Yield ``count`` damaged copies of ``data``, every kind of damage in turn, determined by the seed.

    Each copy takes O(len(data)). Some copies may by chance equal ``data``.

    Examples
    --------
    >>> [damage.kind for damage in shoal.testing.damaged(b"0123456789", 6)]
    ['cut', 'flip', 'lie', 'repeat', 'remove', 'insert']
    """
    if not data:
        return
    base = key(seed, 0, "damage")
    for number in range(count):
        kind = DAMAGE_KINDS[number % len(DAMAGE_KINDS)]
        words = draws(base, np.arange(8) + 8 * number).tolist()
        yield _one(data, kind, words)


def _one(data: bytes, kind: DamageKind, words: list[int]) -> Damage:
    byte, length = words[0] % len(data), 1 + words[1] % _LONGEST_SPAN_BYTES
    before, after = data[:byte], data[byte:]
    if kind == "cut":
        changed = before
    elif kind == "flip":
        return _flipped(data, words)
    elif kind == "lie":
        size = _LIE_SIZES[words[1] % len(_LIE_SIZES)]
        byte -= byte % size if words[2] % 2 else 0  # numbers are often aligned to their size
        lie = _LIES[words[3] % len(_LIES)] % 256**size
        order: Literal["little", "big"] = "big" if words[4] % 4 == 0 else "little"
        changed = (data[:byte] + lie.to_bytes(size, order) + data[byte + size :])[: len(data)]
    elif kind == "remove":
        changed = before + after[length:]
    elif kind == "repeat":
        other = words[2] % len(data)
        changed = before + data[other : other + length] + after
    else:
        changed = before + b"".join(word.to_bytes(8, "little") for word in words)[:length] + after
    return Damage(kind, byte, changed)


def _flipped(data: bytes, words: list[int]) -> Damage:
    changed = bytearray(data)
    bits = [word % (8 * len(data)) for word in words[: 1 + words[7] % 3]]
    for bit in bits:
        changed[bit // 8] ^= 1 << bit % 8
    return Damage("flip", min(bits) // 8, bytes(changed))


@dataclass(frozen=True, slots=True)
class DamageCount:
    r"""Number of damaged shards, and number of damaged shards that the format refused at least in part.

    Examples
    --------
    >>> shards = {"a.txt": (b"one\ntwo\n", [{"text": "one"}, {"text": "two"}])}
    >>> shoal.testing.check_format(shoal.formats.Text(), shards, num_damaged=6).damage
    DamageCount(num_tried=6, num_refused=3)
    """

    num_tried: int = 0
    num_refused: int = 0

    def __add__(self, other: DamageCount) -> DamageCount:
        return DamageCount(self.num_tried + other.num_tried, self.num_refused + other.num_refused)


class Answer(NamedTuple):
    """Result for a sample of a damaged shard: the sample, or the error."""

    number: int
    sample: Sample | None
    error: ShardError | None


def check_damage(
    format: Format,  # noqa: A002
    known: KnownShard,
    *,
    count: int,
    detects_damage: bool,
    memory_limit_bytes: int,
) -> DamageCount:
    """Damage a shard ``count`` times, and check the format's results, with a new index and with the old one.

    Raises `AssertionError` for a result that is neither a sample nor a `ShardError`, and with ``detects_damage`` for a
    wrong sample.
    """
    known = replace(known, format_name=format.name)
    if not 0 < len(known.data) <= _MOST_BYTES:
        return DamageCount()
    scan = known.scan(format)
    decoded_bytes = 0 if scan.piece_decoded_bytes is None else int(scan.piece_decoded_bytes.sum())
    known = replace(known, is_decoded=scan.piece_decoded_bytes is not None)
    allowed = memory_limit_bytes + 4 * (len(known.data) + decoded_bytes)
    num_refused = 0
    for number, damage in enumerate(damaged(known.data, count)):
        broken = replace(known, data=damage.data)
        where = f"{damage.kind} at byte {damage.byte} (number {number})"
        answers, used_bytes = measured(partial(answers_of_damaged, format, broken, scan, damage, where))
        require(used_bytes <= allowed, known, f"{where}: took {used_bytes} bytes of memory, but {allowed} are allowed")
        num_refused += any(answer.error is not None for answer in answers)
        if detects_damage and damage.kind in ("cut", "flip"):
            for answer in answers:
                right = answer.error is not None or (
                    answer.number < len(known.samples) and same(answer.sample, known.samples[answer.number])
                )
                require(right, known, f"{where}: sample {answer.number} is returned as {answer.sample!r:.300}")
    return DamageCount(count, num_refused)


def answers_of_damaged(
    format: Format,  # noqa: A002
    broken: KnownShard,
    undamaged: ShardScan,
    damage: Damage,
    where: str,
) -> list[Answer]:
    """Return the results for a damaged shard, by a new index of it, and by the scan of the undamaged shard.

    Raises `AssertionError` for a result that is neither a sample nor a `ShardError`.
    """
    answers = _with_new_index(format, broken, where)
    if damage.kind in ("cut", "flip", "lie"):
        answers += _with_index(format, broken, undamaged, where)  # a dataset that was damaged after it was indexed
    return answers


def _with_new_index(format: Format, broken: KnownShard, where: str) -> list[Answer]:  # noqa: A002
    scan = _attempt(partial(broken.scan, format), broken, where, "a scan", len(broken.data))
    if isinstance(scan, ShardError):
        return [Answer(0, None, scan)]
    is_inside = 0 <= int(scan.sample_starts[0]) <= int(scan.sample_starts[-1]) <= len(broken.data)
    require(is_inside, broken, f"{where}: a scan finds samples in bytes that the shard does not have")
    return _with_index(format, broken, scan, where)


def _with_index(format: Format, broken: KnownShard, scan: ShardScan, where: str) -> list[Answer]:  # noqa: A002
    begin, end = int(scan.sample_starts[0]), int(scan.sample_starts[-1])
    num_bytes = max(len(broken.data), end)  # the length of a truncated shard by its index
    starts = None if scan.piece_samples is not None else (scan.sample_starts - begin).tolist()

    def parsed(sample_starts: list[int] | None) -> Records:
        span = Span(broken.name, begin, scan.num_samples, sample_starts, scan.head)
        records = format.parse(broken.data[begin:end], span)
        records.layout_crcs()
        return records

    answers = []
    for sample_starts in () if not scan.num_samples else (None,) if starts is None else (starts, None):
        records = _attempt(partial(parsed, sample_starts), broken, where, "opening samples", num_bytes)
        if isinstance(records, ShardError):
            answers.append(Answer(0, None, records))
            continue
        for number in range(min(scan.num_samples, _MOST_SAMPLES)):
            sample = _attempt(partial(records.sample, number), broken, where, f"sample {number}", num_bytes)
            answers.append(
                Answer(number, None, sample) if isinstance(sample, ShardError) else Answer(number, sample, None)
            )
    return answers


def _attempt(
    work: Callable[[], _Result], broken: KnownShard, where: str, what: str, num_bytes: int
) -> _Result | ShardError:
    """Return the result of some work, or its `ShardError`; any other error is a defect."""
    try:
        return work()
    except ShardError as error:
        _check_error(error, broken, where, num_bytes)
        return error
    except AssertionError:
        raise
    except Exception as error:
        kind = type(error).__name__
        msg = f"{broken.format_name}, shard {broken.name!r}: {where}: {what} raises {kind} instead of ShardError: "
        msg += str(error)
        raise AssertionError(msg) from error


def _check_error(error: ShardError, broken: KnownShard, where: str, num_bytes: int) -> None:
    # Errors about decompressed data name a byte of that data.
    end = num_bytes if not broken.is_decoded else error.byte
    inside = error.byte is None or 0 <= error.byte <= (end or 0)
    text = f"{where}: the error names byte {error.byte}, but the shard has {num_bytes}"
    require(inside, broken, f"{text}: {error.message}")
    require(error.shard == broken.name, broken, f"{where}: the error names shard {error.shard!r}")
    require(bool(error.hint), broken, f"{where}: the error does not say what to do: {error.message}")
