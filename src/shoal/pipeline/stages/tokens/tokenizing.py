"""The stage that turns the text of a sample into the token numbers of a fast tokenizer."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from dataclasses import field as attribute
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.arguments import as_text, with_type
from shoal.errors import StorageError, UsageError
from shoal.hints import did_you_mean, pip_install, pointer_in
from shoal.index.table import Index
from shoal.pipeline.stages.chosen_fields import fields_of, value_at, without_value
from shoal.pipeline.stages.running import FieldError
from shoal.pipeline.stages.stage import Stage, each_stage, stages_of
from shoal.storage.sources.local_patterns import local_path
from shoal.storage.store_of_url import open_store
from shoal.storage.urls import without_secrets

COUNT_FIELD = "num_tokens"
"""Field with the number of tokens of a sample."""

TOKENIZERS = "tokenizers"
"""Metadata key of an index for the identities of the tokenizers that made its tokens."""

_DIGEST_BYTES = 16
_IDENTITY_BYTES = 8
_FIELD_HINT = "name the field or path of the text: text_field= of repack(), field= of tokenize()"


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """A tokenizer: a file that each process reads once, or an object that travels to each process as text.

    ``name`` is the path or URL of the file, or the class of the object. ``digest`` of the text makes sure that all
    machines use the same tokenizer. ``text`` is the result of the object's ``to_str()``; None for a file. ``identity``
    is a digest of the JSON without layout, truncation and padding: the same for a file and its object.
    """

    name: str
    digest: str
    text: str | None = attribute(default=None, compare=False, repr=False)
    identity: str = ""

    def data(self) -> bytes:
        """Return the tokenizer's text in UTF-8."""
        return _data(self.name) if self.text is None else self.text.encode()


@dataclass(frozen=True, slots=True)
class Tokenize(Stage):
    """A stage that replaces a text by its tokens, and adds their number as the field ``num_tokens``.

    The tokens are an array of shape (num_tokens,), of uint16 if the vocabulary fits, else of int32. Special tokens are
    added as the tokenizer's file says; neither its truncation nor its padding is applied.

    Parameters
    ----------
    source
        The tokenizer.
    field
        The text's field, or a path into a field: str, or UTF-8 in bytes.
    to
        Field of the tokens.
    is_dry
        Replace each text by one token, 0: types without the work.
    count
        Called with the number of tokens of each sample, perhaps by several threads at a time.
    """

    source: TokenizerSource
    field: str = "text"
    to: str = "tokens"
    is_dry: bool = False
    count: Callable[[int], None] | None = attribute(default=None, compare=False)

    tokenizes = True

    @property
    def identity(self) -> tuple[str, str, str]:
        """The inputs that determine the tokens; the file's location is not one of them."""
        return self.digest, self.field, self.to

    @property
    def token_identities(self) -> tuple[str, ...]:  # type: ignore[override]
        """The identity of the tokenizer."""
        return (self.source.identity,)

    @property
    def digest(self) -> str:
        """Digest of the tokenizer's text."""
        return self.source.digest

    def counting(self, count: Callable[[int], None]) -> Tokenize:
        """Return this stage with a callback for the number of tokens of each sample."""
        return replace(self, count=count)

    def __repr__(self) -> str:
        name = without_secrets(self.source.name)
        return f"tokenize({name if self.source.text is not None else repr(name)})"

    def __call__(self, sample: Any, _: int) -> Any:
        """Return the sample with tokens in place of its text."""
        fields = fields_of(sample, repr(self))
        try:
            text = value_at(fields, self.field, repr(self))
        except UsageError as error:
            raise UsageError(error.message, hint=f"{did_you_mean(self.field, fields)}{_FIELD_HINT}") from None
        tokens = self.tokens(text)
        if self.count is not None:
            self.count(len(tokens))
        return {**without_value(fields, self.field), self.to: tokens, COUNT_FIELD: len(tokens)}

    def tokens(self, text: Any) -> NDArray[Any]:
        """Return the tokens of a text, of shape (num_tokens,)."""
        if text is None:
            null = TypeError("null in place of a text")
            raise FieldError(f"the field {self.field!r}", "give such samples a text") from null
        if isinstance(text, bytes | bytearray | memoryview):
            try:
                text = str(text, "utf-8")
            except UnicodeDecodeError as error:
                label = f"the field {self.field!r} ({len(text)} bytes)"
                raise FieldError(label, "texts are in UTF-8, so convert it (iconv)") from error
        if not isinstance(text, str):
            msg = f"{self!r} needs text in the field {self.field!r}, but got {type(text).__name__}"
            raise UsageError(msg, hint=_FIELD_HINT)
        encoder = loaded_tokenizer(self.source)
        # A batch of one text: encode() keeps the interpreter's lock, and takes a third longer for unused offsets. In a
        # batch of many texts, with one thread each, every text takes as long as alone.
        try:
            tokens = [0] if self.is_dry else encoder.encode_batch_fast([text])[0].ids
        except TypeError:  # its message does not name the text
            refuse_half_characters(self.field, text)
            raise
        return np.array(tokens, dtype=dtype_of_tokens(encoder))


def tokenize_with(tokenizer: Any, *, field: str = "text", to: str = "tokens") -> Tokenize:
    """Read and check a tokenizer, and return its stage.

    ``tokenizer`` is the path or URL of a ``tokenizer.json``, a `tokenizers.Tokenizer`, or a fast tokenizer of
    `transformers`. Raises `UsageError` if the file is missing or no tokenizer, or `tokenizers` is not installed.
    """
    stage = Tokenize(tokenizer_source(tokenizer), as_text("tokenize(field=)", field), as_text("tokenize(to=)", to))
    loaded_tokenizer(stage.source)
    return stage


def dtype_of_tokens(encoder: Any) -> type[np.unsignedinteger[Any] | np.signedinteger[Any]]:
    """Return the type for the tokens of an encoder."""
    return np.uint16 if encoder.get_vocab_size() <= 1 << 16 else np.int32


def refuse_half_characters(field: str, text: str) -> None:
    """Raise `FieldError` for half a surrogate pair, which JSON can hold and UTF-8 cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        label = f"the field {field!r} ({len(text)} characters)"
        raise FieldError(label, "remove the unpaired surrogate from the text") from error


def tokenizers_of(stages: tuple[Stage, ...], indexes: Mapping[str, Index | None]) -> dict[str, tuple[str, ...]]:
    """Return the identities of the tokenizers in the stages and in the stored tokens of each source.

    ``indexes`` has the index of each source by name, in the order of their stages; None before the index is built.
    """
    tokenizers = {}
    for number, (name, index) in enumerate(indexes.items()):
        stored = [] if index is None else index.metadata.get(TOKENIZERS, ())
        of_part = each_stage(stages_of(stages, number))
        own = [identity for stage in of_part for identity in stage.token_identities]
        if identities := tuple(dict.fromkeys([*map(str, stored), *own])):
            tokenizers[name] = identities
    return tokenizers


def tokenizer_source(tokenizer: Any, verb: str = "tokenize") -> TokenizerSource:
    """Return the source of a tokenizer: a path, a URL or an object. ``verb`` is named in errors."""
    if isinstance(tokenizer, str | os.PathLike):
        path = local_path(os.fspath(tokenizer))
        data = _data(path)
        return TokenizerSource(path, _digest(data), identity=_identity(data))
    fast = getattr(tokenizer, "backend_tokenizer", tokenizer)  # transformers wraps a Tokenizer
    to_text = getattr(fast, "to_str", None)
    if not callable(to_text):
        msg = f"{verb} takes a tokenizer.json or a fast tokenizer; got {with_type(tokenizer)}"
        hint = (
            "tokenizers.Tokenizer, AutoTokenizer.from_pretrained(..., use_fast=True), or the path of a tokenizer.json"
        )
        raise UsageError(msg, hint=f"{hint}; map() runs any other function")
    text = str(to_text())
    return TokenizerSource(type(tokenizer).__name__, _digest(text.encode()), text, _identity(text.encode()))


@lru_cache(maxsize=4)
def loaded_tokenizer(source: TokenizerSource) -> Any:
    """Return the tokenizer of the library, loaded once in a process; `UsageError` if the file changed or is none."""
    # The library gets one thread: shoal's threads and processes already use all processors, and its own pool does not
    # survive a fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415  # optional
    except ImportError:
        msg = "text is tokenized with the package tokenizers, which is not installed"
        raise UsageError(msg, hint=pip_install("tokenizers")) from None
    data, name = source.data(), without_secrets(source.name)
    if _digest(data) != source.digest:
        msg = f"{name} is not the tokenizer of the plan"
        raise UsageError(msg, hint="every machine needs the same file there; plan again to change the tokenizer")
    try:
        encoder = Tokenizer.from_str(data.decode())
    except Exception as error:  # noqa: BLE001  # the library raises no class of its own
        msg = f"{name} is not a tokenizer: {error}"
        raise UsageError(msg, hint="a tokenizer.json, as the tokenizers library saves it") from None
    encoder.no_truncation()
    encoder.no_padding()
    return encoder


def _data(path: str) -> bytes:
    try:
        data = bytes(open_store(path).map(path))
    except StorageError as error:
        msg = f"the tokenizer cannot be read: {error.message}"
        hint = "give the path or URL of a tokenizer.json; download a tokenizer of the Hugging Face hub first"
        raise UsageError(msg, hint=hint) from None
    if pointer := pointer_in(data):
        raise UsageError(f"{without_secrets(path)}: {pointer[0]}", hint=pointer[1])
    return data


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def _identity(data: bytes) -> str:
    try:
        parts = json.loads(data)
    except ValueError:
        return _digest(data)  # no tokenizer: loading it raises
    if isinstance(parts, dict):
        parts = {name: value for name, value in parts.items() if name not in ("truncation", "padding")}
    text = json.dumps(parts, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=_IDENTITY_BYTES).hexdigest()
