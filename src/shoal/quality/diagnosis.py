"""Weights, usual causes and cures of findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice on all findings of one name.

    Parameters
    ----------
    importance
        Weight of the worst finding of this name; the others weigh less, by their size.
    brief
        The finding in a few words.
    cause, cure
        Usual cause, and remedy.
    """

    importance: float
    brief: str
    cause: str
    cure: str


_FEW_CHUNKS = "few chunks or whole shards are mixed at a time, of data that lie sorted"
_WIDER = (
    "mix as many chunks at a time as a global batch has samples: a larger window, smaller chunks, more shards read at "
    "once; or shuffle the data once when they are written"
)
_EPOCH = "the epoch is never told to the loader, or its seed does not reach all that is random"
_SET_EPOCH = "call set_epoch() for every epoch, and derive all randomness from seed and epoch by hashing, not by adding"
_CIPHER = "the permutation is computed with too few rounds, or by a linear function; or mixing is poor altogether"
_ROUNDS = "mend the mixing first; if that is fine, use more rounds or another permutation"

ADVICE: Mapping[str, Advice] = {
    "missing": Advice(
        1.6,
        "samples are missing",
        "a dropped remainder, a run or worker that ended early, a resume that skips, or ids of one rank only",
        "keep the remainder, deal evenly, resume exactly; audit the ids of one rank as a part",
    ),
    "repeated": Advice(
        1.6,
        "samples are repeated",
        "padding to equal ranks, sampling with replacement, every worker reading all, or a resume from too early",
        "deal each sample to one rank and worker, mark or drop padding, resume exactly",
    ),
    "unknown": Advice(
        1.6,
        "ids are unknown",
        "ids are not numbered from 0 in storage order, or belong to another dataset",
        "give the number of samples, or the keys of this dataset",
    ),
    "same order": Advice(1.5, "the same order comes again", _EPOCH, _SET_EPOCH),
    "variance": Advice(1.0, "batches vary too much", _FEW_CHUNKS, _WIDER),
    "start and end": Advice(
        0.8,
        "the ends of the epoch are not mixed",
        "a buffer that is still filling at the start, or a tail that is not shuffled",
        "an order over the whole epoch instead of a buffer over a stream, or chunks in random order beneath the buffer",
    ),
    "displacement": Advice(0.8, "samples stay near their place", "a buffer or blocks over storage order", _WIDER),
    "storage order": Advice(
        0.8, "spans are in storage order", "a tail or remainder that is not shuffled, or no shuffle at all", _WIDER
    ),
    "in step": Advice(
        0.7, "orders are in step", "shards or sources come in one order in every epoch or seed", _SET_EPOCH
    ),
    "locality": Advice(0.7, "neighbours stay together", _FEW_CHUNKS, _WIDER),
    "neighbours met again": Advice(
        0.6,
        "batches stay together",
        "groups or batches are fixed, and only their order changes",
        "shuffle samples inside of groups anew in every epoch",
    ),
    "parts of the dataset": Advice(0.5, "batches come from few parts", _FEW_CHUNKS, _WIDER),
    "echo": Advice(0.5, "an echo of the order", _CIPHER, _ROUNDS),
    "parity": Advice(0.5, "ids take turns", _CIPHER, _ROUNDS),
    "runs": Advice(0.5, "ids go up or down in a row", "spans that are only merged, not mixed", _WIDER),
    "steps": Advice(0.4, "the same steps over and over", _CIPHER, _ROUNDS),
}
