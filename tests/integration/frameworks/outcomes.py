"""What the records of a cell amount to: the history that the surviving checkpoints tell, and whether it is right."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Entry = dict[str, Any]
Key = tuple[str, int]  # a stream of batches, and an epoch of it
UNORDERED = ("gathered", "samples")  # streams whose samples come once an epoch, and in any order


@dataclass
class Outcome:
    """One cell with one kind of loader.

    ``batches`` are the ids of each batch over all ranks, by stream and epoch; ``updates`` are where the optimizer
    stepped, as (epoch, batch, learning rate); ``legs`` are the epochs and batches at which legs began.
    """

    batches: dict[Key, list[list[int]]] = field(default_factory=dict)
    updates: list[tuple[int, int, float]] = field(default_factory=list)
    facts: list[tuple[str, Any]] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def steps(self) -> str:
        """Batches of each epoch of a rank, as in "19 + 19 + 6", or "3 x 19"; with their stream if it has a name."""
        lengths: dict[str, list[str]] = {}
        for (stream, _), batches in self.batches.items():
            lengths.setdefault(stream, []).append(str(len(batches)))
        streams: dict[str, list[str]] = {}
        for stream, numbers in lengths.items():
            streams.setdefault(_shortened(numbers), []).append(stream)
        shown = {
            text: " and ".join(names) if len(names) < 3 else f"{len(names)} times" for text, names in streams.items()
        }
        return ", ".join(text if name == "train" else f"{name}: {text}" for text, name in shown.items())

    def repeated(self) -> int:
        """Samples that came more than once in an epoch."""
        return sum(len(ids) - len(set(ids)) for ids in map(_joined, self.batches.values()))

    def seen(self, stream: str = "train") -> int:
        """Different samples in all epochs."""
        return len({i for (name, _), batches in self.batches.items() if name == stream for i in _joined(batches)})


def read(paths: Iterable[Path]) -> Outcome:
    """Fold the records of all ranks of a cell."""
    outcome = Outcome()
    ranks = [_history(_entries(path)) for path in sorted(paths)]
    outcome.errors = sorted({entry["error"] for history in ranks for entry in history if "error" in entry})
    outcome.warned = [entry["warned"] for history in ranks for entry in history if "warned" in entry]
    if not ranks:
        outcome.errors = ["the cell wrote nothing down"]
        return outcome
    if not any("batch" in entry for history in ranks for entry in history):
        outcome.errors.append("no batch was written down")
    outcome.facts = [(entry["fact"], entry["value"]) for entry in ranks[0] if "fact" in entry]
    outcome.updates = _updates(ranks[0])
    for history in ranks[1:]:
        if (updates := _updates(history)) != outcome.updates:
            outcome.errors.append(f"ranks differ in their updates: {outcome.updates[-3:]} and {updates[-3:]}")
    of_ranks = [_by_epoch(history) for history in ranks]
    for found in of_ranks[1:]:  # all ranks have gathered the same
        found.update({key: ids for key, ids in of_ranks[0].items() if key[0] == "gathered"})
    if len({tuple((key, len(ids)) for key, ids in found.items()) for found in of_ranks}) > 1:
        outcome.errors.append("ranks differ in their numbers of batches")
    for key in of_ranks[0]:
        parts = [found.get(key, []) for found in (of_ranks[:1] if key[0] == "gathered" else of_ranks)]
        outcome.batches[key] = [_joined(list(together)) for together in zip(*parts, strict=False)]
    return outcome


def _entries(path: Path) -> list[Entry]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _history(entries: list[Entry]) -> list[Entry]:
    """Drop what came after a checkpoint, where a later leg begins from it."""
    history: list[Entry] = []
    for entry in entries:
        if (checkpoint := entry.get("leg")) is not None:
            # Warnings, errors and facts were seen, and stay.
            saves = [number for number, earlier in enumerate(history) if earlier.get("saved") == checkpoint]
            at = max(saves, default=-1)  # a checkpoint that nobody saved: the framework says so
            lost = [earlier for earlier in history[at + 1 :] if not earlier.keys() & {"batch", "update", "saved"}]
            history = [*history[: at + 1], *lost]
        history.append(entry)
    return history


def _by_epoch(history: list[Entry]) -> dict[Key, list[list[int]]]:
    found: dict[Key, list[list[int]]] = {}
    for entry in history:
        if "batch" in entry:
            found.setdefault((entry["stream"], entry["epoch"]), []).append(entry["batch"])
    return found


def _updates(history: list[Entry]) -> list[tuple[int, int, float]]:
    updates, counts, at = [], Counter[int](), (0, -1)
    for entry in history:
        if "batch" in entry and entry["stream"] in {"train", "a"}:
            at = entry["epoch"], counts[entry["epoch"]]
            counts[entry["epoch"]] += 1
        elif "update" in entry:
            updates.append((*at, entry["update"]))
    return updates


def _joined(batches: list[list[int]]) -> list[int]:
    return [i for batch in batches for i in batch]


def _shortened(lengths: list[str]) -> str:
    """ "3 x 19" for three times the same."""
    if len(lengths) > 1 and len(set(lengths)) == 1:
        return f"{len(lengths)} x {lengths[0]}"
    return " + ".join(lengths)


def differences(torch: Outcome, shoal: Outcome) -> dict[str, str]:
    """What a run with shoal has that a run with torch has not, by name; lost and repeated samples are not compared."""
    found = {
        "error": ("; ".join(torch.errors), "; ".join(shoal.errors)),
        "steps": (torch.steps(), shoal.steps()),
        "updates": (torch.updates, shoal.updates),
        "lengths": (torch.facts, shoal.facts),
    }
    return {name: _shown(*both) for name, both in found.items() if both[0] != both[1]}


def _shown(torch: Any, shoal: Any) -> str:
    if isinstance(torch, list) and isinstance(shoal, list):
        at = next(
            (n for n, (a, b) in enumerate(zip(torch, shoal, strict=False)) if a != b), min(map(len, (torch, shoal)))
        )
        return f"{len(torch)} and {len(shoal)}; at {at} torch {torch[at : at + 2]}, shoal {shoal[at : at + 2]}"
    if isinstance(torch, Mapping) and isinstance(shoal, Mapping):
        key = next(key for key in [*torch, *shoal] if torch.get(key) != shoal.get(key))
        return f"{key}: torch {torch.get(key)}, shoal {shoal.get(key)}"[:300]
    return f"torch {torch}, shoal {shoal}"


def wrong_orders(outcome: Outcome, orders: Mapping[str, Any]) -> list[str]:
    """Where the batches of a stream are not those of the epoch that the framework counts.

    ``orders`` has for each stream a function from an epoch to the ids of its batches; None if the ids have any order.
    """
    wrong = []
    for (stream, epoch), batches in outcome.batches.items():
        expected = orders[stream](epoch)
        came = [sorted(batch) for batch in ([_joined(batches)] if stream in UNORDERED else batches)]
        if came != [sorted(batch) for batch in expected[: len(came)]]:
            at = next(
                (n for n, batch in enumerate(came) if n >= len(expected) or batch != sorted(expected[n])), len(came)
            )
            wrong.append(f"{stream}, epoch {epoch}, batch {at} of {len(came)}{_told(came[at], stream, orders)}")
    return wrong


def _told(batch: list[int], stream: str, orders: Mapping[str, Any]) -> str:
    """Which batch came instead."""
    for epoch in range(8):
        for number, ids in enumerate(orders[stream](epoch)):
            if sorted(ids) == batch:
                return f": batch {number} of epoch {epoch} came"
    return ": ids of no batch came"
