"""Compares sequences of shoal with those of TRL, for the same documents.

``python -m tests.compat.sequences.with_trl`` packs random documents in TRL's environment and here: all documents at
once by `pack_dataset`, and in groups of 1,000 documents by `SFTTrainer`, whose labels come from masks. Best fit gives
sequences of the same lengths of documents, with every document whole; concat gives the same rows as "wrapped"; every
token has the same position and label; borders are equal. Exit code 1 if anything differs; skipped where TRL cannot be
had.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.compat.peers.environments import python_of, run_in, title_of
from tests.compat.sequences.documents import (
    PADDED_LABEL,
    Documents,
    drawn,
    learned_labels,
    pieces,
    sequences,
    sizes_of_pieces,
)
from tests.environments import CannotHaveError

STRATEGIES = {"bfd": "best_fit", "bfd_split": "best_fit", "wrapped": "concat"}
GROUP = 1_000  # documents that datasets gives to a batched function, if nothing else is said
_MOST_SHOWN = 3

Asked = tuple[Documents, str, str]


def requests() -> list[Asked]:
    """Documents, TRL's strategy, and what TRL packs by."""
    whole, long = drawn(long_documents=False), drawn(long_documents=True, seed=1)
    asked = [(each, "bfd", "dataset") for each in whole]
    asked += [(each, strategy, "dataset") for each in long for strategy in ("bfd_split", "wrapped")]
    sizes = np.random.default_rng(2).lognormal(3, 1, 2_500).astype(np.int64).clip(1, 128)
    many = Documents(128, tuple(sizes.tolist()))
    asked += [(many, "bfd", mask) for mask in ("completion_mask", "assistant_masks")]
    return [*asked, (Documents(64, many.sizes), "bfd_split", "completion_mask")]


def as_json(asked: Asked) -> dict[str, Any]:
    """A request for TRL's script."""
    documents, strategy, by = asked
    return {
        "length": documents.length,
        "strategy": strategy,
        "by": by,
        "tokens": [tokens.tolist() for tokens in documents.tokens],
        "labels": [documents.labels(tokens).tolist() for tokens in documents.tokens],
        "masks": [documents.learned[tokens].astype(int).tolist() for tokens in documents.tokens],
    }


def by_token(tokens: NDArray[Any], values: NDArray[Any]) -> dict[int, int]:
    """The value of each token, without padding, which is token 0."""
    return {
        token: value for token, value in zip(tokens.ravel().tolist(), values.ravel().tolist(), strict=True) if token
    }


def same_rows(batch: dict[str, NDArray[Any]], theirs: dict[str, Any]) -> list[str]:
    """What differs in sequences that are laid end to end."""
    collated = {name: np.array(theirs["collated"][name]) for name in ("input_ids", "labels")}
    by_first_token = np.argsort(batch["tokens"][:, 0])
    named = {"tokens": "input_ids", "labels": "labels"}
    wrong = []
    for ours, name in named.items():
        rows = batch[ours][by_first_token][:, : collated[name].shape[1]]
        if not np.array_equal(rows, collated[name]):
            wrong.append(f"other rows of {ours}")
    return wrong


def same_pieces(batch: dict[str, NDArray[Any]], theirs: dict[str, Any]) -> list[str]:
    """What differs in sequences of whole documents."""
    collated = {name: np.array(value) for name, value in theirs["collated"].items()}
    ours, rows = pieces(batch), theirs["rows"]
    cut = [
        np.split(np.array(t), np.cumsum(s)[:-1]) for t, s in zip(rows["input_ids"], rows["seq_lengths"], strict=True)
    ]
    segments = np.arange(sum(map(len, ours)))
    checks = {
        f"{len(ours)} sequences, and TRL has {len(cut)}": len(ours) == len(cut),
        "sequences of other lengths": Counter(tuple(sorted(map(len, row))) for row in ours)
        == Counter(tuple(sorted(sizes)) for sizes in rows["seq_lengths"]),
        "other pieces": sorted(tuple(piece.tolist()) for row in ours for piece in row)
        == sorted(tuple(piece.tolist()) for row in cut for piece in row),
        "other positions": by_token(batch["tokens"], batch["position_ids"])
        == by_token(collated["input_ids"], collated["position_ids"]),
        "other labels": by_token(batch["tokens"], learned_labels(batch))
        == by_token(collated["input_ids"], collated["labels"]),
        "other borders": sorted(sizes_of_pieces(batch)) == sorted(np.diff(collated["cu_seq_lens_q"])),
        "another longest piece": sizes_of_pieces(batch).max() == collated["max_length_q"],
        "other numbers of segments": np.array_equal(np.unique(collated["seq_idx"]), segments),
    }
    return [what for what, is_same in checks.items() if not is_same]


def differences(directory: Path, asked: Asked, theirs: dict[str, Any]) -> list[str]:
    """What is wrong; empty if nothing is."""
    documents, strategy, by = asked
    how: dict[str, Any] = {} if by == "dataset" else {"lengths": None, "block": GROUP}
    batch = sequences(directory, documents.length, STRATEGIES[strategy], **how)
    wrong = (same_rows if strategy == "wrapped" else same_pieces)(batch, theirs)
    by_mask = np.where(batch["loss_mask"], batch["tokens"], PADDED_LABEL)
    if not np.array_equal(by_mask, batch["labels"]):
        wrong.append("loss_mask says other tokens than labels")
    about = f"{strategy} of {len(documents.sizes)} documents in {documents.length} tokens by {by}"
    return [f"{about}: {what}" for what in wrong]


def main() -> int:
    """Compare, and return the exit code."""
    asked = requests()
    try:
        python = python_of("trl")
    except CannotHaveError as error:
        print(f"trl: skipped: {error}")
        return 0
    wrong = []
    with tempfile.TemporaryDirectory() as home:
        given, answered = Path(home, "asked.json"), Path(home, "answered.json")
        given.write_text(json.dumps(list(map(as_json, asked))))
        run_in(python, Path(__file__).parent / "in_trl.py", given, answered)
        for number, (each, theirs) in enumerate(zip(asked, json.loads(answered.read_text()), strict=True)):
            directory = Path(home, str(number))
            each[0].write(directory)
            wrong += differences(directory, each, theirs)
    num_tokens = sum(sum(documents.sizes) for documents, _, _ in asked)
    print(f"{title_of('trl')}: {len(asked):,} packings of {num_tokens:,} tokens, {len(wrong):,} differences")
    for text in wrong[:_MOST_SHOWN]:
        print(f"    {text}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
