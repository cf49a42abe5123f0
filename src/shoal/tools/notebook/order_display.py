"""Orders in notebooks: parameters, chunks, memory, and the call that reproduces the order."""

from __future__ import annotations

from html import escape

from shoal.figures import counted, format_bytes
from shoal.order.window.order import Window
from shoal.reading.growing.resolved_growing import ResolvedGrowing
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.resolved_order import Resolved, ResolvedOrder
from shoal.reading.resolved_sequences import ResolvedSequences
from shoal.tools.notebook.fragment import facts_list, fragment, heading

_MOST_LINES = 12


def order_html(resolved: Resolved) -> str:
    """Return a resolved order as HTML."""
    call = str(resolved).splitlines()
    shown = "\n".join([*call[:_MOST_LINES], *(["..."] if len(call) > _MOST_LINES else [])])
    facts = {name: escape(text) for name, text in order_facts(resolved).items()}
    return fragment(heading("Order", order_words(resolved)), facts_list({**facts, "Call": _code(shown)}))


def order_words(resolved: Resolved) -> str:
    """Return the name of an order, and its seed."""
    if isinstance(resolved, ResolvedSequences):
        return f"{order_words(resolved.documents)}, {resolved.packing.verb}()"
    if isinstance(resolved, ResolvedMixture):
        inside = resolved.request.order_request
        kinds = list(dict.fromkeys(part.order.name for part in resolved.parts))
        seed = "" if inside is None else f", seed {inside.seed}"
        return f"{' or '.join(kinds)} in each source{seed}; sources mixed with seed {resolved.seed}"
    if isinstance(resolved, ResolvedGrowing):
        return f"growing window, seed {resolved.seed}"
    if isinstance(resolved, ResolvedOrder):
        name = "storage order" if resolved.order.moves == "nothing" else resolved.order.name
        return name if resolved.order.moves == "nothing" else f"{name}, seed {resolved.seed}"
    return type(resolved).__name__


def order_facts(resolved: Resolved) -> dict[str, str]:
    """Return the parameters of an order and its memory by name; nothing is read, packed or indexed for it."""
    if isinstance(resolved, ResolvedSequences):
        return {**order_facts(resolved.documents), "Grouping": resolved.grouping}
    if isinstance(resolved, ResolvedMixture):
        held = sum(part.chunks_held_bytes for part in resolved.parts)
        return {"Memory": f"about {format_bytes(held)} of chunks in the windows of all sources"}
    if isinstance(resolved, ResolvedGrowing):
        growing = resolved.growing
        return {
            "Window": format_bytes(growing.window_bytes),
            "Shards": f"{len(growing.shard_bytes):,} in {counted(growing.num_segments, 'segment')}, "
            f"{growing.segments.num_made:,} of them indexed",
        }
    return _facts_of_one(resolved) if isinstance(resolved, ResolvedOrder) else {}


def _facts_of_one(resolved: ResolvedOrder) -> dict[str, str]:
    order = resolved.order
    if order.moves not in ("chunks", "shards"):
        return {}
    facts, table = {}, resolved.chunks
    if isinstance(order, Window):
        alive = min(order.chunks, len(table))
        share = f"all {alive:,} chunks" if alive == len(table) else f"{alive:,} of {len(table):,} chunks"
        facts["Window"] = f"{share} mix at a time"
        facts["Canonical nodes"] = f"{order.resolved_nodes:,}"
    elif order.parameters:
        facts["Parameters"] = ", ".join(f"{name}={value!r}" for name, value in order.parameters.items())
    if resolved.by_shards:
        facts["Chunks"] = "whole shards"
    elif len(table):
        mean_bytes = float((table.end_byte - table.first_byte).mean())
        samples = f"{float(table.num_samples.mean()):,.4g} samples"
        facts["Chunks"] = f"{len(table):,} of {format_bytes(mean_bytes)} and {samples} on average"
        facts["Memory"] = f"about {format_bytes(resolved.chunks_held_bytes)} of chunks"
    return facts


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"
