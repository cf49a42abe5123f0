"""A state in memory that a process shares with the workers it started, so that all see it at the same time."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from shoal.errors import StateError

_ROOM_BYTES = 16_384  # a state has less than 1 KB
_HEAD = np.dtype([("number", "<i8"), ("num_bytes", "<i4"), ("crc", "<u4")])
_TRIES = 1000


class Given(NamedTuple):
    """A state, and its number in the sequence of published states."""

    number: int
    state: dict[str, Any]


class SharedState:
    """The newest state that one process published to all.

    A plain pickle or a deep copy shares nothing with the original; the copy that torch sends to a worker process does.
    """

    def __init__(self) -> None:
        self._bytes: Any = cast("Any", torch.zeros(_ROOM_BYTES, dtype=torch.uint8)).share_memory_()

    def put(self, state: Mapping[str, Any]) -> int:
        """Publish a state to all, and return its number. Only one process may do so.

        Raises
        ------
        StateError
            The state is far larger than states are.
        """
        data = json.dumps(state).encode()
        array: Any = self._bytes.numpy()
        if len(data) > len(array) - _HEAD.itemsize:
            msg = f"the state has {len(data)} bytes, and workers are told of {len(array) - _HEAD.itemsize} at most"
            raise StateError(msg, hint="an order of your own has parameters of a few numbers; give it fewer")
        head = array[: _HEAD.itemsize].view(_HEAD)
        number = int(head["number"][0]) + 1
        array[_HEAD.itemsize : _HEAD.itemsize + len(data)] = np.frombuffer(data, np.uint8)
        head[0] = (number, len(data), zlib.crc32(data, number))
        return number

    @property
    def number(self) -> int:
        """Number of states published so far."""
        head: Any = self._bytes.numpy()[: _HEAD.itemsize].view(_HEAD)
        return int(head["number"][0])

    def get(self) -> Given:
        """Return the newest state.

        Raises
        ------
        StateError
            The state is being written all the time.
        """
        array: Any = self._bytes.numpy()
        for _ in range(_TRIES):
            number, num_bytes, crc = array[: _HEAD.itemsize].view(_HEAD)[0].tolist()
            data = bytes(array[_HEAD.itemsize : _HEAD.itemsize + num_bytes])
            if zlib.crc32(data, number) == crc:
                return Given(number, json.loads(data))
            time.sleep(0.001)  # it is being written
        msg = "the state that a worker should begin with was not to be had"
        raise StateError(msg, hint="set_epoch() and load_state_dict() before the loop begins, not while it does")

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self._bytes = kept["_bytes"].share_memory_()  # a forked worker sees only memory that is shared
