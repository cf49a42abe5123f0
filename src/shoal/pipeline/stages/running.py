"""Running a sample through its stages: what errors say of the sample, and which errors mean that it is damaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shoal.errors import ShardError
from shoal.hints import SKIP_HINT
from shoal.index.table import SampleIndex
from shoal.pipeline.stages.stage import DROPPED, Stage
from shoal.reading.checks.damaged_samples import Damaged


class DecodeError(Exception):
    """An error of a stage of one part, for which the data of that part is to blame."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class FieldError(Exception):
    """A field that shoal's own decoders cannot decode; its cause is their error.

    ``otherwise`` is what can be done about it but to leave the sample out.
    """

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
    """Run a sample through all stages; return it or `DROPPED`. Errors of a stage name the sample and its location.

    ``index`` is that of the dataset, if the sample belongs to one; else ``name`` says what errors call it. With
    ``forgiving``, a sample that `Decode` cannot decode becomes `Damaged`; no other error is taken for damage.

    Raises
    ------
    ShardError
        One of shoal's own decoders cannot decode a field. Errors of user functions are raised as they are.
    """
    if type(sample) is Damaged:
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
    called = f"the sample with id {sample_id}" if name is None else name()
    msg = f"{bad} of {called} cannot be decoded: {type(cause).__name__}: {cause}"
    hint = f"{SKIP_HINT}; {bad.otherwise}"
    shard, byte = _place(sample_id, index) or ("a sample of no dataset", None)
    return ShardError(msg, shard=shard, byte=byte, hint=hint)


def _place(sample_id: int, index: SampleIndex | None) -> tuple[str, int] | None:
    """Return the shard of a sample, and the byte at which it begins, or its extent if no more is known."""
    return None if index is None else index.place(sample_id)[:2]


def _named(sample_id: int, index: SampleIndex | None, name: Callable[[], str] | None) -> str:
    """Return a sample in words."""
    if name is not None:
        return name()
    place = _place(sample_id, index)
    where = "" if place is None else f", which begins at byte {place[1]} of {place[0]}"
    return f"the sample with id {sample_id}{where}"
