"""Damaged bytes: truncation, flipped bits, wrong numbers, repeated, removed and inserted spans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from shoal.order.seeds import draws, key

DamageKind = Literal["cut", "flip", "lie", "repeat", "remove", "insert"]
DAMAGE_KINDS: tuple[DamageKind, ...] = get_args(DamageKind)

_LONGEST_SPAN_BYTES = 64
_LIES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
_LIE_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Damage:
    """Damaged bytes, the kind of damage, and the first byte that it touched."""

    kind: DamageKind
    byte: int
    data: bytes


def damaged(data: bytes, count: int, *, seed: int = 0) -> Iterator[Damage]:
    """Yield ``count`` damaged copies of ``data``, every kind of damage in turn, determined by the seed.

    Each takes O(len(data)). Some may by chance equal ``data``.

    >>> [found.kind for found in damaged(b"0123456789", 6)]
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
