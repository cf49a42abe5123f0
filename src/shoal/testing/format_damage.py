"""Checks of a format on damaged shards: it must return the right samples, or refuse them and say where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

from shoal.errors import ShardError
from shoal.formats.shard_format import Format, Records, Sample, Span
from shoal.index.shard_scan import ShardScan
from shoal.testing.damage import Damage, damaged
from shoal.testing.known_shards import KnownShard, measured, require, same

_Result = TypeVar("_Result")

_MOST_SAMPLES = 40
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class DamageCount:
    """Number of damaged shards tried, and of those at which something was refused."""

    num_tried: int = 0
    num_refused: int = 0

    def __add__(self, other: DamageCount) -> DamageCount:
        return DamageCount(self.num_tried + other.num_tried, self.num_refused + other.num_refused)


class Answer(NamedTuple):
    """Result for a sample of a damaged shard: the sample, or the error that refused it."""

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

    Raises `AssertionError` if a result is anything but a sample or a `ShardError`, or a wrong sample although
    ``detects_damage``.
    """
    known = replace(known, format_name=format.name)
    if not 0 < len(known.data) <= _MOST_BYTES:
        return DamageCount()
    found = known.scan(format)
    decoded_bytes = 0 if found.piece_decoded_bytes is None else int(found.piece_decoded_bytes.sum())
    known = replace(known, is_decoded=found.piece_decoded_bytes is not None)
    allowed = memory_limit_bytes + 4 * (len(known.data) + decoded_bytes)
    num_refused = 0
    for number, damage in enumerate(damaged(known.data, count)):
        broken = replace(known, data=damage.data)
        where = f"{damage.kind} at byte {damage.byte} (number {number})"
        answers, used_bytes = measured(partial(answers_of_damaged, format, broken, found, damage, where))
        fine = used_bytes <= allowed
        require(fine, known, f"{where}: took {used_bytes} bytes of memory, and {allowed} are allowed")
        num_refused += any(answer.error is not None for answer in answers)
        if detects_damage and damage.kind in ("cut", "flip"):
            for answer in answers:
                right = answer.error is not None or (
                    answer.number < len(known.samples) and same(answer.sample, known.samples[answer.number])
                )
                require(right, known, f"{where}: sample {answer.number} is given out as {answer.sample!r:.300}")
    return DamageCount(count, num_refused)


def answers_of_damaged(
    format: Format,  # noqa: A002
    broken: KnownShard,
    found: ShardScan,
    damage: Damage,
    where: str,
) -> list[Answer]:
    """Return the results for a damaged shard, by a new index of it, and by ``found``, one from before the damage.

    Raises `AssertionError` if a result is anything but a sample or a `ShardError`.
    """
    answers = _with_new_index(format, broken, where)
    if damage.kind in ("cut", "flip", "lie"):
        answers += _with_index(format, broken, found, where)  # for a dataset damaged after it was indexed
    return answers


def _with_new_index(format: Format, broken: KnownShard, where: str) -> list[Answer]:  # noqa: A002
    found = _attempt(partial(broken.scan, format), broken, where, "a scan", len(broken.data))
    if isinstance(found, ShardError):
        return [Answer(0, None, found)]
    first = int(found.sample_starts[0])
    fine = 0 <= first <= int(found.sample_starts[-1]) <= len(broken.data)
    require(fine, broken, f"{where}: a scan finds samples in bytes that the shard does not have")
    return _with_index(format, broken, found, where)


def _with_index(format: Format, broken: KnownShard, found: ShardScan, where: str) -> list[Answer]:  # noqa: A002
    begin, end = int(found.sample_starts[0]), int(found.sample_starts[-1])
    num_bytes = max(len(broken.data), end)  # by its index, a truncated shard had this many
    starts = None if found.piece_samples is not None else (found.sample_starts - begin).tolist()

    def parsed(given: list[int] | None) -> Records:
        span = Span(broken.name, begin, found.num_samples, given, found.head)
        records = format.parse(broken.data[begin:end], span)
        records.layout_crcs()
        return records

    answers = []
    for given in () if not found.num_samples else (None,) if starts is None else (starts, None):
        records = _attempt(partial(parsed, given), broken, where, "opening samples", num_bytes)
        if isinstance(records, ShardError):
            answers.append(Answer(0, None, records))
            continue
        for number in range(min(found.num_samples, _MOST_SAMPLES)):
            sample = _attempt(partial(records.sample, number), broken, where, f"sample {number}", num_bytes)
            if isinstance(sample, ShardError):
                answers.append(Answer(number, None, sample))
            else:
                answers.append(Answer(number, sample, None))
    return answers


def _attempt(
    work: Callable[[], _Result], broken: KnownShard, where: str, what: str, num_bytes: int
) -> _Result | ShardError:
    """Return the result of some work, or the `ShardError` that refuses it; any other error is a defect."""
    try:
        return work()
    except ShardError as error:
        _check_error(error, broken, where, num_bytes)
        return error
    except AssertionError:
        raise
    except Exception as error:
        kind = type(error).__name__
        msg = f"{broken.format_name}, shard {broken.name!r}: {where}: {what} raises {kind} where ShardError is due: "
        msg += str(error)
        raise AssertionError(msg) from error


def _check_error(error: ShardError, broken: KnownShard, where: str, num_bytes: int) -> None:
    # Errors about decompressed data name a byte of that data.
    end = num_bytes if not broken.is_decoded else error.byte
    inside = error.byte is None or 0 <= error.byte <= (end or 0)
    text = f"{where}: the error names byte {error.byte}, and the shard has {num_bytes}"
    require(inside, broken, f"{text}: {error.message}")
    require(error.shard == broken.name, broken, f"{where}: the error names shard {error.shard!r}")
    require(bool(error.hint), broken, f"{where}: the error does not say what to do: {error.message}")
