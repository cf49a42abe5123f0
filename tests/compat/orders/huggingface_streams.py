"""Compares the orders of Hugging Face datasets with its own, id for id, in random configurations.

``python -m tests.compat.orders.huggingface_streams [PEER ...] [--num 2000] [--digests]`` makes
the environments that are missing, and has each release shuffle generators and files of Parquet and JSON, on ranks and
in the workers of loaders.
One of 40 configurations runs in a real ``DataLoader`` with processes; of the others with workers, the streams of these
are made in one process. Exit code 1 if any id differs; what this machine cannot have is skipped by name. ``--digests``
prints what tests/order/test_huggingface_order.py has stored.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from tests.compat.peers.environments import in_own_cache, python_of, run_in, title_of
from tests.environments import CannotHaveError

from shoal.errors import StateError
from shoal.orders import HuggingFace

HERE = Path(__file__).parent
RELEASES = {"datasets40": "4.0", "datasets44": "4.4", "datasets48": "4.8", "datasets50": "5.0", "datasets52": "5.2"}
_MOST_SHOWN = 5

Wanted = dict[str, Any]


def sources(draw: random.Random) -> list[tuple[str, list[int]]]:
    """Sources of up to 40 shards; in one of 16, there are thousands of samples."""
    found = []
    for number in range(96):
        kind = draw.choice(("examples", "examples", "parquet", "parquet", "json"))
        most = draw.choice((3, 12, 40))
        shards = [
            draw.randint(0 if kind == "examples" else 1, most) for _ in range(draw.randint(1, draw.choice((6, 40))))
        ]
        if number % 16 == 0:
            shards = [draw.randint(1, 900) for _ in range(draw.randint(1, 6))]
        if sum(shards):
            found.append((kind, shards))
    return found


def runs(release: str, num: int) -> list[Wanted]:
    """Random runs of a release, the same ones in every process."""
    draw = random.Random(f"{release} 20")
    possible = sources(draw)
    return [_run(draw, release, possible, is_loaded=number % 40 == 0) for number in range(num)]


def _run(draw: random.Random, release: str, possible: list[tuple[str, list[int]]], *, is_loaded: bool) -> Wanted:
    kind, shards = draw.choice(possible)
    ranks = draw.choice((1, 1, 2, 3, 4, 8))
    strategies = ["auto", "auto", "examples"] if release >= "5.1" else ["auto"]
    if release >= "5.1" and len(shards) >= ranks:
        strategies.append("shards")
    return {
        "release": release,
        "source": kind,
        "shards": shards,
        "seed": draw.choice((0, 1, 42, draw.randrange(2**32), draw.randrange(2**63))),
        "epoch": draw.choice((0, 0, 1, 2, draw.randint(3, 1000))),
        "buffer_size": draw.choice((1, 2, 3, draw.randint(4, 120), draw.randint(4, 120), 1000, draw.randint(1, 2500))),
        "max_buffer_input_shards": draw.choice((1, 2, 3, 10, 10, draw.randint(4, 40))),
        "world_size": ranks,
        "num_workers": draw.choice((1, 2, 3)) if is_loaded else draw.choice((0, 0, 0, 1, 2, 3, 7)),
        "batch_size": draw.choice((1, 2, draw.randint(3, 40))),
        "strategy": draw.choice(strategies),
        "loader": is_loaded,
        "saved_after": draw.choice((0, 0, 1, 2, draw.randint(1, 60))),
    }


def ids_of(wanted: Wanted) -> list[int]:
    """All ids of the same run by shoal."""
    bound = order_of(wanted).bind(wanted["shards"], seed=wanted["seed"], epoch=wanted["epoch"])
    ids: list[int] = bound.ids(0, bound.num_samples).tolist()
    if bound.num_samples and wanted["world_size"] > 1 and not wanted["num_workers"]:
        ids = _as_dealt(bound, ids, wanted)
    return ids


def _as_dealt(bound: Any, ids: list[int], wanted: Wanted) -> list[int]:
    """The ids step by step, in a step the batches of all ranks: samples that ranks share come in the order of all."""
    ranks = bound.axis(np.arange(len(ids)), np.zeros(len(ids), dtype=np.int64), np.zeros(len(ids), dtype=np.int64))
    size = wanted["batch_size"]
    own = [[ids[at] for at in np.flatnonzero(ranks == rank)] for rank in range(wanted["world_size"])]
    steps = -(-max(len(each) for each in own) // size)
    return [each for step in range(steps) for rank in own for each in rank[step * size : (step + 1) * size]]


def digest(ids: list[int]) -> str:
    """What the tests store of ids."""
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16]


def order_of(wanted: Wanted) -> HuggingFace:
    """The order of a run."""
    kind: Any = "block" if wanted["release"] >= "5.1" else "reservoir"
    names = ("release", "buffer_size", "max_buffer_input_shards", "world_size", "num_workers", "batch_size", "strategy")
    return HuggingFace(kind, **{name: wanted[name] for name in names}, tables=wanted["source"] != "examples")


def state_says(wanted: Wanted, state: Any, before: int) -> str:
    """Whether a state says how many samples were before it: "all", "a range" or "nothing"; or what it says is wrong."""
    try:
        adopted = order_of(wanted).adopted(state, np.array(wanted["shards"]), wanted["seed"])
    except StateError as error:
        told = re.match(r"(\d+) to (\d+) samples", str(error))
        if told is None:
            return "nothing" if "one process" in str(error) else str(error)
        return "a range" if int(told[1]) <= before <= int(told[2]) else str(error)
    if adopted is None or (adopted.position, adopted.epoch) != (before, wanted["epoch"]):
        return f"{adopted}, and {before} were before it"
    return "all"


def in_peer(peer: str, wanted: list[Wanted]) -> list[dict[str, Any]]:
    """The ids, and states, by the library."""
    with tempfile.TemporaryDirectory() as directory:
        asked, answered = Path(directory, "asked.json"), Path(directory, "answered.json")
        asked.write_text(json.dumps(wanted))
        run_in(python_of(peer), HERE / "streams_in_datasets.py", asked, answered)
        found: list[dict[str, Any]] = json.loads(answered.read_text())
    return found


def main() -> int:
    """Compare each release, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", nargs="*", default=list(RELEASES))
    parser.add_argument("--num", type=int, default=2000)
    parser.add_argument("--digests", action="store_true")
    options = parser.parse_args()
    is_wrong = False
    for peer in options.peers:
        wanted, began = runs(RELEASES[peer], options.num), time.perf_counter()
        try:
            answers = in_peer(peer, wanted)
        except CannotHaveError as error:
            print(f"{peer:<12} skipped: {error}")
            continue
        both = list(zip(wanted, answers, strict=True))
        wrong = [(one, answer["ids"]) for one, answer in both if ids_of(one) != answer["ids"]]
        saved = [(one, answer) for one, answer in both if answer["state"] is not None]
        said = Counter(state_says(one, answer["state"], answer["before"]) for one, answer in saved)
        is_wrong |= bool(wrong) or not said.keys() <= {"all", "a range", "nothing"}
        kinds = Counter(one["source"] for one in wanted) + Counter(loader=sum(one["loader"] for one in wanted))
        about = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        seconds = time.perf_counter() - began
        print(f"{title_of(peer):<24} {len(wanted):,} configurations ({about}), {len(wrong)} differ; {seconds:.0f} s")
        print(f"    {len(saved):,} states; how many samples were before them, by the state: {dict(said)}", flush=True)
        for one, ids in wrong[:_MOST_SHOWN]:
            print(f"    {one}\n        {ids[:30]} in datasets\n        {ids_of(one)[:30]}", flush=True)
        if options.digests:
            for one, answer in both[:: max(1, len(both) // 8)]:
                print(json.dumps([one, digest(answer["ids"]), answer["state"], answer["before"]]))
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(in_own_cache(main))
