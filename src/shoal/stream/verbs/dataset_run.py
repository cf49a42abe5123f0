"""The run of a dataset: its iterators and epochs, the states that resume it, and proof of its deliveries."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from shoal.errors import StateError, UsageError
from shoal.hints import no_attribute
from shoal.order.seeds import MAX_SEED
from shoal.order.state_dict import State
from shoal.order.states.deals import Start
from shoal.reading.cache.cached_ranges import cache_counts
from shoal.stats.run_stats import RunStats
from shoal.stream.dataset_stream import Stream
from shoal.stream.generations.saved_generations import spec_as_saved
from shoal.stream.iterating.iterator import Iteration
from shoal.stream.refilling.refilled_states import resumed
from shoal.stream.refilling.steps_of_pass import StepsOfPass
from shoal.stream.states.certificate import Certificate, covered, differences
from shoal.stream.states.growing_states import order_as_saved
from shoal.stream.states.sequence_hashes import hashes_of
from shoal.stream.verbs.dataset_requests import count_of
from shoal.stream.workers.foreign_loaders import refuse_in_worker

_log = logging.getLogger("shoal")


class DatasetRun:
    """Methods of `Dataset` that run a dataset instead of returning a new dataset."""

    stream: Stream

    def __getattr__(self, name: str) -> Any:
        """Raise an error for an unknown name, and suggest a similar name."""
        if hasattr(type(self), name):  # a property failed with an AttributeError: raise that error
            return object.__getattribute__(self, name)
        raise AttributeError(no_attribute("a dataset", name, dir(type(self))))

    def __iter__(self) -> Iteration | StepsOfPass:
        """Iterate on this rank: from the loaded position if a state of this epoch was loaded, else from the start.

        With ``batch(steps=)`` each iterator continues where the last iterator ended.

        Examples
        --------
        >>> for batch in ds.take(8).decode().shuffle(seed=0).batch(4):
        ...     batch["txt"], batch["cls"]
        (['cat 6', 'cat 4', 'cat 3', 'cat 5'], array([0, 0, 0, 0]))
        (['cat 2', 'cat 0', 'cat 7', 'cat 1'], array([0, 0, 0, 0]))
        """
        refuse_in_worker()
        stream = self.stream
        start = partial(stream.iterator_spec, waits_for_little=True, in_passes=True)
        iteration, num_steps = Iteration(start(), renew=lambda: (start(), None)), stream.num_steps_of_pass
        if num_steps is None:
            return iteration
        return StepsOfPass(iteration, lambda: Iteration(start()), stream.stay, num_steps)

    @property
    def epoch(self) -> int:
        """Epoch of the next iterator.

        Examples
        --------
        >>> samples = list(ds)
        >>> ds.epoch
        1
        """
        return self.stream.cursor.epoch

    def set_epoch(self, epoch: int) -> None:
        """Start the next iterator at the beginning of this epoch; for the current epoch, the position stays.

        Examples
        --------
        >>> ds = ds.shuffle(seed=0)
        >>> ds.set_epoch(3)
        >>> next(iter(ds))["__key__"], ds.ids(epoch=3, stop=1)
        ('cat/087', array([87]))
        """
        epoch, stream, cursor = count_of(epoch, "set_epoch()"), self.stream, self.stream.cursor
        if stream.num_steps_of_pass is not None:
            return  # passes follow each other, and ranks may be in different epochs
        if epoch < cursor.epoch and stream.resolved.deals:
            stream.resolved = stream.resolved.with_deals(())  # a restarted epoch is whole
        if epoch != cursor.epoch:
            if cursor.loaded_epoch is not None:
                text = "set_epoch(%d) leaves the loaded position %d of epoch %d"
                _log.warning(text, epoch, cursor.start.number, cursor.epoch)
            cursor.begin_epoch(epoch)
        cursor.name_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the newest iterator: a few integers. The state of any rank resumes all ranks.

        With ``filter(refill=True)`` each rank has its own state; see `shoal.merge_states`.

        Raises
        ------
        StateError
            Several ranks get single samples, `filter` or `reading` drops samples, and the epoch is unfinished.

        Examples
        --------
        >>> ds = ds.shuffle(seed=0).batch(8)
        >>> batch = next(iter(ds))
        >>> ds.state_dict()
        {'version': 3, 'epoch': 0, 'position': 8, 'seed': 0, 'order': {...}, 'index': '...', 'shards': 4, 'check': '...'}
        """
        point = self.stream.cursor.resume_point
        return self.stream.start_state() if point is None else self.stream.state(*point)

    def state_at(self, position: int, *, epoch: int = 0) -> dict[str, Any]:
        """Return the state at a position of an epoch; `load_state_dict` resumes from it.

        Positions count samples over all ranks, as in `ids`. To continue a run of another library, give the number of
        samples that the run consumed in the epoch.

        Examples
        --------
        >>> state = ds.shuffle(seed=0).state_at(120, epoch=2)
        >>> state["epoch"], state["position"], state["seed"]
        (2, 120, 0)
        """
        resolved = self.stream.resolved
        number, epoch = count_of(position, "state_at(position)"), count_of(epoch, "state_at(epoch=)")
        if number > (size := resolved.num_positions(epoch)):
            msg = f"state_at() got position {number} of an epoch of {size} samples"
            raise UsageError(msg, hint="positions count samples over all ranks: steps times the global batch")
        if number == size:
            number, epoch = 0, epoch + 1
        start = State.from_dict(self.stream.state(epoch, 0))
        segments = resolved.segments_of_state(epoch, number)
        return replace(start, position=number, deals=(), segments=segments).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state: at any world size, with any batch size.

        The state supplies numbers that `shuffle` left open (a window in bytes). Positions left out by the saved run
        (`without`) are left out here, too, in addition to the gaps of this dataset.

        Raises
        ------
        StateError
            The state belongs to another dataset, seed or order, or to a newer shoal; the message names both sides. Or
            the checksum of the state shows a modification.

        Examples
        --------
        >>> ds = ds.shuffle(seed=0).batch(8)
        >>> batch, state = next(iter(ds)), ds.state_dict()
        >>> resumed = shoal.open("data").shuffle(seed=0).batch(64).partition(rank=0, world_size=1)
        >>> resumed.load_state_dict(state)
        >>> [len(batch["txt"]) for batch in resumed]
        [64, 64, 64]
        """
        stream, spec = self.stream, self.stream.spec
        if hasattr(state, "keys") and "check" not in state:
            state = self._adopted(state)
        saved = State.from_dict(state)
        as_saved = spec_as_saved(spec, saved)
        before = stream.resolved if as_saved is spec else as_saved.resolve()
        spec = as_saved
        saved.check_tokenizers(spec.tokenizers, before.in_epoch(saved.epoch).state_order)
        before = order_as_saved(spec, before, saved)
        resolved, epoch = before.resumed(saved, spec.gaps), saved.epoch
        starts: Mapping[int, Start] = {saved.epoch: Start(resolved.number_of(saved.epoch, saved.position))}
        if saved.deals:
            resolved, epoch, starts = resumed(saved, resolved, stream.partition, spec.ranks.resolve()[0])
        stream.move(spec, resolved)
        stream.cursor.begin_loaded(epoch, starts.get(epoch, Start()), starts)
        stream.cursor.loaded = "" if any(deal.rank is not None for deal in saved.deals) else str(state["check"])
        stream.cursor.deliveries.forget()

    def _adopted(self, checkpoint: Mapping[str, Any]) -> Mapping[str, Any]:
        """Convert a checkpoint of the order's library to a state; return other mappings unchanged."""
        adopted = self.stream.resolved.adopted(checkpoint)
        if adopted is None:
            return checkpoint
        order, epoch, position = adopted
        if not (0 <= epoch <= MAX_SEED and 0 <= position <= order.num_samples):
            msg = f"the checkpoint is at position {position} of epoch {epoch}; an epoch has {order.num_samples} samples"
            raise StateError(msg, hint="the checkpoint was changed, or belongs to another dataset")
        self.stream.resolved = order
        return self.state_at(position, epoch=epoch)

    def certificate(self) -> dict[str, Any]:
        """Return proof of the samples that this rank delivered since this object was made, or a state was loaded.

        A few numbers per epoch: a sum over position, id and checksum of every sample that `iter`, or a DataLoader of
        shoal, has yielded; marked repeats, and samples dropped by `filter`, do not count. The sum over ranks
        (`shoal.merge_certificates`) is the same for any world size, workers and batch size, and changes if a sample was
        missing, duplicated, replaced or moved. Save the certificate beside the state: a resumed run merges the
        certificates of both parts.

        Examples
        --------
        >>> batches = list(ds := ds.shuffle(seed=0).batch(8))
        >>> ds.certificate()["epochs"]
        {'0': {'start': 0, 'end': 200, 'num_samples': 200, 'sum': '...'}}
        """
        stream, parts = self.stream, self.stream.delivered_parts()
        resolved = stream.resolved.in_epoch(max(parts, default=stream.cursor.epoch))
        # All pieces have checksums if the first piece has checksums: there is no need to wait for later pieces.
        first = stream.resolved.first(stream.spec.source, max(parts, default=stream.cursor.epoch))
        kind, seed = hashes_of(first.resolved).kind, resolved.seed
        return Certificate(resolved.fingerprint, seed, resolved.state_order, kind, parts, resolved.gaps).to_dict()

    def check_certificate(self, certificate: Mapping[str, Any]) -> str:
        """Verify, from the index alone, that exactly the due samples have been delivered.

        Returns
        -------
        str
            The checked part of each epoch, since a run may have stopped: "epoch 0: all of 200 samples; epoch 1, not
            whole: positions [0, 64) of 200".

        Raises
        ------
        StateError
            Other samples were delivered; the message lists the differences by epoch. Or the certificate belongs to
            another dataset or order.

        Examples
        --------
        >>> samples = list(ds)
        >>> ds.check_certificate(ds.certificate())
        'epoch 0: all of 200 samples'
        """
        proof, stream = Certificate.from_dict(certificate), self.stream
        counts_share = stream.batcher.counts_share
        if texts := differences(proof, stream.resolved):
            hint = "merge the certificates of all ranks, and of earlier parts of the run"
            if stream.spec.has_filters or counts_share or stream.spec.reading.leaves_out:
                hint += (
                    '; samples dropped by filter(), reading() or remainder="drop" count as not delivered (see stats())'
                )
            if counts_share:
                hint += "; ranks that fill their batches are at different positions until an epoch ends"
            raise StateError("; ".join(texts), hint=hint)
        return covered(proof, stream.resolved, stream.batcher.note)

    def stats(self) -> dict[str, Any]:
        """Return the counters since this dataset object was made, and the throughput of its newest iterator.

        Examples
        --------
        >>> batches = list(ds := ds.batch(64))
        >>> stats = ds.stats()
        >>> stats["num_samples"], stats["num_batches"], stats["num_skipped"], stats["num_retries"]
        (200, 4, 0, 0)
        """
        counters = self.stream.counters
        return RunStats(counters.as_dict()) | cache_counts(self.stream.spec.source.caches, counters.of_workers)
