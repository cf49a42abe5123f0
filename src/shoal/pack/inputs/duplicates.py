"""Duplicates: samples that equal an earlier sample and are not packed; by key, or by a digest of their content.

Two samples have the same content if all their fields but the key are equal: names, types and bytes. A class and the
columns of a manifest are fields, so the same image in two classes is not a duplicate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.shard_format import Sample
from shoal.hints import did_you_mean
from shoal.index.table import Index

DUPLICATES = "duplicates"
"""Metadata key of an index for the result of `Duplicates.to_dict`."""

Dedup = Literal["key", "content"]
"""Property that duplicates share."""

KEY_FIELDS = ("__key__", "key")
"""The key of a sample is the first of these fields that it has."""

_MOST_NAMED = 10
_PLAIN = ("datetime", "decimal", "uuid")  # modules of types with a repr() that is the value


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Number of samples left out because an earlier sample is equal, ``by`` key or content.

    ``first`` names the first ten such samples, each with the equal earlier sample.

    Examples
    --------
    >>> old = shoal.pack.pack([{"text": text} for text in ("a cat", "a dog", "a cat")], "old", format="jsonl")
    >>> shoal.pack.repack("old", "new", dedup="content").summary.duplicates
    Duplicates(by='content', num_samples=1, first=(('sample 2', 'sample 0'),))
    """

    by: str
    num_samples: int
    first: tuple[tuple[str, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as JSON, for the metadata of an index."""
        return {"by": self.by, "num_samples": self.num_samples, "first": [list(pair) for pair in self.first]}

    @classmethod
    def of_index(cls, index: Index) -> Duplicates | None:
        """Read the counts from the metadata of an index; None if the index has no counts."""
        counts = index.metadata.get(DUPLICATES)
        if not isinstance(counts, Mapping):
            return None
        first = tuple((str(name), str(earlier)) for name, earlier in counts["first"])
        return cls(str(counts["by"]), int(counts["num_samples"]), first)


@dataclass(frozen=True, slots=True, eq=False)
class Distinct:
    """Numbers of samples without an equal earlier sample, ascending; and of all others, with their equals."""

    kept: NDArray[np.int64]
    left_out: NDArray[np.int64]
    equals: NDArray[np.int64]

    def counted(self, by: Dedup, name: Callable[[int], str]) -> Duplicates:
        """Return the counts, with names of the first duplicates."""
        pairs = zip(self.left_out[:_MOST_NAMED].tolist(), self.equals[:_MOST_NAMED].tolist(), strict=True)
        return Duplicates(by, len(self.left_out), tuple((name(number), name(equal)) for number, equal in pairs))


def check_dedup(by: object) -> None:
    """Raise `UsageError` unless ``by`` is a property that duplicates share, or None."""
    if by not in (None, "key", "content"):
        msg = f"dedup={by!r}: duplicates have the same key, or the same content"
        raise UsageError(msg, hint=did_you_mean(by, ("key", "content")) + 'dedup="key" or dedup="content"')


def distinct_keys(keys: Iterable[str]) -> Distinct:
    """Find the first input of each key; O(inputs).

    >>> distinct_keys(["a", "b", "a"]).kept.tolist()
    [0, 1]
    """
    seen: dict[str, int] = {}
    equals = np.fromiter((seen.setdefault(key, number) for number, key in enumerate(keys)), dtype=np.int64)
    return _distinct(equals)


def distinct_digests(digests: NDArray[np.uint64], among: NDArray[np.int64], num_samples: int) -> Distinct:
    """Find the first sample of each digest among ascending samples; digest 0 means unknown and equals no other.

    ``digests`` has the shape (len(among), 2). O(N log N) time; 57 bytes a sample besides digest and number.
    """
    order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: equal samples stay ascending
    ordered = digests[order]
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = (ordered[1:] != ordered[:-1]).any(axis=1) | ~ordered[1:].any(axis=1)
    first = order[begins][np.cumsum(begins) - 1]
    equals = np.arange(num_samples)
    equals[among[order]] = among[first]
    return _distinct(equals)


def _distinct(equals: NDArray[np.int64]) -> Distinct:
    is_first = equals == np.arange(len(equals))
    left_out = np.flatnonzero(~is_first)
    return Distinct(np.flatnonzero(is_first), left_out, equals[left_out])


def sample_digest(sample: Sample, by: Dedup) -> bytes:
    """Return 16 bytes of SHA-256, equal for samples of equal keys or content, never all 0.

    The key is the field ``__key__``, or ``key`` if there is none. The content is all other fields.

    >>> first, second = {"__key__": "a", "txt": b"same"}, {"__key__": "b", "txt": b"same"}
    >>> sample_digest(first, "content") == sample_digest(second, "content")
    True
    >>> sample_digest(first, "key") == sample_digest(second, "key")
    False

    Raises
    ------
    UsageError
        The sample has no key, or a value that cannot be compared by bytes.
    """
    key = next((word for word in KEY_FIELDS if word in sample), None)
    sha = hashlib.sha256()
    if by == "key":
        if key is None:
            msg = f"a sample has neither {' nor '.join(KEY_FIELDS)}; it has {', '.join(map(str, sample))}"
            raise UsageError(msg, hint="duplicates of samples without a key are found by content")
        _take(sha, sample[key])
    else:
        for name in sorted(sample):
            if name != key:
                _take(sha, name)
                _take(sha, sample[name])
    digest = sha.digest()[:16]
    return digest if any(digest) else b"\1" * 16


def _take(sha: Any, value: Any) -> None:
    """Add a value with its type and length: different values add different bytes."""
    if isinstance(value, bytes | bytearray | memoryview):
        view = memoryview(value)
        data = view.cast("B") if view.c_contiguous else view.tobytes()
        sha.update(b"bytes %d " % len(data))
        sha.update(data)
    elif isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
        sha.update(b"text %d " % len(data) + data)
    elif isinstance(value, Mapping):
        sha.update(b"map %d " % len(value))
        for name in sorted(value, key=repr):
            _take(sha, name)
            _take(sha, value[name])
    elif isinstance(value, list | tuple):
        sha.update(b"list %d " % len(value))
        for element in value:
            _take(sha, element)
    elif isinstance(value, np.ndarray | np.generic) and value.dtype.hasobject:
        _take(sha, value.tolist())
    elif isinstance(value, np.ndarray | np.generic):
        kind = repr(value.dtype) if value.dtype.names else value.dtype.str  # dtype.str has no names of fields
        sha.update(f"array {kind} {value.shape} ".encode("utf-8", "surrogatepass"))
        sha.update(value.tobytes())
    elif isinstance(value, bool | int | float | complex | None) or type(value).__module__ in _PLAIN:
        text = f"{type(value).__name__} {value!r}".encode()
        sha.update(b"value %d " % len(text) + text)
    else:
        msg = f"a field holds an object of {type(value).__name__}, whose bytes cannot be compared"
        raise UsageError(msg, hint="find duplicates by key, or do not decode samples")
