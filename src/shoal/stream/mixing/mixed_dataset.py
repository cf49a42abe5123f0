"""The dataset that `shoal.mix` returns, with methods for its sources and their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shoal.arguments import as_flag
from shoal.errors import UsageError
from shoal.order.protocol import as_whole
from shoal.order.states.forms import MAX_POSITION
from shoal.pipeline.sequence_arrays import SequenceFields
from shoal.plugins.displays import as_html
from shoal.reading.mixture.mix_request import MixRequest
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.stream.dataset import Dataset
from shoal.stream.dataset_spec import DatasetSpec
from shoal.stream.mixing.mean_lengths import positions_of_tokens
from shoal.stream.mixing.source_parts import checked_sources, follows_of, rows_of, source_request, warn_of_twins, with_sources
from shoal.stream.verbs.dataset_requests import count_of

_FAR = 1 << 17  # positions further apart are looked up separately


class MixedDataset(Dataset):
    """A mixture of datasets.

    The methods of this class count positions across epochs: position ``p`` of epoch ``e`` is ``e * num_samples + p``,
    or ``p`` plus the samples of all earlier epochs if epochs differ in length. Positions count documents, also after
    `pack_sequences` and `batch_by_length`; only `reweight` counts sequences then.

    Examples
    --------
    >>> mixed
    <shoal.Dataset: mix(seed=0) of web, code, 120 samples>
    >>> next(iter(mixed.shuffle(seed=0)))
    {'text': 'web 21', '__source__': 'web'}
    """

    def _repr_html_(self) -> str:
        return as_html("mixture", self)

    @property
    def resolved(self) -> ResolvedMixture:  # type: ignore[override]  # a mixture has no chunks of its own
        """The orders of all sources, resolved to integers; prints as a line for each source.

        Examples
        --------
        >>> print(mixed.shuffle(seed=0).resolved)
        mix of web 75.00%, code 25.00%; seed=0, Even()
          web: shuffle(shoal.orders.Window(chunks=2, num_canonical_nodes=1), seed=16156474252131498545, chunk=389620)
          code: shuffle(shoal.orders.Window(chunks=2, num_canonical_nodes=1), seed=9893989137788036230, chunk=135520)
        """
        return cast("ResolvedMixture", self.stream.resolved.in_epoch(self.stream.cursor.epoch))

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources; `source_of` numbers them in this order.

        Examples
        --------
        >>> mixed.sources
        ('web', 'code')
        """
        return self._request.names

    def counts(self, position: int) -> dict[str, int]:
        """Count the samples of each source before a position; O(sources), half a millisecond for 64 sources.

        Examples
        --------
        >>> mixed.counts(64)
        {'web': 48, 'code': 16}
        """
        counts = self._request.counts(count_of(position, "counts()"))
        return dict(zip(self.sources, counts.tolist(), strict=True))

    def source_of(self, positions: Any) -> NDArray[np.int64]:
        """Return the source number of each position, same shape; 30 ns per position in a range, with 64 sources.

        Examples
        --------
        >>> mixed.source_of(range(8))
        array([0, 0, 1, 0, 1, 1, 0, 0])
        """
        try:
            numbers = np.asarray(positions)
        except ValueError:  # lists of several lengths
            numbers = np.array([None])
        if not numbers.size:
            return np.zeros(numbers.shape, dtype=np.int64)
        if numbers.dtype.kind not in "iu" or int(numbers.min()) < 0 or int(numbers.max()) > MAX_POSITION:
            raise UsageError(f"source_of() takes positions from 0 on; got {positions!r:.80}")
        flat, back = np.unique(numbers, return_inverse=True)
        sources = np.empty(len(flat), dtype=np.int64)
        for part in np.split(np.arange(len(flat)), np.flatnonzero(np.diff(flat) > _FAR) + 1):
            low, high = int(flat[part[0]]), int(flat[part[-1]]) + 1
            sources[part] = self._request.schedule.sources(low, high)[flat[part] - low]
        return sources[back].reshape(numbers.shape)

    def exhausted_at(self) -> dict[str, int | None]:
        """Return, by name, the position after the first round of each source; None if the round never ends.

        Examples
        --------
        >>> mixed.exhausted_at()
        {'web': 120, 'code': 114}
        """
        return self._request.exhausted_at()

    def weights_at(self, position: int) -> dict[str, float]:
        """Return the share of samples of each source at a position, by name.

        Examples
        --------
        >>> mixed.weights_at(0)
        {'web': 0.75, 'code': 0.25}
        """
        weights = self._request.schedule.weights_at(count_of(position, "weights_at()"))
        total = sum(weights.values())
        return {name: weight / total for name, weight in weights.items()}

    def reweight(
        self,
        *,
        at: int,
        weights: Mapping[str, Any],
        ramp: int = 0,
        add: Mapping[str, Dataset] | None = None,
        in_steps: bool = False,
        in_tokens: bool = False,
        epoch: int = 0,
    ) -> MixedDataset:
        """Return the mixture with other weights from a position on; earlier positions stay the same.

        States list the changes: a state from before the change loads into the changed mixture, and a state from after
        the change contains the change. Counts continue, so a change neither repeats nor skips a sample.

        After `pack_sequences` or `batch_by_length`, positions count sequences, and every sequence before the change
        stays the same. Otherwise positions count documents, and blocks of packed documents end at the change.

        Parameters
        ----------
        at
            The position, not yet yielded, counted from the start of ``epoch``.
        weights
            Weights of all sources, by name, in the unit of `mix`; 0 retires a source.
        ramp
            Number of positions of a linear transition from the old to the new weights (in up to 256 steps).
        add
            New sources by name.
        in_steps
            If true, ``at`` and ``ramp`` count steps of the global batch of this dataset at this world size. A run
            resumed with other sizes keeps the position of the change.
        in_tokens
            If true, ``at`` and ``ramp`` count tokens: of sequences, padding included, or of samples by the mean length
            of their source (``mix(unit="tokens")``).
        epoch
            The epoch of ``at``.

        Raises
        ------
        UsageError
            The position lies before an earlier change, names do not match, or there are no batches to count.

        Examples
        --------
        >>> changed = mixed.reweight(at=64, weights={"web": 1, "code": 1}, ramp=16)
        >>> changed.weights_at(0), changed.weights_at(80)
        ({'web': 0.75, 'code': 0.25}, {'web': 0.5, 'code': 0.5})
        """
        spec, request = self.stream.spec, self._request
        begin = request.begin(count_of(epoch, "reweight(epoch=)"))
        at, ramp = self._positions(at, ramp, in_steps=in_steps)
        if as_flag("reweight(in_tokens=)", in_tokens):
            at, ramp = self._tokens(request, weights, begin, at, ramp, in_steps=in_steps)
        change = partial(request.reweighted_later, epoch, at)
        if not spec.rows.needs_index:  # positions count documents
            change = partial(request.reweighted, at + begin)
        if add is None:
            again = partial(_reweighted, epoch=epoch, at=at, weights=weights, ramp=ramp)
            return MixedDataset(replace(spec, request=change(weights, ramp), choices=spec.choices.plus(again)))
        added = checked_sources(add)
        if again := [name for name in added if name in request.names]:
            msg = f"the mixture has a source {again[0]!r} already"
            raise UsageError(msg, hint="weights= changes its share; another name adds a source")
        requests = tuple(source_request(name, source, request.length) for name, source in added.items())
        changed = change(weights, ramp, requests)
        by_source: Any = spec.stages[0]
        opened, stage = with_sources(added, by_source.missing, spec.opened, by_source)
        warn_of_twins(opened)
        stages = (stage, *spec.stages[1:])
        rows = rows_of([spec, *added.values()])
        follows = follows_of([spec, *added.values()])
        choices = spec.choices.plus(_refuse_added)
        parts = {"source": opened, "request": changed, "stages": stages, "rows": rows}
        return MixedDataset(replace(spec, **parts, follows=follows, choices=choices))

    def _positions(self, at: int, ramp: int, *, in_steps: bool) -> tuple[int, int]:
        """Return the position and ramp of `reweight`, converted from steps if ``in_steps``."""
        at, ramp = as_whole("reweight(at)", at), as_whole("reweight(ramp)", ramp)
        if not as_flag("reweight(in_steps=)", in_steps):
            return at, ramp
        if self.stream.spec.batching is None:
            msg = "reweight(in_steps=True) counts batches, but this dataset has none yet"
            raise UsageError(msg, hint="call reweight() after batch(), or give at= in positions")
        self.stream.batcher.refuse_steps("reweight(in_steps=True)")
        global_batch = self.stream.partition.global_batch
        return at * global_batch, ramp * global_batch

    def _tokens(
        self, request: MixRequest, weights: Any, begin: int, at: int, ramp: int, *, in_steps: bool
    ) -> tuple[int, int]:
        """Return the position and ramp of `reweight`, converted from tokens."""
        if in_steps:
            msg = "reweight() counts steps or tokens; got in_steps=True and in_tokens=True"
            raise UsageError(msg, hint="leave out in_steps= or in_tokens=")
        if not self.stream.spec.rows.needs_index:
            return positions_of_tokens(request, weights, begin, at, ramp)
        fields = self.stream.spec.rows.made_fields
        if not isinstance(fields, SequenceFields):
            msg = "reweight(in_tokens=True) counts sequences of one length, but batch_by_length() has many lengths"
            raise UsageError(msg, hint="in_steps=True counts batches")
        return -(-at // fields.length), -(-ramp // fields.length)

    @property
    def _request(self) -> MixRequest:
        """The request, with the changes of weights from a loaded state."""
        return self.resolved.request


def _reweighted(spec: DatasetSpec, *, epoch: int, at: int, weights: Any, ramp: int) -> DatasetSpec:
    """Repeat a change of weights on a mixture whose sources have grown: at the same position of the same epoch."""
    request = cast("MixRequest", spec.request)
    if spec.rows.needs_index:
        return replace(spec, request=request.reweighted_later(epoch, at, weights, ramp))
    return replace(spec, request=request.reweighted(at + request.begin(epoch), weights, ramp))


def _refuse_added(spec: DatasetSpec) -> DatasetSpec:
    msg = f"reweight(add=) added a source to {spec.summary()}, and sources of such a mixture cannot grow"
    raise UsageError(msg, hint="mix() all sources from the start, with weight 0 for later ones")
