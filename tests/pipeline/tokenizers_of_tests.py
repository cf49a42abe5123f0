"""A small tokenizer, trained where it is needed: its file is the same each time."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

TEXTS = ("the quick brown fox jumps over the lazy dog", "pack my box with five dozen liquor jugs")


def write_tokenizer(path: Path, *, vocab_size: int = 300) -> Path:
    """Write a byte-level BPE tokenizer, which can encode any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.save(str(path))
    return path
