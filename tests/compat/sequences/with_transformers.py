"""Compares batches of shoal with those of the collators of transformers, for the same documents in the same order.

``python -m tests.compat.sequences.with_transformers``: packed sequences, laid end to end without their padding, are the
batches that `DataCollatorWithFlattening` makes of their documents: tokens, labels, positions, borders and numbers of
documents. Batches by length are those of the collators that pad. Exit code 1 if anything differs; skipped where
transformers cannot be had.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.compat.peers.environments import python_of, run_in, title_of
from tests.compat.sequences.documents import PADDED_LABEL, Documents, drawn, learned_labels, sizes_of_pieces
from tests.environments import CannotHaveError

import shoal
from shoal.errors import ShuffleWarning

_MOST_SHOWN = 3

Batch = dict[str, NDArray[Any]]


def flattened(batch: Batch) -> dict[str, Any]:
    """The fields of `DataCollatorWithFlattening` from a batch of packed sequences."""
    is_token = batch["segment_ids"].ravel() > 0
    sizes = sizes_of_pieces(batch)
    borders = batch["cu_seqlens"] if is_token.all() else np.concatenate([[0], np.cumsum(sizes)])
    longest = int(sizes.max())
    by_name = {
        "input_ids": batch["tokens"],
        "labels": learned_labels(batch),
        "position_ids": batch["position_ids"],
        "seq_idx": segments_of_batch(batch),
    }
    fields: dict[str, Any] = {name: [array.ravel()[is_token].tolist()] for name, array in by_name.items()}
    fields |= {"cu_seq_lens_q": borders.tolist(), "cu_seq_lens_k": borders.tolist()}
    return fields | {"max_length_q": longest, "max_length_k": longest}


def segments_of_batch(batch: Batch) -> NDArray[Any]:
    """The number of each token's document among all documents of a batch, from 0."""
    segments = batch["segment_ids"]
    counts = segments.max(axis=1)
    return segments - 1 + (np.cumsum(counts) - counts)[:, None]


def padded(batch: Batch) -> dict[str, Any]:
    """The fields of collators that pad, for a batch by length whose labels are its tokens."""
    mask = batch["attention_mask"]
    labels = np.where(mask, batch["tokens"], PADDED_LABEL)
    return {
        "input_ids": batch["tokens"].tolist(),
        "attention_mask": mask.astype(int).tolist(),
        "labels": labels.tolist(),
    }


def padded_with_labels(batch: Batch) -> dict[str, Any]:
    """The same where each token's row has its label beside it; -100 pads both."""
    tokens, labels = np.moveaxis(batch["rows"], 2, 0)
    return padded({"tokens": np.where(batch["attention_mask"], tokens, 0), **batch}) | {"labels": labels.tolist()}


def with_rows(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample whose tokens have their labels beside them."""
    return {"rows": np.stack([sample["tokens"], sample["labels"]], axis=1), "num_tokens": sample["num_tokens"]}


def documents_of(documents: Documents, ids: list[int], *, labels: bool) -> list[dict[str, list[int]]]:
    """Samples for a collator, by number of the document."""
    chosen = [documents.tokens[number] for number in ids]
    return [
        {"input_ids": tokens.tolist()} | ({"labels": documents.labels(tokens).tolist()} if labels else {})
        for tokens in chosen
    ]


def collated(documents: Documents, directory: Path) -> Iterator[tuple[str, list[dict[str, list[int]]], dict[str, Any]]]:
    """A collator, its samples, and the fields that shoal's batch has, for each batch of several pipelines."""
    ds = shoal.open(directory).shuffle(seed=1)
    for strategy in ("first_fit", "best_fit"):
        extras = ["cu_seqlens", "document_ids"]
        packed = ds.pack_sequences(documents.length, strategy=strategy, fields=["labels"], extras=extras)
        for batch in packed.batch(7):
            ids = batch["document_ids"][:, 1:]
            samples = documents_of(documents, ids[ids >= 0].tolist(), labels=True)
            yield "flattened", samples, flattened(batch)
    eights = range(8, documents.length + 8, 8)
    for collator, buckets in (("padded", ()), ("padded to eights", eights)):
        by_length = ds.columns("tokens", "num_tokens").with_ids().batch_by_length(9, buckets=buckets)
        for batch in by_length:
            yield collator, documents_of(documents, batch["__id__"].tolist(), labels=False), padded(batch)
    for batch in ds.map(with_rows).with_ids().batch_by_length(9, key="rows", padding=PADDED_LABEL):
        samples = documents_of(documents, batch["__id__"].tolist(), labels=True)
        yield "padded with labels", samples, padded_with_labels(batch)


def main() -> int:
    """Compare, and return the exit code."""
    try:
        python = python_of("transformers")
    except CannotHaveError as error:
        print(f"transformers: skipped: {error}")
        return 0
    # Uniform lengths, and powers of two, which fill sequences without padding.
    powers = 1 << np.random.default_rng(0).integers(0, 7, 600)
    sets = [*drawn(long_documents=False, num_sets=5), Documents(64, tuple(powers.tolist()))]
    asked, ours = [], []
    with tempfile.TemporaryDirectory() as home, warnings.catch_warnings():
        warnings.simplefilter("ignore", ShuffleWarning)
        for number, documents in enumerate(sets):
            directory = Path(home, str(number))
            documents.write(directory)
            for collator, samples, fields in collated(documents, directory):
                asked.append({"collator": collator, "documents": samples})
                ours.append(fields)
        given, answered = Path(home, "asked.json"), Path(home, "answered.json")
        given.write_text(json.dumps(asked))
        run_in(python, Path(__file__).parent / "in_collators.py", given, answered)
        answers = json.loads(answered.read_text())
    wrong = [
        f"{each['collator']}, {len(each['documents'])} documents: other {name}"
        for each, mine, theirs in zip(asked, ours, answers, strict=True)
        for name in mine | theirs
        if mine.get(name) != theirs.get(name)
    ]
    print(f"{title_of('transformers')}: {len(asked):,} batches of {len(sets)} sets, {len(wrong):,} fields differ")
    for text in wrong[:_MOST_SHOWN]:
        print(f"    {text}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
