"""Is a job waiting for data, and why? A word, a sentence and a remedy, from the pace of the last seconds."""

from __future__ import annotations

from typing import Literal, NamedTuple

from shoal.figures import counted, format_bytes, format_seconds
from shoal.watch.run_meter import Pace

Grade = Literal["good", "fair", "bad", "unknown"]

_LITTLE, _MUCH = 0.05, 0.2
_STALL_SECONDS, _AWAY_SECONDS, _TIMES_USUAL = 5.0, 30.0, 10.0
_FIRST_SECONDS = 15.0
_FAILING_SHARE = 0.05
_SMALL_REQUEST_BYTES = 1 << 20
_FEW_HITS = 0.5


class Verdict(NamedTuple):
    """The answer: a word in capitals and its grade, a sentence with numbers, and a remedy ("" if none is needed)."""

    grade: Grade
    word: str
    sentence: str
    remedy: str = ""


class Circumstances(NamedTuple):
    """Facts beside the pace that decide on words and remedies.

    ``is_remote`` if requests go over a network; ``is_live`` for a source without an end.
    """

    is_over: bool = False
    is_remote: bool = False
    is_live: bool = False
    epoch: int = 0


def verdict_of(pace: Pace, facts: Circumstances) -> Verdict:
    """Return the verdict on a run."""
    latest, num_batches = pace.latest, pace.counts["num_batches"] or pace.counts["num_samples"]
    if facts.is_over:
        return Verdict("unknown", "EPOCH OVER", f"Epoch {facts.epoch} is over: no batch is requested.")
    if facts.is_live and latest.call_seconds > _STALL_SECONDS:
        since = f"no sample has come for {format_seconds(latest.call_seconds)}"
        return Verdict("fair", "NO NEW SAMPLES", f"Training gets nothing: {since}.", "The source has none, or is slow.")
    if not latest.counts["num_samples"]:
        return _before_the_first(pace, facts)
    under_way = latest.call_seconds + latest.away_seconds
    usual_seconds = max(0.0, pace.seconds - under_way) / num_batches if num_batches else pace.seconds
    if latest.call_seconds > max(_STALL_SECONDS, _TIMES_USUAL * usual_seconds if num_batches else 0.0):
        since = f"no batch has come for {format_seconds(latest.call_seconds)}"
        if latest.is_waiting or pace.wait_share >= pace.stages_share:
            sentence = f"Training stands still: {since}, because bytes are missing."
            return Verdict("bad", "STALLED", sentence, _storage(pace, facts, is_stalled=True))
        sentence = f"Training stands still: {since}, while a function runs, a sample is decoded or a batch is built."
        return Verdict("bad", "STALLED", sentence, _stages(pace))
    if latest.away_seconds > max(_AWAY_SECONDS, _TIMES_USUAL * usual_seconds if num_batches else 0.0):
        since = format_seconds(latest.away_seconds)
        sentence = f"Training does not wait for data: its loop has not requested a batch for {since}."
        return Verdict("unknown", "NO REQUEST", sentence, "An evaluation, a checkpoint or another rank may hold it up.")
    return _by_share(pace, facts)


def percent(share: float) -> str:
    """Format a share: with a decimal below 10 %.

    >>> percent(0.754), percent(0.014)
    ('75%', '1.4%')
    """
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def _before_the_first(pace: Pace, facts: Circumstances) -> Verdict:
    latest = pace.latest
    if not latest.call_seconds:
        return Verdict("unknown", "STARTING", "No batch has been requested yet.")
    since = f"Training has waited for its first batch for {format_seconds(latest.call_seconds)}"
    grade: Grade = "unknown" if latest.call_seconds < _FIRST_SECONDS else "bad"
    if latest.is_waiting:
        return Verdict(grade, "FIRST BATCH", f"{since}: bytes are missing.", _storage(pace, facts, is_stalled=True))
    return Verdict(grade, "FIRST BATCH", f"{since}.", "" if grade == "unknown" else _stages(pace))


def _by_share(pace: Pace, facts: Circumstances) -> Verdict:
    share = pace.inside_share
    if share < _LITTLE:
        sentence = f"Training waits for data {share:.1%} of its time: training sets the pace."
        return Verdict("good", "NOT WAITING", sentence)
    is_storage = pace.wait_share >= pace.stages_share
    causes = [
        (pace.wait_share, _wait_words(facts)),
        (pace.stages_share, "for functions, decoding and building batches"),
    ]
    first, second = causes if is_storage else causes[::-1]
    parts = f"{percent(first[0])} {first[1]}, {percent(second[0])} {second[1]}"
    sentence = f"Training waits for data {percent(share)} of its time: {parts}."
    grade: Grade = "fair" if share < _MUCH else "bad"
    word = "SOMETIMES WAITING" if grade == "fair" else "WAITING"
    word += (" FOR ITS SOURCE" if facts.is_live else " FOR STORAGE") if is_storage else " FOR STAGES"
    return Verdict(grade, word, sentence, _storage(pace, facts) if is_storage else _stages(pace))


def _wait_words(facts: Circumstances) -> str:
    if facts.is_live:
        return "for new samples of its source"
    return "for the storage" if facts.is_remote else "for local reads"


def _storage(pace: Pace, facts: Circumstances, *, is_stalled: bool = False) -> str:
    """Return the remedy for waits for bytes, the most specific first."""
    counts, num_requests = pace.counts, pace.counts["num_requests"]
    over = f"in the last {format_seconds(pace.seconds)}"
    if facts.is_live:
        return "The source is slower than training: more producers, or fewer ranks."
    if counts["index_wait_seconds"] > 0.5 * pace.wait_share * pace.seconds > 0:
        return "Indexing is slower than training: run shoal index before training, or use more indexing processes."
    if counts["num_throttled"]:
        refused = counted(int(counts["num_throttled"]), "request")
        return f"The store throttled {refused} {over}: fewer ranks at a time, a higher quota, or a chunk cache."
    if counts["num_retries"] > _FAILING_SHARE * max(1, num_requests):
        retried = f"{counted(int(counts['num_retries']), 'retry').replace('retrys', 'retries')} {over}"
        return f"Requests fail ({retried}): check the store and the network; reading(hedge=True) helps if few are late."
    if counts["num_rereads"] > 0.1 * max(1, num_requests):
        return "Memory is too small for the order, so chunks are read again: raise reading(memory_limit=)."
    if is_stalled:
        return "The storage does not answer: check it, and the network; shoal retries until reading(deadline=) is over."
    if not facts.is_remote:
        return "The disk is slow: larger chunks make larger reads, shuffle(chunk=); a faster disk."
    if counts["requested_bytes"] < _SMALL_REQUEST_BYTES * num_requests:
        size = format_bytes(counts["requested_bytes"] / num_requests)
        return f"A request has {size} on average: larger chunks make larger requests, shuffle(chunk=)."
    num_looked = counts["num_cache_hits"] + counts["num_cache_misses"]
    if not num_looked:
        return "A larger window reads further ahead, shuffle(window=); open(cache=) keeps chunks for the next epoch."
    return "A larger window reads further ahead, shuffle(window=); else the network is the limit."


def _stages(pace: Pace) -> str:
    """Return the remedy for slow stages."""
    if pace.latest.is_ahead:
        return "The loader makes batches ahead, and too slowly: more processes, num_workers=; or less work a sample."
    return "Batches are made in the training thread: shoal.torch.DataLoader makes them ahead, in threads or processes."
