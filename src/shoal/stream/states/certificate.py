"""Certificates: a summary of the delivered samples of a run, for comparison with other runs and with the index."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shoal.errors import StateError, UsageError
from shoal.figures import counted
from shoal.order.position_subsets import NO_GAPS, Gaps
from shoal.order.state_dict import State, gaps_in
from shoal.order.states.checked_states import checked
from shoal.order.states.state_fields import CERTIFICATE
from shoal.reading.resolved_order import Resolved
from shoal.stream.states.delivery_sums import DeliveredPart, Proof, RecordHashes
from shoal.stream.states.sequence_hashes import hashes_of

VERSION = 1
_BLOCK_POSITIONS = 1 << 18


@dataclass(frozen=True, slots=True)
class Certificate:
    """A record of the samples delivered from a dataset, in an order.

    Parameters
    ----------
    index, seed, order
        As in a state: the fingerprint of the dataset, and the parameters of its order.
    checksums
        Checksums of records that went into the sums: "records", "extents" or "none".
    epochs
        The part of each epoch that was delivered.
    gaps
        Positions that the run left out: in the ranges of ``epochs``, but not in the sums.
    """

    index: str
    seed: int
    order: Mapping[str, Any]
    checksums: str
    epochs: Mapping[int, DeliveredPart]
    gaps: Gaps = NO_GAPS

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types: 200 bytes, and 80 bytes per epoch."""
        terms = {
            "version": VERSION,
            "index": self.index,
            "seed": self.seed,
            "order": dict(self.order),
            "checksums": self.checksums,
            "epochs": {str(epoch): part.to_dict() for epoch, part in sorted(self.epochs.items())},
        }
        return terms | ({"without": [list(span) for span in self.gaps.ranges]} if self.gaps else {})

    @staticmethod
    def from_dict(given: Any) -> Certificate:
        """Return the certificate from the result of `to_dict`; `StateError` for other data, or from a newer shoal."""
        fields = checked(CERTIFICATE, given)
        epochs = {
            int(epoch): DeliveredPart(
                part["start"], part["end"], Proof(part["num_samples"], int(part["sum"], 16)), part.get("index", "")
            )
            for epoch, part in fields["epochs"].items()
        }
        terms = {name: fields[name] for name in ("index", "seed", "order", "checksums")}
        return Certificate(**terms, epochs=epochs, gaps=gaps_in(CERTIFICATE, fields))

    def at(self, epoch: int) -> State:
        """Return the state of the certified stream at the start of an epoch."""
        return State(epoch=epoch, position=0, seed=self.seed, order=self.order, index=self.index)


def merge_certificates(certificates: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    r"""Merge the certificates of several ranks, or of several parts of a run, into one.

    Parameters
    ----------
    certificates
        `Dataset.certificate` of all ranks, in any order; for a resumed run, also the certificates saved with its
        states. If ranks get the same samples (``partition(replicate=k)``), only the certificate of one of these ranks.

    Returns
    -------
    dict
        Independent of the world size, the workers, the batch size, and the positions of the stops.

    Raises
    ------
    StateError
        The certificates are of different datasets, orders or seeds; or one is not a certificate.
    UsageError
        There are no certificates.

    Examples
    --------
    >>> ranks = [ds.shuffle(seed=0).batch(8).partition(rank=rank, world_size=4) for rank in range(4)]
    >>> batches = [batch for rank in ranks for batch in rank]
    >>> merged = shoal.merge_certificates(rank.certificate() for rank in ranks)
    >>> ranks[0].check_certificate(merged)
    'epoch 0: all of 200 samples'
    """
    merged_from = [Certificate.from_dict(certificate) for certificate in certificates]
    if not merged_from:
        raise UsageError("there are no certificates to merge", hint="give the certificates of all ranks")
    first, epochs, gaps = merged_from[0], dict(merged_from[0].epochs), merged_from[0].gaps
    for other in merged_from[1:]:
        for name in ("index", "seed", "order", "checksums"):
            if getattr(first, name) != getattr(other, name):
                sides = " and ".join(json.dumps(getattr(side, name), sort_keys=True) for side in (first, other))
                msg = f"these certificates are from different runs: {name} is {sides}"
                raise StateError(msg, hint="merge certificates of the ranks and of the earlier parts of one run")
        for epoch, part in other.epochs.items():
            epochs[epoch] = epochs[epoch].plus(part) if epoch in epochs else part
        gaps = gaps.plus(other.gaps)
    return replace(first, epochs=epochs, gaps=gaps).to_dict()


def differences(certificate: Certificate, resolved: Resolved) -> list[str]:
    """Describe deliveries that differ from the index, epoch by epoch, without reading data; about 0.2 us per sample.

    `StateError` if the certificate is of another dataset or order, or used another kind of checksums than the index.
    """
    _of_run(certificate, resolved, max(certificate.epochs, default=0))  # also of a run that delivered nothing
    texts = []
    for epoch, part in sorted(certificate.epochs.items()):
        own = _of_run(certificate, resolved, epoch)
        hashes = hashes_of(own)
        if hashes.kind != certificate.checksums:
            msg = f"the certificate used checksums of {certificate.checksums}; this index has checksums of "
            raise StateError(f"{msg}{hashes.kind}", hint="compare with the index that the run used")
        size = own.num_positions(epoch)
        if not 0 <= part.start < part.end <= size:
            texts.append(f"epoch {epoch}: positions [{part.start}, {part.end}), but an epoch has {size}")
        elif text := _difference(part, own, hashes, epoch):
            texts.append(f"epoch {epoch}, positions [{part.start}, {part.end}): {text}")
    return texts


def covered(certificate: Certificate, resolved: Resolved, note: str = "") -> str:
    """Describe the part of each epoch that a certificate covers; ``note`` explains gaps in an unfinished epoch."""
    texts, is_whole = list[str](), True
    for epoch, part in sorted(certificate.epochs.items()):
        own = _of_run(certificate, resolved, epoch)
        size = own.num_positions(epoch)
        num_left_out = size - own.num_samples_of(epoch)
        if (part.start, part.end) == (0, size):
            but = f" but {num_left_out:,} left out" if num_left_out else ""
            texts.append(f"epoch {epoch}: all of {counted(size, 'sample')}{but}")
        else:
            is_whole = False
            texts.append(f"epoch {epoch}, not whole: positions [{part.start}, {part.end}) of {size:,}")
    if not note:
        return "; ".join(texts) or "nothing was delivered"
    return "; ".join(texts) if texts and is_whole else f"{'; '.join(texts) or 'no documents yet'}; {note}"


def _of_run(certificate: Certificate, resolved: Resolved, epoch: int) -> Resolved:
    """Return the order of the run with this certificate in an epoch, or raise `StateError`."""
    own = resolved.in_epoch(epoch)
    index = certificate.epochs[epoch].index if epoch in certificate.epochs else ""
    if not index or index == certificate.index:
        return own.resumed(certificate.at(0), NO_GAPS).with_deals((), certificate.gaps)
    if own.fingerprint != index:
        msg = f"epoch {epoch} read the dataset {index}, but here it reads {own.fingerprint}: the dataset has grown since"
        raise StateError(msg, hint="check the certificate at the end of each epoch, or with the dataset of that epoch")
    return own.with_deals((), certificate.gaps)


def _difference(part: DeliveredPart, resolved: Resolved, hashes: RecordHashes, epoch: int) -> str:
    num_delivered, total = part.proof
    first, stop = (resolved.number_of(epoch, position) for position in (part.start, part.end))
    num_due = stop - first
    if num_delivered != num_due:
        more = "more" if num_delivered > num_due else "fewer"
        return f"{num_delivered} samples were delivered, {abs(num_delivered - num_due)} {more} than expected"
    gaps, expected = resolved.gaps, 0
    order = resolved.untouched(epoch)
    for start in range(part.start, part.end, _BLOCK_POSITIONS):
        positions = np.arange(start, min(start + _BLOCK_POSITIONS, part.end))
        ids = order.ids(start, start + len(positions))
        left = gaps.left(epoch, resolved.num_positions(epoch))
        kept = slice(None) if left is None else left.numbers(positions) >= 0
        expected += int(hashes.of(epoch, positions[kept], ids[kept]).sum(dtype=np.uint64))
    if expected % 2**64 != total:
        return f"the number of samples is right, but samples were replaced or moved ({total:016x})"
    return ""
