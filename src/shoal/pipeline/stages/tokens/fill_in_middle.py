"""A function for a seeded map that moves the middle of a document to its end, so that a model learns to fill gaps.

References
----------
Bavarian et al., Efficient Training of Language Models to Fill in the Middle (2022): the forms PSM and SPM. The length
of a document stays as in BigCode's Megatron-LM, which also cuts the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.arguments import as_flag, as_text, with_type
from shoal.errors import UsageError
from shoal.hints import did_you_mean
from shoal.pipeline.packed_fields import LABELS, LOSS_MASK, token_type
from shoal.pipeline.stages.chosen_fields import fields_of
from shoal.pipeline.stages.tokens.tokenizing import COUNT_FIELD

NUM_SENTINELS = 3
_VERB = "fill_in_middle()"


@dataclass(frozen=True, slots=True)
class FillInMiddle:
    """Rearranges a share of documents: a beginning, an end and a middle, each after a token of its own.

    ``spm_rate`` is the share of rearranged documents with the end before the beginning. The token ``end`` stays last.
    If ``keep_length``, a rearranged document loses its last three tokens.
    """

    prefix: int
    middle: int
    suffix: int
    rate: float = 0.5
    spm_rate: float = 0.5
    end: int | None = None
    keep_length: bool = True
    key: str = "tokens"

    def __call__(self, sample: Any, rng: Any) -> dict[str, Any]:
        """Return the sample with its tokens rearranged, or as they are, all of one type."""
        fields = fields_of(sample, _VERB)
        tokens = self._tokens(fields)
        dtype = token_type([tokens.dtype, *map(np.min_scalar_type, (self.prefix, self.middle, self.suffix))])
        rearranged = self.rearranged(tokens.astype(dtype, copy=False), rng)
        counted = {COUNT_FIELD: len(rearranged)} if COUNT_FIELD in fields else {}
        return {**fields, self.key: rearranged, **counted}

    def rearranged(self, tokens: NDArray[Any], rng: Any) -> NDArray[Any]:
        """Return the tokens of a document rearranged, or as they are: by chance, or because they are too few."""
        is_chosen, has_end_first = rng.random(2) < (self.rate, self.spm_rate)
        num_ends = int(self.end is not None and len(tokens) > 0 and tokens[-1] == self.end)
        size = len(tokens) - num_ends - (NUM_SENTINELS if self.keep_length else 0)
        if not is_chosen or size < 1:
            return tokens
        first, second = np.sort(rng.integers(0, size, size=2, endpoint=True)).tolist()
        beginning, middle, rest = np.split(tokens[:size], (first, second))
        ends = tokens[len(tokens) - num_ends :]
        parts: tuple[Any, ...] = ([self.prefix], beginning, [self.suffix], rest, [self.middle], middle, ends)
        if has_end_first:
            parts = [self.prefix, self.suffix], rest, [self.middle], beginning, middle, ends
        return np.concatenate([np.asarray(part, dtype=tokens.dtype) for part in parts])

    def _tokens(self, fields: Mapping[str, Any]) -> NDArray[Any]:
        if self.key not in fields:
            msg = f"{_VERB} needs the field {self.key!r}; this sample has {', '.join(map(repr, fields)) or 'no fields'}"
            raise UsageError(msg, hint=f"{did_you_mean(self.key, fields)}tokenize() makes tokens from text")
        for name in (LABELS, LOSS_MASK):
            if name in fields:
                msg = f"{_VERB} moves the tokens of {self.key!r}, but not the values of {name!r} along with them"
                raise UsageError(msg, hint=f"remove {name!r} before, or make it from the rearranged tokens")
        tokens = np.asarray(fields[self.key])
        if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
            msg = f"{_VERB} needs an array of integers in {self.key!r}; got {tokens.dtype} of shape {tokens.shape}"
            raise UsageError(msg, hint="tokenize() makes tokens from text")
        return tokens if tokens.dtype.kind in "iu" else tokens.astype(np.int32)  # numpy's type for [] is float64


def fill_in_middle_with(**arguments: Any) -> FillInMiddle:
    """Return the function for the arguments of `Dataset.fill_in_middle`; `UsageError` for bad ones."""
    for name in ("prefix", "middle", "suffix", "end"):
        token = arguments[name]
        if (token is None and name == "end") or (isinstance(token, int) and not isinstance(token, bool) and token >= 0):
            continue
        msg = f"fill_in_middle({name}=) takes the number of a token; got {with_type(token)}"
        raise UsageError(msg, hint='tokenizer.token_to_id("<|fim_prefix|>") is the number of a token')
    for name in ("rate", "spm_rate"):
        share = arguments[name]
        if not isinstance(share, int | float) or not 0 <= share <= 1:
            msg = f"fill_in_middle({name}=) is a share of 0 to 1; got {with_type(share)}"
            raise UsageError(msg, hint=f"{name}=0.5 takes half of them")
    as_flag("fill_in_middle(keep_length=)", arguments["keep_length"])
    as_text("fill_in_middle(key=)", arguments["key"])
    return FillInMiddle(**arguments)
