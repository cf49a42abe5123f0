"""Progress of a packing in bytes, computed from the progress of each piece of work."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Progress = Callable[[int, int], None]
"""Progress callback, called with the approximate bytes done and the total."""


class Tally:
    """Bytes done, of pieces of ``piece_bytes``, in one pass or in several passes in a row."""

    def __init__(self, piece_bytes: Sequence[int], progress: Progress | None, *, num_passes: int = 1) -> None:
        self._sizes = piece_bytes
        self._total = sum(piece_bytes) * num_passes
        self._shares: dict[int, float] = {}  # of pieces in progress
        self._finished = 0
        self._progress = progress

    def came_to(self, number: int, share: float) -> None:
        """Record the progress of a piece, from 0 to 1; 1 means finished and must come only once."""
        if share >= 1.0:
            self._shares.pop(number, None)
            self._finished += self._sizes[number]
        else:
            self._shares[number] = share
        if self._progress is not None:
            under_way = sum(self._sizes[piece] * part for piece, part in self._shares.items())
            self._progress(self._finished + int(under_way), self._total)

    def pass_over(self) -> None:
        """Count one of the passes as done by an earlier run."""
        self._finished += sum(self._sizes)
