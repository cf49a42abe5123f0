"""Compares sequences of shoal with the bins of axolotl's sampler, for the same documents.

``python -m tests.compat.sequences.with_axolotl`` packs random documents in axolotl's environment and here. First fit
puts the same documents into a sequence as axolotl does without its limits; best fit never needs more sequences than
axolotl, with its default limits, in groups, or one document after another. Exit code 1 if anything differs; skipped
where axolotl cannot be had.
"""

from __future__ import annotations

import json
import sys
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

from tests.compat.peers.environments import python_of, run_in, title_of
from tests.compat.sequences.documents import Documents, drawn, sequences
from tests.environments import CannotHaveError

UNLIMITED = 1 << 30
ARGUMENTS: dict[str, dict[str, Any]] = {
    "without limits": {"bin_size": UNLIMITED, "group_size": UNLIMITED},
    "by default": {"bin_size": 200},
    "in groups of 100": {"bin_size": 200, "group_size": 100},
    "one after another": {"bin_size": 200, "sequential": True},
}
_MOST_SHOWN = 3


def differences(directory: Path, documents: Documents, answers: dict[str, dict[str, Any]]) -> list[str]:
    """What is wrong; empty if nothing is."""
    wrong = []
    ids = sequences(directory, documents.length, "first_fit")["document_ids"][:, 1:]
    filled = sorted(sorted(each[each >= 0].tolist()) for each in ids)
    if filled != sorted(map(sorted, answers["without limits"]["bins"])):
        wrong.append(f"{len(filled)} sequences by first fit are not axolotl's")
    least = len(sequences(directory, documents.length, "best_fit")["tokens"])
    for limits, theirs in answers.items():
        num_bins, total = len(theirs["bins"]), sum(documents.sizes)
        if sorted(chain.from_iterable(theirs["bins"])) != list(range(len(documents.sizes))):
            wrong.append(f"axolotl {limits} leaves documents out")
        if abs(theirs["fill"] - total / (num_bins * documents.length)) > 1e-9:
            wrong.append(f"axolotl {limits} counts {theirs['fill']} of a sequence as filled")
        if least > num_bins:
            wrong.append(f"{least} sequences by best fit, and axolotl {limits} needs {num_bins}")
    return [f"{len(documents.sizes)} documents in {documents.length} tokens: {what}" for what in wrong]


def main() -> int:
    """Compare, and return the exit code."""
    sets = drawn(long_documents=False, num_sets=12)
    asked = [
        {"length": documents.length, "sizes": documents.sizes, "arguments": arguments}
        for documents in sets
        for arguments in ARGUMENTS.values()
    ]
    try:
        python = python_of("axolotl")
    except CannotHaveError as error:
        print(f"axolotl: skipped: {error}")
        return 0
    wrong = []
    with tempfile.TemporaryDirectory() as home:
        given, answered = Path(home, "asked.json"), Path(home, "answered.json")
        given.write_text(json.dumps(asked))
        run_in(python, Path(__file__).parent / "in_axolotl.py", given, answered)
        answers = iter(json.loads(answered.read_text()))
        for number, documents in enumerate(sets):
            directory = Path(home, str(number))
            documents.write(directory)
            wrong += differences(directory, documents, dict(zip(ARGUMENTS, answers, strict=False)))
    print(f"{title_of('axolotl')}: {len(asked):,} packings, {len(wrong):,} differ or need more sequences")
    for text in wrong[:_MOST_SHOWN]:
        print(f"    {text}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
