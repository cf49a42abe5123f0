"""Names and versions of shards as an index file stores them: texts in one mapped column of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import IndexFileError
from shoal.index.shard_scan import Buffer


class Texts(Sequence[str]):
    """Many short texts, stored as newline-separated UTF-8; each is decoded when it is read.

    A process holds 8 bytes per text instead of an object of 75. Iteration decodes all texts, 0.1 us each. Raises
    `IndexFileError` at the first access if the texts are not as many as shards, or a path is not safe.
    """

    def __init__(self, blob: Buffer, *, num_texts: int, is_path: bool) -> None:
        self._blob, self._num_texts, self._checks_paths = blob, num_texts, is_path

    def __len__(self) -> int:
        return self._num_texts

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return tuple(self._all()[number])
        place = range(self._num_texts)[number]
        borders = self._borders
        return bytes(self._blob[borders[place] + 1 : borders[place + 1]]).decode("utf-8", "surrogateescape")

    def __reduce__(self) -> tuple[object, ...]:
        create = partial(Texts, num_texts=self._num_texts, is_path=self._checks_paths)
        return create, (bytes(self._blob),)

    def _all(self) -> list[str]:
        texts = bytes(self._blob).decode("utf-8", "surrogateescape").split("\n") if self._num_texts else []
        if len(texts) != self._num_texts:
            msg = f"the index file has {self._num_texts} shards and {len(texts)} names or versions of shards"
            raise IndexFileError(msg, hint="the file is damaged or of another kind: make the index again")
        if self._checks_paths:
            check_names(texts)
            self._checks_paths = False  # once
        return texts

    @cached_property
    def _borders(self) -> NDArray[np.int64]:
        """The place of the newline before each text, then of the end of all; shape (num_texts + 1,)."""
        self._all()  # checks the texts
        newlines = np.flatnonzero(np.frombuffer(self._blob, dtype=np.uint8) == ord("\n"))
        return np.concatenate([[-1], newlines, [len(self._blob)]])


def check_names(names: Iterable[str]) -> None:
    """Check that names of shards stay inside a directory.

    Raises `IndexFileError` if a name is empty or absolute, has a part ".." or holds control characters.
    """
    for name in names:
        is_safe = name.isprintable() or not any(ord(letter) < 32 or ord(letter) == 127 for letter in name)
        leaves = ".." in name and ".." in name.replace("\\", "/").split("/")
        if not name or name.startswith(("/", "\\")) or not is_safe or leaves:
            msg = f"the index names a shard {name!r}"
            hint = "names of shards are relative, without '..' and control characters; do not use this index"
            raise IndexFileError(msg, hint=hint)
