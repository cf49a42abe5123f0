"""Shuffle quality in notebooks: the verdict first, then a figure of VR over batch sizes, and the facts."""

from __future__ import annotations

from html import escape

from shoal.quality.curves import MOST_NEAR_RATIO, NEAR_BATCHES
from shoal.quality.expected_quality import ShuffleQuality
from shoal.tools.notebook.fragment import facts_list, figure, fragment, heading, key
from shoal.tools.reports.curve_figures import Line, variance_figure


def quality_html(quality: ShuffleQuality) -> str:
    """Return a shuffle quality as HTML."""
    near, mixes_well = quality.near_vr, quality.near_vr <= MOST_NEAR_RATIO
    verdict = "mixes well" if mixes_well else "mixes badly, and the loss may have waves"
    side = "within" if mixes_well else "above"
    words = f"near_vr {_ratio(near)}, {side} the limit of {MOST_NEAR_RATIO:g}: {verdict}"
    how = "measured" if quality.is_measured else "predicted"
    here = f"{_ratio(quality.vr[quality.batch])} in batches of {quality.batch:,} (a perfect shuffle has 1), {how}"
    facts = {
        "VR": here,
        "near_vr": f"{_ratio(near)} in the mean of {NEAR_BATCHES} successive batches, which the loss follows",
        "Effective batch": f"{quality.effective_batch:,.0f} samples of a perfect shuffle vary as much",
        "Chunks in a batch": f"{quality.distinct_chunks:,.1f}, of {quality.perfect_chunks:,.1f} in a perfect shuffle",
        "Shards in a batch": f"{quality.distinct_shards:,.1f}, of {quality.perfect_shards:,.1f} in a perfect shuffle",
        "Key": f"{quality.key}, correlation inside chunks (rho) {quality.rho:.3g}",
        "First epoch": "" if quality.first_epoch is None else str(quality.first_epoch),
    }
    shown = {name: escape(text) for name, text in facts.items()} | {"Order": f"<code>{escape(quality.order)}</code>"}
    return fragment(
        heading("Shuffle quality", f"batches of {quality.batch:,}"),
        f'<p class="headline">{key("perfect" if mixes_well else "bad", words)}</p>',
        _curve(quality),
        facts_list(shown),
    )


def _curve(quality: ShuffleQuality) -> str:
    """Draw VR over batch sizes, beside the limit of near_vr; "" for a single size."""
    sizes, ratios = list(quality.vr), list(quality.vr.values())
    if len(sizes) < 2 or not all(ratio > 0 for ratio in ratios):
        return ""
    how = "measured" if quality.is_measured else "predicted"
    ends = [float(sizes[0]), float(sizes[-1])]
    limit = Line(f"limit {MOST_NEAR_RATIO:g}", ends, [MOST_NEAR_RATIO] * 2, "other")
    lines = [Line(how, sizes, ratios, "data", has_dots=True), limit]
    says = f"VR by batch size: {ratios[0]:.2f} at {sizes[0]:,}, {ratios[-1]:.2f} at {sizes[-1]:,} samples."
    at = max(size for size in sizes if size <= NEAR_BATCHES * quality.batch)
    return figure(variance_figure("", lines, sizes, says=says, mark=(float(at), "near_vr")).drawing)


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}"
