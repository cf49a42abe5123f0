"""The numbers of a run as a few lines of text."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from shoal.figures import format_bytes, format_count, format_seconds
from shoal.tools.samples.preview import printable


def text_of(numbers: Mapping[str, Any]) -> str:
    """Return the answer in the first line, then the remedy, progress, speed and shares.

    >>> verdict = {"grade": "good", "word": "NOT WAITING", "sentence": "Training sets the pace.", "remedy": ""}
    >>> print(text_of({"time": 0.0, "verdict": verdict, "now": {"samples_per_second": 12.5}, "stats": {}}))
    NOT WAITING: Training sets the pace.
    speed     12.5 samples/s
    """
    verdict, now, stats = numbers["verdict"], numbers["now"], numbers["stats"]
    lines = [f"{verdict['word']}: {verdict['sentence']}"]
    facts = {"try": verdict["remedy"], **_progress(numbers.get("progress") or {}), **_speed(now)}
    if now.get("wait_share") is not None:
        facts["time"] = (
            f"{now['wait_share']:.0%} waiting for storage, {now['stages_share']:.0%} for stages, "
            f"{now['consumer_share']:.0%} in training"
        )
    if dataset := numbers.get("dataset"):
        facts["order"] = f"{dataset['order']}, seed {dataset['seed']}"
    facts |= _counts(stats)
    for row in numbers.get("sources") or ():
        facts[f"  {row['name']}"] = f"wanted {row['wanted']:.2%}, delivered {row['delivered']:.2%}"
    width = max((len(name) for name in facts), default=0)
    lines += [f"{name:<{max(8, width)}}  {value}" for name, value in facts.items() if value]
    return "\n".join(map(printable, lines))  # texts of a file or a server: they must not control the terminal


def age_of(numbers: Mapping[str, Any]) -> str:
    """Return the age of the numbers in words."""
    return f"{format_seconds(max(0.0, time.time() - numbers['time']))} ago"


def _progress(progress: Mapping[str, Any]) -> dict[str, str]:
    if not progress:
        return {}
    size, share = progress["num_samples"], progress["share"]
    text = f"{progress['epoch']}, position {progress['position']:,}"
    if progress["epoch"] is None:
        return {"position": f"{progress['position']:,}"}
    if size is not None:
        text += f" of {size:,} ({share:.1%})"
    if progress["eta_seconds"] is not None:
        text += f", ends in {format_seconds(progress['eta_seconds'])}"
    return {"epoch": text}


def _speed(now: Mapping[str, Any]) -> dict[str, str]:
    if "samples_per_second" not in now:
        return {}
    text = f"{format_count(float(now['samples_per_second']))} samples/s"
    if "read_bytes_per_second" in now:
        text += f", {format_bytes(now['read_bytes_per_second'])}/s"
    return {"speed": text}


def _counts(stats: Mapping[str, Any]) -> dict[str, str]:
    names = {
        "num_samples": "samples", "num_retries": "retries", "num_throttled": "throttled", "num_hedges": "sent twice",
        "num_skipped": "skipped", "num_rereads": "read again",
    }  # fmt: skip
    return {words: f"{stats[name]:,}" for name, words in names.items() if stats.get(name)}
