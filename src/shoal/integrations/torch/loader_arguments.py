"""Arguments of `shoal.torch.DataLoader` that the dataset decides, that contradict each other, or that cannot travel."""

from __future__ import annotations

import pickle
from typing import Any

from torch.utils.data import SequentialSampler

from shoal.errors import UsageError
from shoal.integrations.torch.lightning_epochs import StepSampler
from shoal.stream.iterating.pipeline_spec import PipelineSpec

_FROM_FRAMEWORKS = (StepSampler, SequentialSampler)  # Lightning and Fabric make a new loader with such a sampler

# Refused arguments of torch's loader, with their defaults, and the alternative.
_REFUSED = {
    "batch_size": (None, "the dataset makes the batches: ds.batch({value})"),
    "drop_last": (False, 'the dataset decides what happens to the last batch: ds.batch(..., remainder="drop")'),
    "shuffle": (None, "the dataset has the order: ds.shuffle(seed=...)"),
    "sampler": (None, "the dataset has the order: ds.shuffle() and ds.select()"),
    "batch_sampler": (None, "the dataset has order and batches: ds.shuffle().batch(...)"),
    "in_order": (True, "the order of batches is always exact"),
}


def refuse_decided(arguments: dict[str, Any]) -> None:
    """Raise `UsageError` for arguments that the dataset decides, and `TypeError` for unknown arguments."""
    for name, value in arguments.items():
        if name not in _REFUSED:
            raise TypeError(f"DataLoader() got an unexpected keyword argument {name!r}")
        default, hint = _REFUSED[name]
        if isinstance(arguments.get("sampler"), _FROM_FRAMEWORKS) and name in ("sampler", "shuffle"):
            continue
        if value is not default:
            raise UsageError(f"{name}={value!r} is not an option of this loader", hint=hint.format(value=value))


def refuse_contradictions(num_workers: int, num_threads: int | None, **for_workers: Any) -> None:
    """Raise `UsageError` for threads together with workers, or for options of workers without workers."""
    if num_workers and num_threads is not None:
        msg = f"num_threads={num_threads} with num_workers={num_workers}: threads decode only without workers"
        raise UsageError(msg, hint="num_workers=0 and num_threads=1 or more; or leave num_threads out")
    for name, value in for_workers.items():
        if value is not None and not num_workers:
            msg = f"{name}= is for worker processes, but num_workers is 0"
            raise UsageError(msg, hint="num_workers=1 or more; with 0, threads of this process make the batches")


def check_travels(pipeline: PipelineSpec, *functions: Any) -> None:
    """Raise `UsageError` if a stage or a function cannot be pickled."""
    for function in (*pipeline.stages, *pipeline.batch_stages, *functions):
        try:
            pickle.dumps(function)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            msg = f"{function!r} cannot be sent to worker processes: {error}"
            hint = (
                "define the function at the top of a module (no lambda, no function in a function); or num_workers=0; "
                'or multiprocessing_context="fork", if nothing was read from a network before'
            )
            raise UsageError(msg, hint=hint) from error
