"""The run of a sample through its stages: errors name the sample, and some errors mean that it is damaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shoal.errors import ShardError
from shoal.hints import SKIP_HINT
from shoal.index.table import SampleIndex
from shoal.pipeline.stages.stage import DROPPED, Stage
from shoal.reading.checks.damaged_samples import Damaged


class DecodeError(Exception):
    """An error that damaged data caused in a stage of one source."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class FieldError(Exception):
    """A field that shoal's decoders cannot decode; its cause is the decoder's error. ``otherwise`` is a second hint."""

    def __init__(self, field: str, otherwise: str) -> None:
        super().__init__(field)
        self.otherwise = otherwise


def run_stages(
    stages: Sequence[Stage],
    sample: Any,
    sample_id: int,
    *,
    index: SampleIndex | None,
    forgiving: bool = False,
    name: Callable[[], str] | None = None,
) -> Any:
    """Run a sample through all stages; return the result or `DROPPED`. Errors of a stage name the sample and its place.

    A sample that is `DROPPED` or `Damaged` already is returned unchanged. ``index`` is the index of the dataset;
    ``name`` names samples that belong to no dataset. If ``forgiving``, a sample with damage (`Stage.blames_data`)
    becomes `Damaged`. Raises `ShardError` if one of shoal's own decoders cannot decode a field; errors of user
    functions are raised unchanged.
    """
    if type(sample) is Damaged or sample is DROPPED:
        return sample
    try:
        for stage in stages:
            sample = stage(sample, sample_id)
            if sample is DROPPED:
                break
    except FieldError as bad:
        undecodable = _undecodable(bad, sample_id, index, name)
        if forgiving:
            return Damaged(undecodable)
        raise undecodable from bad.__cause__
    except DecodeError as failed:
        error = failed.error
        error.add_note(f"shoal: in {_named(sample_id, index, name)}")
        if forgiving:
            return Damaged(error)
        raise error from error.__cause__
    except Exception as error:
        error.add_note(f"shoal: in {stage!r} of {_named(sample_id, index, name)}")
        if forgiving and stage.blames_data(error):
            return Damaged(error)
        raise
    return sample


def _undecodable(
    bad: FieldError, sample_id: int, index: SampleIndex | None, name: Callable[[], str] | None
) -> ShardError:
    cause = bad.__cause__
    sample = f"the sample with id {sample_id}" if name is None else name()
    msg = f"{bad} of {sample} cannot be decoded: {type(cause).__name__}: {cause}"
    shard, byte = ("a sample of no dataset", None) if index is None else index.place(sample_id)[:2]
    return ShardError(msg, shard=shard, byte=byte, hint=f"{SKIP_HINT}; {bad.otherwise}")


def _named(sample_id: int, index: SampleIndex | None, name: Callable[[], str] | None) -> str:
    if name is not None:
        return name()
    if index is None:
        return f"the sample with id {sample_id}"
    shard, byte, _ = index.place(sample_id)
    return f"the sample with id {sample_id}, which begins at byte {byte} of {shard}"
