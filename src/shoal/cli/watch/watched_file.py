"""The numbers of a run from a file: a saved state or a checkpoint as JSON, or metrics for Prometheus."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal.errors import UsageError
from shoal.figures import counted
from shoal.order.state_dict import State
from shoal.stats.prometheus_text import stats_of
from shoal.watch.run_meter import Measured, counts_of, pace_between
from shoal.watch.verdict import Circumstances, Verdict, verdict_of
from shoal.watch.watched_run import pace_numbers

_MOST_BYTES = 64 << 20
_SAVE_HINT = "save the state as JSON: json.dump(ds.state_dict(), file)"


class WatchedFile:
    """A file that is read again when it has changed; speeds are measured between two versions of the file."""

    def __init__(self, path: str, *, num_samples: int | None) -> None:
        self._path, self._num_samples = Path(path), num_samples
        self._seen: tuple[int, int] | None = None
        self._before: tuple[float, Any] | None = None
        self._numbers: dict[str, Any] = {}

    def numbers(self) -> dict[str, Any]:
        """Return the numbers of the newest version of the file."""
        info = self._path.stat()
        if (info.st_mtime_ns, info.st_size) != self._seen:
            self._seen = info.st_mtime_ns, info.st_size
            if info.st_size > _MOST_BYTES:
                raise UsageError(f"{self._path} has {info.st_size:,} bytes: it is no state", hint=_SAVE_HINT)
            text, at = self._path.read_bytes().decode("utf-8", "replace"), info.st_mtime_ns / 1e9
            is_metrics = text.startswith("# HELP") or os.fspath(self._path).endswith(".prom")
            self._numbers = self._metrics(text, at) if is_metrics else self._state(text, at)
        return self._numbers

    def _metrics(self, text: str, at: float) -> dict[str, Any]:
        stats = stats_of(text)
        if not stats:
            msg = f"{self._path} has no metrics of shoal"
            raise UsageError(msg, hint="shoal.prometheus.write(path, ds.stats()) writes such a file")
        # Times of the newest iterator; without a second version, since its begin.
        inside, elapsed = stats.get("inside_seconds", 0.0), stats.get("elapsed_seconds", 0.0)
        make, wait = stats.get("make_seconds", 0.0), stats.get("wait_seconds", 0.0)
        now = Measured(elapsed, counts_of(stats), inside, make, wait)
        before = Measured(0.0, counts_of({}))
        if self._before is not None and self._before[1].at < elapsed:
            before = self._before[1]
        self._before = at, now
        is_remote = stats.get("concurrency", 0) > 0
        pace = pace_between(before, now)
        return {
            "time": at,
            "verdict": verdict_of(pace, Circumstances(is_remote=is_remote))._asdict(),
            "now": pace_numbers(pace),
            "progress": {},
            "stats": stats,
        }

    def _state(self, text: str, at: float) -> dict[str, Any]:
        states = list(_states_in(_json(text)))
        if not states:
            raise UsageError(f"{self._path} holds no state of shoal", hint=_SAVE_HINT)
        state_fields = states[0]
        if "live" in state_fields:
            taken = state_fields.get("taken", 0)
            progress = {"epoch": None, "position": taken, "num_samples": None, "share": None, "eta_seconds": None}
            sentence, order = f"The state of a live stream was saved after {counted(taken, 'sample')}.", "live"
            seed = state_fields.get("seed")
        else:
            state = State.from_dict(state_fields)
            size = self._num_samples
            progress = {
                "epoch": state.epoch,
                "position": state.position,
                "num_samples": size,
                "share": None if size is None else min(1.0, state.position / max(1, size)),
                "eta_seconds": None,
            }
            sentence = f"The state was saved at position {state.position:,} of epoch {state.epoch}."
            order, seed = str(state.order.get("name", "")), state.seed
        now = self._speed(at, progress)
        verdict = Verdict("unknown", "SAVED STATE", sentence)
        return {
            "time": at,
            "verdict": verdict._asdict(),
            "now": now,
            "progress": progress,
            "dataset": {"order": order, "seed": seed},
            "stats": {},
        }

    def _speed(self, at: float, progress: dict[str, Any]) -> dict[str, Any]:
        """Return the speed since the version before; add the time to the end of the epoch."""
        before, self._before = self._before, (at, dict(progress))
        if before is None or at <= before[0] or before[1]["epoch"] != progress["epoch"]:
            return {}
        speed = (progress["position"] - before[1]["position"]) / (at - before[0])
        if speed > 0 and progress["num_samples"] is not None:
            progress["eta_seconds"] = max(0, progress["num_samples"] - progress["position"]) / speed
        return {"seconds": at - before[0], "samples_per_second": max(0.0, speed)}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _states_in(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the states within JSON, however deep a checkpoint holds them; also states that are kept as text."""
    if isinstance(value, Mapping):
        if "check" in value and ("position" in value or "live" in value):
            yield value
            return
        value = list(value.values())
    if isinstance(value, str) and '"check"' in value:
        value = [_json(value)]
    if isinstance(value, list):
        for each in value:
            yield from _states_in(each)
