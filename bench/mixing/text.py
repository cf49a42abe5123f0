"""Rows of tokens to train on: Python sources of the installed packages and the standard library, sorted by package."""

from __future__ import annotations

import hashlib
import re
import sysconfig
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LONGEST_FILE_SHARE, HELD_OUT_SHARE = 4, 8  # a quarter of a package, an eighth


@dataclass(frozen=True, slots=True)
class TextRows:
    """Rows in storage order: package by package, file by file.

    Attributes
    ----------
    train, held_out
        Tokens; shape (num_rows, context + 1).
    package
        The number of each training row's package; shape (num_rows,).
    summary
        What the rows were made from.
    """

    train: NDArray[np.uint16]
    held_out: NDArray[np.uint16]
    package: NDArray[np.int64]
    summary: str


def read_rows(*, package_bytes: int, vocabulary: int, context: int, held_out_rows: int = 8) -> TextRows:
    """Return rows of ``context + 1`` tokens from at most ``package_bytes`` of each package."""
    train, held_out = texts(package_bytes)
    words = Vocabulary([text for files in train for text in files], vocabulary)
    rows = [rows_of(files, words, context) for files in train]
    held_out_of_each = [rows_of(files, words, context)[:held_out_rows] for files in held_out]
    every = np.concatenate(rows)
    num_bytes = sum(len(text) for files in train for text in files)
    summary = (
        f"{len(rows)} packages, {sum(map(len, train))} files, {num_bytes / 1e6:.2f} MB, {every.size:,} tokens in "
        f"{len(every)} rows of {context + 1}; held out {sum(each.size for each in held_out_of_each):,} tokens of "
        f"{sum(map(len, held_out))} files; sha256 {hashlib.sha256(every.tobytes()).hexdigest()[:12]}"
    )
    package = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
    return TextRows(every, np.concatenate(held_out_of_each), package, summary)


def packages() -> dict[str, list[Path]]:
    """The source files of each package that is installed or in the standard library, in the order of their paths."""
    found: dict[str, list[Path]] = {}
    for root in {sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")}:
        for directory in Path(root).iterdir():
            if directory.is_dir() and directory.name not in {"site-packages", "__pycache__", "test", "shoal"}:
                files = sorted(path for path in directory.rglob("*.py") if path.is_file())
                found.setdefault(directory.name, []).extend(files)
    return dict(sorted(found.items()))


def texts(package_bytes: int) -> tuple[list[list[bytes]], list[list[bytes]]]:
    """The files to train on and those held out, of each package.

    Which files is drawn by a hash of their contents; no text comes twice, and no file is a large part of its package.
    """
    seen: set[bytes] = set()
    train, held_out = [], []
    for files in packages().values():
        drawn = []
        for number, path in enumerate(files):
            if 200 <= path.stat().st_size <= package_bytes // LONGEST_FILE_SHARE:
                text = path.read_bytes()
                digest = hashlib.sha256(text).digest()
                if digest not in seen:
                    seen.add(digest)
                    drawn.append((digest, number, text))
        drawn.sort()
        sizes = np.cumsum([len(text) for _, _, text in drawn])
        if not len(sizes) or sizes[-1] < package_bytes // 2:
            continue
        first = int(np.searchsorted(sizes, package_bytes // HELD_OUT_SHARE)) + 1
        last = int(np.searchsorted(sizes, package_bytes * (HELD_OUT_SHARE + 1) // HELD_OUT_SHARE))
        held_out.append([text for _, _, text in drawn[:first]])
        train.append([text for _, _, text in sorted(drawn[first:last], key=lambda each: each[1])])
    return train, held_out


class Vocabulary:
    """Every byte, and the words and runs of spaces or signs that save most tokens; a word that is in none is bytes."""

    _WORDS = re.compile(rb" ?[A-Za-z]+|\n *|[0-9]+| ?[^A-Za-z0-9\s]+|\s+", re.DOTALL)

    def __init__(self, files: list[bytes], size: int) -> None:
        counts = Counter(word for text in files for word in self._WORDS.findall(text) if len(word) > 1)
        best = sorted(counts, key=lambda word: (-counts[word] * (len(word) - 1), word))[: size - 256]
        self._numbers = {word: [256 + number] for number, word in enumerate(best)}

    def tokens(self, text: bytes) -> list[int]:
        """The tokens of a text."""
        return [token for word in self._WORDS.findall(text) for token in self._numbers.get(word) or word]


def rows_of(files: list[bytes], vocabulary: Vocabulary, context: int) -> Any:
    """The files of a package after one another, a zero behind each, cut into rows."""
    stream = np.array([token for text in files for token in [*vocabulary.tokens(text), 0]], dtype=np.uint16)
    length = context + 1
    return stream[: len(stream) // length * length].reshape(-1, length)
