"""States of torch's generators, and of torchdata's loaders with such generators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import StateError
from shoal.peers.mersenne_twister import KEY_WORDS

_LAYOUT = np.dtype([("seed", "<u8"), ("left", "<i4"), ("seeded", "<i4"), ("next", "<u8"), ("key", "<u8", KEY_WORDS)])
"""Start of ``torch.Generator.get_state()`` (``CPUGeneratorImplStateLegacy`` in ``CPUGeneratorImpl.cpp``)."""


class SavedSampler(NamedTuple):
    """A sampler's generator at the beginning of an epoch, and the number of yielded samples.

    ``position`` is the number of used words of ``key``; ``loader`` holds known properties of the loader, as arguments
    of the order.
    """

    seed: int
    key: NDArray[np.uint32]
    position: int
    yielded: int
    loader: Mapping[str, Any]


def saved_sampler(checkpoint: Mapping[str, Any]) -> SavedSampler | None:
    """Return the sampler in a state of a ``StatefulDataLoader``, or in ``{"generator": ..., "yielded": ...}``.

    Raises `StateError` if the state has no exact number of delivered samples, or has another form.
    """
    sampler = next(_samplers(checkpoint), None)
    if sampler is None:
        return None
    if checkpoint.get("_steps_since_snapshot"):
        msg = f"the state of the loader is {checkpoint['_steps_since_snapshot']} steps old"
        raise StateError(msg, hint="save a state with snapshot_every_n_steps=1")
    state = np.asarray(sampler["generator"])
    if state.dtype != np.uint8 or state.nbytes < _LAYOUT.itemsize:
        msg = f"a state of torch's CPU generator has at least {_LAYOUT.itemsize} bytes; got {state.nbytes}"
        raise StateError(msg, hint="give the result of torch.Generator.get_state()")
    fields = np.frombuffer(state.tobytes(), dtype=_LAYOUT, count=1)[0]
    position = KEY_WORDS if fields["left"] == 1 else int(fields["next"])
    key = fields["key"].astype(np.uint32)
    loader: dict[str, Any] = {} if sampler is checkpoint else {"stateful": True, "workers": "_snapshot" in checkpoint}
    return SavedSampler(int(fields["seed"]), key, position, int(sampler["yielded"]), loader)


def _samplers(state: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(state, Mapping):
        if "generator" in state and "yielded" in state:
            yield state
        for each in state.values():
            yield from _samplers(each)
