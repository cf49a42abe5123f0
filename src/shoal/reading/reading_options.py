"""Checked options of `Dataset.reading`: how bytes are read, and what happens to damaged samples.

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

_EXAMPLES = {"quarantine": "damaged.jsonl", "trace": "trace.json"}
_CHOICES: dict[str, tuple[Any, ...]] = {"on_error": ("raise", "skip"), "verify": ("arrival", "always")}


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """Arguments of `Dataset.reading`; without a call, the defaults apply.

    ``on_error`` decides on damaged samples; the file ``quarantine`` lists them. With ``copy``, values own their bytes.
    ``progress`` is the name of the reporter of progress, or "". The file ``trace`` gets the first ``trace_seconds`` of
    requests, waits and stages; with ``is_received``, the receiver of the batches joins it. This process may use
    ``memory_limit_bytes`` for chunks (None: as much as the order needs). With ``hedge``, a late request is sent a
    second time. A read may be retried for ``deadline_seconds`` (None: the store's default). Checksums are compared when
    bytes arrive from a network or enter a cache (``verify="arrival"``), or always.
    """

    on_error: OnError = "raise"
    quarantine: str | None = None
    copy: bool = True
    progress: str = ""
    memory_limit_bytes: int | None = None
    hedge: bool = False
    deadline_seconds: float | None = None
    verify: Verify = "arrival"
    trace: str | None = None
    trace_seconds: float = 60.0
    is_received: bool = False

    def limited_to(self, limit_bytes: int | None) -> ReadingOptions:
        """Return the options with another memory limit."""
        return replace(self, memory_limit_bytes=limit_bytes)

    @property
    def skips(self) -> bool:
        """True if a damaged sample is left out instead of raising an error."""
        return self.on_error == "skip"

    @property
    def leaves_out(self) -> bool:
        """True if samples may be left out, because they are damaged now or were before."""
        return self.skips or self.quarantine is not None


def reading_options(**arguments: Any) -> ReadingOptions:
    """Return the options for arguments of `Dataset.reading`; raise `UsageError` for a value that is not valid."""
    options: dict[str, Any] = {}
    for name, value in arguments.items():
        if name == "memory_limit":
            options["memory_limit_bytes"] = None if value is None else parse_bytes(value, name)
        elif name == "deadline":
            options["deadline_seconds"] = None if value is None else _seconds(name, value)
        elif name == "trace_seconds":
            options[name] = _seconds(name, value)
        elif name in ("quarantine", "trace"):
            options[name] = None if value is None else _path(name, value)
        elif name == "progress":
            options[name] = _reporter(value)
        else:
            options[name] = _choice(name, value)
    return ReadingOptions(**options)


def _choice(name: str, value: Any) -> Any:
    choices = _CHOICES.get(name, (True, False))
    if not isinstance(value, type(choices[0])) or value not in choices:
        msg = f"reading({name}=) is {' or '.join(map(repr, choices))}; got {value!r}"
        raise UsageError(msg, hint=did_you_mean(value, choices).rstrip())
    return value


def _reporter(value: Any) -> str:
    """Return the name of a reporter; the stream knows which names there are."""
    if value is True:
        return "line"
    if value is False or isinstance(value, str):
        return value or ""
    raise UsageError(f"reading(progress=) is False, True or the name of a reporter; got {value!r}")


def _seconds(name: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:
        raise UsageError(f"reading({name}=) is a positive number of seconds; got {value!r}")
    return float(value)


def _path(name: str, value: Any) -> str:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        msg = f"reading({name}=) is the path of a file; got {value!r}"
        raise UsageError(msg, hint=f'for example {name}="{_EXAMPLES[name]}"')
    path: str | bytes = os.fspath(value)
    if isinstance(path, str) and scheme_of(path):
        msg = f"reading({name}=) is the path of a file of this machine; got {without_secrets(path)}"
        raise UsageError(msg, hint="processes of several machines each write one of their own; join them by `cat`")
    return os.path.abspath(expand_home(os.fsdecode(path)))  # noqa: PTH100
