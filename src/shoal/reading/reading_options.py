"""Checked options of `Dataset.reading`: how bytes are read, and what happens to damaged ones.

No option changes the order of samples or the contents of a state.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Any, Literal

from shoal.errors import UsageError
from shoal.figures import parse_bytes
from shoal.hints import did_you_mean
from shoal.storage.cache_directory import expand_home
from shoal.storage.urls import scheme_of, without_secrets

OnError = Literal["raise", "skip"]
Verify = Literal["arrival", "always"]

_CHOICES: dict[str, tuple[Any, ...]] = {"on_error": ("raise", "skip"), "verify": ("arrival", "always")}


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """Arguments of `Dataset.reading`; the defaults are those of a dataset on which it was not called.

    ``on_error`` says what to do with a damaged sample, ``quarantine`` is the file that lists such samples, ``copy``
    whether values own their bytes, ``progress`` whether a line on stderr shows progress. ``memory_limit_bytes``
    is the most memory that this process may use for chunks (None: what the order needs), ``hedge`` whether a late
    request is hedged by a second one, ``deadline_seconds`` for how long one read may be retried (None: as the store),
    ``verify`` whether checksums are compared when bytes arrive over a network or a cache is filled, or always.
    """

    on_error: OnError = "raise"
    quarantine: str | None = None
    copy: bool = True
    progress: bool = False
    memory_limit_bytes: int | None = None
    hedge: bool = False
    deadline_seconds: float | None = None
    verify: Verify = "arrival"

    def limited_to(self, limit_bytes: int | None) -> ReadingOptions:
        """Return the options with another memory limit."""
        return replace(self, memory_limit_bytes=limit_bytes)

    @property
    def skips(self) -> bool:
        """True if a damaged sample is left out instead of raising an error."""
        return self.on_error == "skip"

    @property
    def leaves_out(self) -> bool:
        """True if samples may be left out, because they are or were found damaged."""
        return self.skips or self.quarantine is not None


def reading_options(**asked: Any) -> ReadingOptions:
    """Return the checked options for arguments of `Dataset.reading`; those not given have their defaults.

    Raises
    ------
    UsageError
        A value is not valid for its option.
    """
    given: dict[str, Any] = {}
    for name, value in asked.items():
        if name == "memory_limit":
            given["memory_limit_bytes"] = None if value is None else parse_bytes(value, name)
        elif name == "deadline":
            given["deadline_seconds"] = None if value is None else _seconds(name, value)
        elif name == "quarantine":
            given[name] = None if value is None else _path(name, value)
        else:
            given[name] = _choice(name, value)
    return ReadingOptions(**given)


def _choice(name: str, value: Any) -> Any:
    choices = _CHOICES.get(name, (True, False))
    if not isinstance(value, type(choices[0])) or value not in choices:
        msg = f"reading({name}=) is {' or '.join(map(repr, choices))}; got {value!r}"
        raise UsageError(msg, hint=did_you_mean(value, choices).rstrip())
    return value


def _seconds(name: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:
        raise UsageError(f"reading({name}=) is a positive number of seconds; got {value!r}")
    return float(value)


def _path(name: str, value: Any) -> str:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        msg = f"reading({name}=) is the path of a file; got {value!r}"
        raise UsageError(msg, hint='for example quarantine="damaged.jsonl"')
    path: str | bytes = os.fspath(value)
    if isinstance(path, str) and scheme_of(path):
        msg = f"reading({name}=) is the path of a file of this machine; got {without_secrets(path)}"
        raise UsageError(msg, hint="processes of several machines each write one of their own; join them by `cat`")
    return os.path.abspath(expand_home(os.fsdecode(path)))  # noqa: PTH100
