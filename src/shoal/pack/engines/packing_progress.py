"""How far the work is, in bytes, from how far each of its pieces is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["Progress", "Tally"]

Progress = Callable[[int, int], None]
"""Told how far the work is: about how many bytes are done, and in all."""


class Tally:
    """Bytes done: of ``piece_bytes``, in one pass or several after each other."""

    def __init__(self, piece_bytes: Sequence[int], progress: Progress | None, *, num_passes: int = 1) -> None:
        self._sizes = piece_bytes
        self._total = sum(piece_bytes) * num_passes
        self._shares: dict[int, float] = {}  # of pieces that are under way
        self._finished = 0
        self._progress = progress

    def came_to(self, number: int, share: float) -> None:
        """Note how far a piece is, from 0 to 1; at 1, once, it is finished."""
        if share >= 1.0:
            self._shares.pop(number, None)
            self._finished += self._sizes[number]
        else:
            self._shares[number] = share
        if self._progress is not None:
            under_way = sum(self._sizes[piece] * part for piece, part in self._shares.items())
            self._progress(self._finished + int(under_way), self._total)

    def pass_over(self) -> None:
        """Note that an earlier run has done one of the passes."""
        self._finished += sum(self._sizes)
