"""Runs in the environment of transformers: ``in_collators.py ASKED ANSWERED`` collates documents into arrays."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorWithFlattening,
    PreTrainedTokenizerFast,
)

TOKENIZER = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0}, unk_token="<pad>")), pad_token="<pad>"
)
COLLATORS = {
    "flattened": DataCollatorWithFlattening(return_tensors="np", return_flash_attn_kwargs=True, return_seq_idx=True),
    "padded with labels": DataCollatorForSeq2Seq(TOKENIZER, return_tensors="np"),
    "padded": DataCollatorForLanguageModeling(TOKENIZER, mlm=False, return_tensors="np"),
    "padded to eights": DataCollatorForLanguageModeling(
        TOKENIZER, mlm=False, return_tensors="np", pad_to_multiple_of=8
    ),
}


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """The fields of a batch."""
    batch = COLLATORS[asked["collator"]](asked["documents"])
    return {name: np.asarray(value).tolist() for name, value in batch.items()}


asked = json.loads(Path(sys.argv[1]).read_text())
Path(sys.argv[2]).write_text(json.dumps([answer(each) for each in asked]))
