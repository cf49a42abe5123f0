"""Tokenising: a stage that turns the text of a sample into the numbers of a fast tokenizer."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as attribute
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import StorageError, UsageError
from shoal.hints import did_you_mean, pip_install
from shoal.pipeline.stages import FieldError
from shoal.storage.remote_objects import read_whole
from shoal.storage.sources.local_patterns import local_path
from shoal.storage.store_of_url import open_store
from shoal.storage.urls import without_secrets

COUNT_FIELD = "num_tokens"
"""Field with the number of tokens of a sample."""

_DIGEST_BYTES = 16
_FIELD_HINT = (
    "name the field of the text: --text-field NAME on the command line, field= of tokenize(), text_field= of repack()"
)


@dataclass(frozen=True, slots=True)
class Tokenize:
    """A stage that replaces a text by its tokens, and adds their number as the field ``num_tokens``.

    The tokens are an array of shape (num_tokens,), of uint16 if the vocabulary fits, else of int32. Special tokens are
    added as the tokenizer's file says; neither its truncation nor its padding is applied.

    Parameters
    ----------
    path
        A ``tokenizer.json`` as the `tokenizers` library writes it: a local path or a URL. Each process reads it once.
    digest
        Digest of that file, so that processes on several machines use the same tokenizer.
    field
        The text's field: str, or UTF-8 in bytes.
    to
        Field of the tokens.
    is_dry
        Give each sample one token, 0, instead of its own: types without the work.
    count
        Called with the number of tokens of each sample, perhaps by several threads at a time.
    """

    path: str
    digest: str
    field: str = "text"
    to: str = "tokens"
    is_dry: bool = False
    count: Callable[[int], None] | None = attribute(default=None, compare=False)

    @property
    def identity(self) -> tuple[str, str, str]:
        """All that the tokens follow from, wherever the file lies."""
        return self.digest, self.field, self.to

    def __repr__(self) -> str:
        return f"tokenize({without_secrets(self.path)!r})"

    def __call__(self, sample: Any, _: int) -> Any:
        """Return the sample with tokens in place of its text."""
        if not isinstance(sample, Mapping) or self.field not in sample:
            fields = list(sample) if isinstance(sample, Mapping) else []
            msg = f"{self!r} wants the field {self.field!r}; this sample has {', '.join(map(repr, fields)) or 'none'}"
            raise UsageError(msg, hint=f"{did_you_mean(self.field, fields)}{_FIELD_HINT}")
        tokens = self.tokens(sample[self.field])
        if self.count is not None:
            self.count(len(tokens))
        others = {name: value for name, value in sample.items() if name != self.field}
        return {**others, self.to: tokens, COUNT_FIELD: len(tokens)}

    def tokens(self, text: Any) -> NDArray[Any]:
        """Return the tokens of a text, of shape (num_tokens,)."""
        if isinstance(text, bytes | bytearray | memoryview):
            try:
                text = str(text, "utf-8")
            except UnicodeDecodeError as error:
                what = f"the field {self.field!r} ({len(text)} bytes)"
                raise FieldError(what, "texts are in UTF-8, so convert it (iconv)") from error
        if not isinstance(text, str):
            msg = f"{self!r} wants text in the field {self.field!r}, and found {type(text).__name__}"
            raise UsageError(msg, hint=_FIELD_HINT)
        encoder = _loaded(self.path, self.digest)
        # A batch of one: encode() keeps the interpreter's lock, and takes a third longer for offsets that nobody asks
        # for. Of a batch of many, with one thread each, every text takes as long as alone.
        tokens = [0] if self.is_dry else encoder.encode_batch_fast([text])[0].ids
        return np.array(tokens, dtype=_kind(encoder))


def tokenize_with(path: str | os.PathLike[str], *, field: str = "text", to: str = "tokens") -> Tokenize:
    """Return the stage of a tokenizer's file, which is read and checked.

    Raises
    ------
    UsageError
        There is no such file, it is not a tokenizer, or the `tokenizers` library is not installed.
    """
    text = local_path(os.fspath(path))
    stage = Tokenize(text, _digest(_data(text)), field, to)
    _loaded(stage.path, stage.digest)
    return stage


@lru_cache(maxsize=4)
def _loaded(path: str, digest: str) -> Any:
    # One thread each: threads and processes of shoal already share the processors, and the library's own pool would not
    # outlive a fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415  # optional
    except ImportError:
        msg = "text is tokenized with the package tokenizers, which is not installed"
        raise UsageError(msg, hint=pip_install("tokens")) from None
    data = _data(path)
    if _digest(data) != digest:
        msg = f"{without_secrets(path)} is not the tokenizer that this was planned with"
        raise UsageError(msg, hint="every machine needs the same file there; plan again if it was to change")
    try:
        encoder = Tokenizer.from_str(data.decode())
    except Exception as error:  # noqa: BLE001  # the library raises no class of its own
        msg = f"{without_secrets(path)} is no tokenizer: {error}"
        raise UsageError(msg, hint="a tokenizer.json, as the tokenizers library saves it") from None
    encoder.no_truncation()
    encoder.no_padding()
    return encoder


def _data(path: str) -> bytes:
    try:
        return bytes(read_whole(open_store(path), path))
    except StorageError as error:
        msg = f"the tokenizer cannot be read: {error.message}"
        hint = "a tokenizer.json: a local path or a URL. One of the Hugging Face hub is downloaded first"
        raise UsageError(msg, hint=hint) from None


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def _kind(encoder: Any) -> type[np.generic]:
    return np.uint16 if encoder.get_vocab_size() <= 1 << 16 else np.int32
