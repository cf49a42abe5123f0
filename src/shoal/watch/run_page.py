"""The page of a run in progress: the answer first, then who waits for whom, the speed, requests and memory.

The page is drawn from the numbers of `WatchedRun.numbers`; its script fetches the page again, and swaps its parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from shoal.figures import counted, format_bytes, format_count, format_seconds
from shoal.tools.reports.curve_figures import Figure, Line, curve_figure, plain_axis
from shoal.tools.reports.page_document import document, facts, figures, fold, paragraph, section, table
from shoal.watch.verdict import percent

_REFRESH_MILLISECONDS = 1000
SCRIPT = (
    """const seen = () => document.querySelector('#lost');
async function refresh() {
  try {
    const answer = await fetch(location.pathname, {cache: 'no-store'});
    if (!answer.ok) throw new Error(answer.status);
    const fresh = new DOMParser().parseFromString(await answer.text(), 'text/html');
    document.querySelectorAll('details').forEach((fold, at) => {
      const other = fresh.querySelectorAll('details')[at];
      if (other) other.open = fold.open;
    });
    for (const part of ['header', 'main']) {
      const [now, next] = [document.querySelector(part), fresh.querySelector(part)];
      if (now.innerHTML !== next.innerHTML && !now.contains(document.activeElement)) now.replaceWith(next);
    }
    document.title = fresh.title;
    seen().hidden = true;
    document.body.classList.remove('stale');
  } catch (error) {
    seen().hidden = false;
    document.body.classList.add('stale');
  }
  setTimeout(refresh, MILLISECONDS);
}
setTimeout(refresh, MILLISECONDS);"""
).replace("MILLISECONDS", str(_REFRESH_MILLISECONDS))

_STYLE = """
h1{display:flex;flex-wrap:wrap;gap:.35rem .9rem;align-items:baseline}
.word{border:.16rem solid currentColor;border-radius:.4rem;padding:.05rem .6rem;letter-spacing:.02em;
font-size:min(1em,5.4vw)}
.said{color:var(--ink);font-weight:650}
.lead{max-width:46rem}
#lost{position:sticky;top:0;background:var(--panel);border-bottom:2px solid var(--bad);padding:.6rem 1.25rem;margin:0;
max-width:none;color:var(--bad);font-weight:600}
.stale :is(header,main){opacity:.55;filter:grayscale(1)}
.share{display:flex;height:2.1rem;border-radius:.35rem;overflow:hidden;border:1px solid var(--rule);margin:.5rem 0}
.share span{min-width:0}
.storage{background:repeating-linear-gradient(45deg,var(--bad) 0 .35rem,var(--paper) .35rem .6rem)}
.stages{background:repeating-linear-gradient(90deg,var(--fair) 0 .2rem,var(--paper) .2rem .45rem)}
.consumer{background:var(--perfect)}
.key{list-style:none;padding:0;display:grid;gap:.4rem 1.5rem;max-width:none;
grid-template-columns:repeat(auto-fit,minmax(min(100%,17rem),1fr))}
.key li{margin:0;display:flex;gap:.6rem;align-items:baseline}
.key i{flex:none;width:1rem;height:1rem;border:1px solid var(--rule);border-radius:.2rem;align-self:flex-start;
margin-top:.3rem}
.key b{font-variant-numeric:tabular-nums}
progress{width:100%;height:.9rem;accent-color:var(--data)}
"""


def run_page(numbers: Mapping[str, Any], *, title: str = "") -> str:
    """Return the page of a run."""
    verdict, progress = numbers["verdict"], numbers["progress"]
    body = [_who_waits(numbers["now"], numbers["feeder"]), _progress(progress, numbers["dataset"])]
    body += [_speed(numbers["history"], numbers["now"])] if len(numbers["history"]) > 1 else []
    body += [_requests(numbers["stats"], numbers["now"]), _mixture(numbers["sources"])]
    body += [_mixing(numbers["mixing"]), _memory(numbers["memory"], numbers["stats"]), _all(numbers["stats"])]
    return document(
        title=verdict["sentence"],
        heading=f'<span class="word {verdict["grade"]}">{escape(verdict["word"])}</span> '
        f'<span class="said">{escape(verdict["sentence"])}</span>',
        window_title=f"{verdict['word']} - {title or 'shoal'}",
        about=_about(numbers),
        lead=f"What helps: {verdict['remedy']}" if verdict["remedy"] else "",
        body=[part for part in body if part],
        made_by='reading(progress="page")' if numbers["progress"] else "shoal.watch.page()",
        style=_STYLE,
        script=SCRIPT,
        before='<p id="lost" role="status" hidden>NO CONTACT: the run has ended, or the connection is lost.'
        " The numbers are the last that came.</p>",
    )


def _about(numbers: Mapping[str, Any]) -> str:
    dataset, progress = numbers["dataset"], numbers["progress"]
    if not dataset:
        return "All counts are of this process."
    parts = [f"Rank {progress['rank']} of {progress['world_size']}"]
    parts.append(f"{counted(dataset['num_shards'], 'shard')} ({', '.join(dataset['formats'])})")
    if dataset["global_batch"]:
        parts.append(f"global batch {dataset['global_batch']:,}")
    parts.append(f"order {dataset['order']}, seed {dataset['seed']}")
    return "; ".join(parts)


def _progress(progress: Mapping[str, Any], dataset: Mapping[str, Any]) -> str:
    if not progress:
        return ""
    shown = {"Epoch": f"{progress['epoch']}", "Position": f"{progress['position']:,} samples over all ranks"}
    bar = ""
    if progress["share"] is not None:
        share = progress["share"]
        shown["Position"] = f"{progress['position']:,} of {progress['num_samples']:,} ({share:.1%})"
        bar = f'<progress value="{share:.4f}" aria-label="finished part of the epoch">{share:.1%}</progress>'
    else:
        shown["End of the epoch"] = "not known yet"
    if (num_indexed := dataset.get("num_indexed_shards", dataset["num_shards"])) < dataset["num_shards"]:
        shown["Indexed so far"] = f"{num_indexed:,} of {dataset['num_shards']:,} shards"
        shown["Samples of the epoch"] = f"about {dataset['estimated_samples']:,}"
    if progress["eta_seconds"] is not None:
        shown["End of the epoch"] = f"in {format_seconds(progress['eta_seconds'])}, at this speed"
    return section("Progress", bar, facts(shown))


def _who_waits(now: Mapping[str, Any], feeder: str) -> str:
    waiters = (
        ("storage", now["wait_share"], f"waits for the {feeder}"),
        ("stages", now["stages_share"], "waits for stages: decoding, functions, batches"),
        ("consumer", now["consumer_share"], "does its own work"),
    )
    bars = "".join(f'<span class="{name}" style="width:{share:.2%}"></span>' for name, share, _ in waiters if share)
    says = ", ".join(f"{percent(share)} {words}" for _, share, words in waiters)
    keys = "".join(
        f'<li><i class="{name}"></i><span><b>{percent(share)}</b> {escape(words)}</span></li>'
        for name, share, words in waiters
    )
    about = f"The time of training in the last {format_seconds(now['seconds'])}. "
    about += f"The {feeder} feeds the stages, and the stages feed training."
    return section(
        "Who waits for whom",
        paragraph(about, kind="soft"),
        f'<div class="share" role="img" aria-label="Training: {escape(says)}">{bars}</div>',
        f'<ul class="key">{keys}</ul>',
    )


def _speed(history: Sequence[Sequence[float]], now: Mapping[str, Any]) -> str:
    samples, read = now["samples_per_second"], now["read_bytes_per_second"]
    values = [point[1] for point in history]
    drawn = [_curve("Samples a second", values, history, format_count(float(samples)), 1.0, "")] if any(values) else []
    values = [point[2] for point in history]
    if any(values):
        unit, name = _byte_unit(max(values))
        drawn.append(_curve("Bytes read a second", values, history, f"{format_bytes(read)}/s", unit, name))
    return section("Speed", figures(drawn)) if drawn else ""


def _byte_unit(most: float) -> tuple[float, str]:
    name, unit = next(
        ((name, float(1 << shift)) for name, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)) if most >= 1 << shift),
        ("B", 1.0),
    )
    return unit, name


def _curve(
    title: str, values: Sequence[float], history: Sequence[Sequence[float]], now: str, unit: float, name: str
) -> Figure:
    times = [point[0] for point in history]
    divisor, word = next(
        ((size, each) for size, each in ((3600.0, "hours"), (60.0, "minutes")) if times[-1] > 3 * size),
        (1.0, "seconds"),
    )
    x = plain_axis(f"{word} since the page began", times, unit=divisor)
    y = plain_axis(name, values, unit=unit)
    line = Line(title, times, values, has_area=True)
    says = (
        f"{title} over {times[-1] / divisor:.0f} {word}: now {now}, at most {max(values) / unit:,.4g} {name}".rstrip()
    )
    return curve_figure(f"{title}: {now}", "", [line], x=x, y=y, says=says)


def _requests(stats: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    shown = {}
    if "num_requests" in stats:
        shown["Requests"] = f"{stats['num_requests']:,} ({format_count(float(now['requests_per_second']))}/s)"
        num_requests = stats["num_requests"]
        shown["Bytes of a request"] = format_bytes(stats["requested_bytes"] / num_requests) if num_requests else "-"
        if stats["concurrency"]:
            shown["Requests at a time"] = f"at most {stats['concurrency']}"
            shown["In flight"] = format_bytes(stats["in_flight_bytes"])
    names = {
        "num_retries": "Retries", "num_throttled": "Throttled by the store", "num_hedges": "Requests sent twice",
        "num_corrupt": "Corrupt responses", "num_skipped": "Damaged samples skipped",
        "num_rereads": "Chunks read again", "num_filtered": "Samples filtered out", "num_waits": "Waits for the source",
        "num_unmatched": "Samples without a partner",
    }  # fmt: skip
    for name, words in names.items():
        if stats.get(name):
            recent = f" ({now[name]:,.0f} in the last {format_seconds(now['seconds'])})" if now.get(name) else ""
            shown[words] = f"{stats[name]:,}{recent}"
    num_looked = sum(stats.get(f"num_cache_{how}", 0) for how in ("hits", "fills", "bypasses"))
    if num_looked:
        shown["From the chunk cache"] = f"{stats['num_cache_hits'] / num_looked:.0%} of {num_looked:,} reads"
    calm = [words for words in ("Retries", "Damaged samples skipped") if words not in shown]
    if calm and "num_requests" in stats:
        shown |= dict.fromkeys(calm, "none")
    return section("Storage", facts(shown)) if shown else ""


def _mixture(sources: Sequence[Mapping[str, Any]]) -> str:
    if not sources:
        return ""
    rows = [
        [row["name"], f"{row['wanted']:.2%}", f"{row['delivered']:.2%}", f"{row['delivered'] - row['wanted']:+.2%}",
         f"{row['num_samples']:,}"]
        for row in sources
    ]  # fmt: skip
    caption = "Shares of samples since this iterator began"
    return section("Mixture", table(caption, ["source", "wanted", "delivered", "difference", "samples"], rows))


def _mixing(mixing: Mapping[str, Any]) -> str:
    if not mixing:
        return ""
    vr, near = mixing["vr"], mixing["near_vr"]
    words = (
        f"A batch of {mixing['batch']:,} varies {vr:.2f} times as much as in a perfect shuffle, the mean of four "
        f"successive batches {near:.2f} times. 1 is perfect. Predicted; key: {mixing['key']}."
    )
    return section("Mixing", facts({"VR": f"{vr:.2f}", "near VR": f"{near:.2f}"}), paragraph(words, kind="soft"))


def _memory(memory: Mapping[str, Any], stats: Mapping[str, Any]) -> str:
    if not memory:
        return ""
    shown = {"Held at most": format_bytes(stats["peak_held_bytes"])}
    shown["Claimed at most"] = format_bytes(stats["peak_claimed_bytes"])
    limit = memory["limit_bytes"]
    shown["Limit"] = "none" if limit is None else format_bytes(limit)
    shown["Window of this rank"] = format_bytes(memory["window_bytes"])
    if stats["peak_pinned_bytes"]:
        shown["Kept alive by views"] = format_bytes(stats["pinned_bytes"])
    return section("Memory for chunks", facts(shown))


def _all(stats: Mapping[str, Any]) -> str:
    rows = [
        [name, format_count(value) if isinstance(value, int) else f"{value:,.4g}"]
        for name, value in stats.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return section("All counts", fold("The counts of stats()", table("Counts and rates", ["name", "value"], rows)))
