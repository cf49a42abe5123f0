"""Counters in notebooks: what limits the run first, then rates, and the counters that are not 0."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from shoal.figures import format_bytes, format_count, format_seconds
from shoal.tools.notebook.fragment import bar, facts_list, fragment, heading, key
from shoal.tools.samples.preview import clipped, printable

_LIMITS = {
    "storage": ("data", "waiting for bytes", "storage: the run waits for bytes"),
    "stages": ("more", "decoding, functions and batches", "stages: the run waits for decoding, functions and batches"),
    "consumer": ("perfect", "outside of shoal", "consumer: the run spends most of its time outside of shoal"),
}
_SHOWN_ABOVE = {
    "samples_per_second", "requests_per_second", "read_bytes_per_second", "elapsed_seconds", "wait_share",
    "stages_share", "bottleneck",
}  # fmt: skip
_REPEATED = {
    "num_skipped": "damaged samples left out",
    "num_retries": "requests tried again",
    "num_rereads": "chunks read again",
}
_VALUE_LETTERS = 80


def stats_html(stats: Mapping[str, Any]) -> str:
    """Return the result of ``stats()`` of a dataset, a loader or a live stream as HTML."""
    if not stats.get("num_samples"):
        summary = "no sample was delivered yet"
    else:
        summary = f"{format_count(stats['num_samples'])} samples delivered"
    counts = {name: _text(name, value) for name, value in stats.items() if name not in _SHOWN_ABOVE and value}
    facts = {name: escape(clipped(printable(text), _VALUE_LETTERS)) for name, text in counts.items()}
    return fragment(heading("Statistics", summary), _limit(stats), _rates(stats), _folded(facts, stats))


def _limit(stats: Mapping[str, Any]) -> str:
    """Return the bottleneck in words, and the three shares of the time as a bar."""
    bottleneck = stats.get("bottleneck")
    if bottleneck not in _LIMITS:
        return ""
    waiting, stages = float(stats["wait_share"] or 0.0), float(stats["stages_share"] or 0.0)
    shares = {"storage": waiting, "stages": stages, "consumer": max(0.0, 1.0 - waiting - stages)}
    colours = {_LIMITS[name][0]: share for name, share in shares.items()}
    legend = " &ensp; ".join(key(_LIMITS[name][0], f"{share:.0%} {_LIMITS[name][1]}") for name, share in shares.items())
    return f'<p class="headline">Limited by {escape(_LIMITS[bottleneck][2])}</p>{bar(colours)}<p>{legend}</p>'


def _rates(stats: Mapping[str, Any]) -> str:
    if not stats.get("elapsed_seconds"):
        return ""
    repeated = [f"{stats[name]:,} {words}" for name, words in _REPEATED.items() if stats.get(name)]
    return facts_list(
        {
            "Speed": f"{escape(format_count(stats['samples_per_second']))} samples/s, "
            f"{escape(format_bytes(stats['read_bytes_per_second']))}/s, "
            f"{escape(format_count(stats['requests_per_second']))} requests/s",
            "Time": f"{escape(format_seconds(stats['elapsed_seconds']))} of the newest iterator",
            "Memory": f"at most {escape(format_bytes(stats['peak_held_bytes']))} of chunks held",
            "Repeated work": escape(", ".join(repeated)),
        }
    )


def _folded(facts: Mapping[str, str], stats: Mapping[str, Any]) -> str:
    """Return the counters that are not 0, and the number of the others."""
    num_zero = sum(not value for name, value in stats.items() if name not in _SHOWN_ABOVE)
    rest = f'<p class="soft">{num_zero} counters are 0 or empty.</p>' if num_zero else ""
    if not facts:
        return rest
    return f"<details><summary>Counters</summary>\n{facts_list(facts, kind='many')}{rest}</details>"


def _text(name: str, value: Any) -> str:
    """Format a value of ``stats()`` by the unit in its name."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("_seconds"):
        return format_seconds(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
