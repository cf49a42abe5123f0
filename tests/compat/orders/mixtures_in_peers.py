"""Compares the choices of `shoal.mixing` that are of other libraries with these, id for id, in random configurations.

``python -m tests.compat.orders.mixtures_in_peers [PEER ...] [--num 1000]`` makes the environments that are missing, has
each library mix sources of a few samples, and compares; among them those of which the tests have digests. What this
machine cannot have is skipped by name. Exit code 1 if any id differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tests.compat.peers.environments import in_own_cache, python_of, run_in, title_of
from tests.environments import CannotHaveError
from tests.order.peer_mixtures import DIGESTS, in_storage_order, mixed_ids

from shoal.mixing import Concatenate, Interleave, RandomMix, RoundRobin

HERE = Path(__file__).parent
STOPPING = ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement")
RESEEDING = ("datasets48", "datasets50", "datasets")
"""Versions in which ``set_epoch`` reseeds the draws of a mixture, and shuffles shards."""

Wanted = dict[str, Any]


def for_datasets(rng: np.random.Generator, peer: str) -> Wanted:
    """A mixture of 1 to 6 sources; in one of 20, they take more draws than come in a batch of 1,000."""
    num_sources, most = int(rng.integers(1, 7)), 600 if rng.random() < 0.05 else 30
    is_mapped, reseeds = bool(rng.random() < 0.3), peer in RESEEDING
    stopping, drawn = str(rng.choice(STOPPING)), bool(rng.random() < 0.7)
    choice = "concatenate" if rng.random() < 0.1 else "interleave"
    is_in_tables = bool(rng.random() < 0.3)
    sources = []
    for _ in range(num_sources):
        size = int(rng.integers(1, most + 1))
        # Of 4.4, a mixture loses the order of shards that a source has alone.
        several = reseeds and not is_mapped and choice == "interleave" and rng.random() < 0.4
        cuts = np.sort(rng.integers(0, size + 1, int(rng.integers(1, 5)) if several else 0))
        shards = np.diff(np.r_[0, cuts, size])
        shuffled = int(rng.integers(2**32)) if rng.random() < 0.3 else None
        more = {"mapped": is_mapped, "shuffled": shuffled, "tables": is_in_tables}
        sources.append({"shards": shards[shards > 0].tolist(), **more})
    probabilities = None
    if drawn:
        weights = rng.random(num_sources) + 0.1
        if stopping == "first_exhausted" and num_sources > 1 and rng.random() < 0.1:
            weights[rng.integers(num_sources)] = 0
        if rng.random() < 0.5:
            weights = np.round(weights, 1) + (weights > 0) * 0.1
        probabilities = (weights / weights.sum()).tolist()
    epoch = 0 if rng.random() < 0.4 or choice == "concatenate" else int(rng.integers(1, 50))
    is_new = reseeds and not is_mapped
    num_shards = min(len(each["shards"]) for each in sources)
    ranks = int(rng.integers(2, 5)) if not is_mapped and rng.random() < 0.2 else 1
    if choice == "concatenate" and reseeds:
        num_shards = sum(len(each["shards"]) for each in sources)
    return {
        "choice": choice,
        "sources": sources,
        "stopping": stopping,
        # 4.4 has map-style mixtures without probabilities end with their first source, against what they promise.
        "stops_early": peer == "datasets44" and is_mapped and not drawn and stopping == STOPPING[2],
        "probabilities": probabilities,
        "seed": int(rng.integers(2**40)),
        "epoch": epoch,
        "source_epoch": epoch if is_new else 0,
        "epochs": "new" if is_new else "same",
        "whole_turns": is_mapped,
        "ranks": ranks if num_shards % ranks else 1,
    }


def of_datasets(wanted: Wanted, found: Any) -> bool:
    """True if ours has the ids of the mixture, and each rank those of its positions."""
    if wanted["choice"] == "concatenate":
        choice: Any = Concatenate(epochs=wanted["epochs"])
    else:
        names = ("probabilities", "stopping", "epochs", "whole_turns")
        given = {name: wanted[name] for name in names}
        choice = Interleave(**given | ({"stopping": STOPPING[0]} if wanted["stops_early"] else {}))
    ids = mixed_ids(choice, [np.array(each) for each in found["sources"]], wanted["seed"], wanted["epoch"]).tolist()
    by_rank = [ids[rank :: wanted["ranks"]] for rank in range(wanted["ranks"])]
    return bool(ids == found["mixture"] and by_rank == found.get("ranks", [ids]))


def for_webdataset(rng: np.random.Generator, peer: str) -> Wanted:
    num_sources = int(rng.integers(1, 9))
    weights = rng.random(num_sources) if rng.random() < 0.5 else rng.integers(0, 5, num_sources)
    weights[int(rng.integers(num_sources))] += 1
    seed, epoch = int(rng.integers(2**40)), int(rng.integers(4))
    return {
        "choice": "random_mix" if rng.random() < 0.8 else "round_robin",
        "lengths": rng.integers(1, 2000 if rng.random() < 0.05 else 60, num_sources).tolist(),
        "probs": weights.tolist() if rng.random() < 0.8 else None,
        "longest": bool(rng.random() < 0.5),
        "seed": seed,
        "epoch": epoch,
        "random_seed": RandomMix.random_seed(seed, epoch),
    }


def of_webdataset(wanted: Wanted, found: Any) -> bool:
    choice: Any = RoundRobin(longest=wanted["longest"])
    if wanted["choice"] == "random_mix":
        choice = RandomMix(probs=wanted["probs"], longest=wanted["longest"])
    sources = in_storage_order(wanted["lengths"])
    return bool(mixed_ids(choice, sources, wanted["seed"], wanted["epoch"]).tolist() == found)


def stored(peer: str) -> list[Wanted]:
    """The mixtures whose digests the tests have, as far as this version makes them."""
    found = []
    for choice, lengths, seed, epoch, _ in DIGESTS:
        wanted: Wanted = {"choice": choice.name, "seed": seed, "epoch": epoch, "lengths": lengths}
        if peer == "webdataset":
            more = {"random_seed": RandomMix.random_seed(seed, epoch)} if isinstance(choice, RandomMix) else {}
            found += [wanted | asdict(choice) | more] if isinstance(choice, RandomMix | RoundRobin) else []
        elif isinstance(choice, Interleave | Concatenate) and (choice.epochs == "new") == (peer in RESEEDING):
            given = {"probabilities": None, "stopping": STOPPING[0], "whole_turns": False} | asdict(choice)
            is_mapped = bool(given["whole_turns"])
            sources = [
                {"shards": [length], "mapped": is_mapped, "shuffled": None, "tables": False} for length in lengths
            ]
            found.append(wanted | given | {"sources": sources, "source_epoch": 0, "stops_early": False, "ranks": 1})
    return found


class Library(NamedTuple):
    """What makes a configuration, what compares it, and the script that runs in the library's environment."""

    wanted_of: Callable[[np.random.Generator, str], Wanted]
    is_equal: Callable[[Wanted, Any], bool]
    script: str


LIBRARIES = {
    **dict.fromkeys(("datasets44", *RESEEDING), Library(for_datasets, of_datasets, "mixes_in_datasets.py")),
    "webdataset": Library(for_webdataset, of_webdataset, "mixes_in_webdataset.py"),
}


def compared(peer: str, num: int) -> tuple[list[Wanted], Counter[str], int]:
    """The configurations of which ids differ, how many there were by kind, and how many ids."""
    wanted_of, is_equal, script = LIBRARIES[peer]
    rng = np.random.default_rng(list(peer.encode()))
    asked = [*stored(peer), *(wanted_of(rng, peer) for _ in range(num))]
    with tempfile.TemporaryDirectory() as directory:
        wanted, answer = Path(directory, "wanted.json"), Path(directory, "found.json")
        wanted.write_text(json.dumps(asked))
        run_in(python_of(peer), HERE / script, wanted, answer)
        found = json.loads(answer.read_text())
    kinds = Counter(each["choice"] for each in asked)
    num_ids = sum(len(each["mixture"] if isinstance(each, dict) else each) for each in found)
    return [each for each, one in zip(asked, found, strict=True) if not is_equal(each, one)], kinds, num_ids


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", nargs="*", default=list(LIBRARIES))
    parser.add_argument("--num", type=int, default=1000)
    arguments = parser.parse_args()
    num_wrong = 0
    for peer in arguments.peers:
        begin = time.perf_counter()
        try:
            wrong, kinds, num_ids = compared(peer, arguments.num)
        except CannotHaveError as error:
            print(f"{peer}: skipped, {error}")
            continue
        kinds_text = ", ".join(f"{count:,} of {kind}" for kind, count in sorted(kinds.items()))
        verdict = f"{len(wrong)} differ" if wrong else "all equal"
        seconds = time.perf_counter() - begin
        total = sum(kinds.values())
        print(f"{title_of(peer)}: {total:,} mixtures ({kinds_text}), {num_ids:,} ids, {verdict}; {seconds:.0f} s")
        for each in wrong[:3]:
            print(f"  {each}")
        num_wrong += len(wrong)
    return int(num_wrong > 0)


if __name__ == "__main__":
    sys.exit(in_own_cache(main))
