"""The run of a dataset: its iterators and epochs, the states that resume it, and what it has delivered."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from shoal.hints import no_attribute
from shoal.stream.dataset_stream import Stream
from shoal.stream.iterating.iterator import Iteration
from shoal.stream.refilling.steps_of_pass import StepsOfPass
from shoal.stream.verbs.dataset_requests import count_of
from shoal.stream.workers.foreign_loaders import refuse_in_worker


class DatasetRun:
    """Methods of `Dataset` that run it; none of them makes another dataset."""

    stream: Stream

    def __getattr__(self, name: str) -> Any:
        """Refuse a name that a dataset does not have, with the one that was probably meant."""
        if hasattr(type(self), name):  # a property that failed with an AttributeError: raise it, not ours
            return object.__getattribute__(self, name)
        raise AttributeError(no_attribute("a dataset", name, dir(type(self))))

    def __iter__(self) -> Iteration | StepsOfPass:
        """Iterate on this rank: from the loaded position if one was loaded for this epoch, else from its start.

        With ``batch(steps=)`` each iterator goes on where the one before it ended.
        """
        refuse_in_worker()
        start = partial(self.stream.iterator_spec, waits_for_little=True, in_passes=True)
        iteration, num_steps = Iteration(start(), renew=lambda: (start(), None)), self.stream.num_steps_of_pass
        return (
            iteration
            if num_steps is None
            else StepsOfPass(iteration, lambda: Iteration(start()), self.stream.stay, num_steps)
        )

    @property
    def epoch(self) -> int:
        """Epoch of the next iterator."""
        return self.stream.cursor.epoch

    def set_epoch(self, epoch: int) -> None:
        """Start the next iterator at the beginning of this epoch; if it is the current epoch, the position stays."""
        self.stream.set_epoch(count_of(epoch, "set_epoch()"))

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the newest iterator: a few integers, the same on every rank; any one resumes all.

        With ``filter(refill=True)`` each rank has its own; see `shoal.merge_states`.

        Raises
        ------
        StateError
            Several ranks get single samples, some of which `filter` or `reading` leaves out, and an epoch is under way.
        """
        return self.stream.state_dict()

    def state_at(self, position: int, *, epoch: int = 0) -> dict[str, Any]:
        """Return the state at a position of an epoch; `load_state_dict` resumes from it.

        Positions count samples over all ranks, as in `ids`: a run begun with another library can continue at the number
        of samples of the epoch that it has consumed.
        """
        return self.stream.state_at(position, epoch)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state: at any world size, with any batch size.

        Numbers that `shuffle` left open (a window in bytes) are taken from the state. Positions that its run left out
        (`without`) are left out here too, in addition to those that this dataset leaves out.

        Raises
        ------
        StateError
            The state belongs to another dataset, seed or order, or to a newer shoal; the message names both sides. Or
            it was modified after it was saved: it has a checksum.
        """
        self.stream.load_state_dict(state)

    def certificate(self) -> dict[str, Any]:
        """Return proof of what this rank delivered since this object was made, or a state was loaded.

        A few numbers per epoch: a sum over position, id and checksum of every sample that `iter`, or a DataLoader of
        shoal, has yielded; marked repeats, and samples dropped by `filter`, do not count. Summed over ranks
        (`shoal.merge_certificates`) it is the same for any world size, workers and batch size, and it changes if a
        sample was missing, duplicated, replaced or moved. Save it beside the state: a run that resumes from
        there merges both.
        """
        return self.stream.certificate()

    def check_certificate(self, certificate: Mapping[str, Any]) -> str:
        """Verify, from the index alone, that exactly the samples that were due have been delivered.

        Returns
        -------
        str
            How much of each epoch was checked, since a run may have stopped: "epoch 0: all of 200 samples; epoch 1, not
            whole: positions [0, 64) of 200".

        Raises
        ------
        StateError
            They were not; the message lists the differences by epoch. Or it is of another dataset or order.
        """
        return self.stream.check_certificate(certificate)

    def stats(self) -> dict[str, Any]:
        """Return the counters since this dataset object was made, and the throughput of its newest iterator."""
        return self.stream.stats()
