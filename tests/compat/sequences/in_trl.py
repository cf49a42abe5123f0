"""Runs in TRL's environment: ``in_trl.py ASKED ANSWERED`` packs documents, and collates the packed sequences.

``by`` of a request is "dataset" for `pack_dataset` on all documents at once, or the column of masks that `SFTTrainer`
makes labels of before it packs and collates.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer, pack_dataset
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling


def packed_alone(asked: dict[str, Any]) -> tuple[Any, Any]:
    """The sequences of all documents in one block, and a collator without padding."""
    data = Dataset.from_dict({"input_ids": asked["tokens"], "labels": asked["labels"]})
    packed = pack_dataset(data, asked["length"], asked["strategy"], map_kwargs={"batch_size": None})
    return packed, DataCollatorForLanguageModeling(pad_token_id=0, padding_free=asked["strategy"] != "wrapped")


def packed_for_training(asked: dict[str, Any]) -> tuple[Any, Any]:
    """The sequences and the collator of a trainer."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0, "</s>": 1}, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="</s>",
    )
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    with tempfile.TemporaryDirectory() as directory:
        arguments = SFTConfig(
            output_dir=directory,
            packing=True,
            packing_strategy=asked["strategy"],
            max_length=asked["length"],
            completion_only_loss=asked["by"] == "completion_mask",
            report_to="none",
            use_cpu=True,
            bf16=False,
        )
        trainer = SFTTrainer(
            model=LlamaForCausalLM(LlamaConfig(vocab_size=8, **sizes)),
            args=arguments,
            train_dataset=Dataset.from_dict({"input_ids": asked["tokens"], asked["by"]: asked["masks"]}),
            processing_class=tokenizer,
        )
    return trainer.train_dataset, trainer.data_collator


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """The packed rows, and the batch of all rows."""
    packed, collator = (packed_alone if asked["by"] == "dataset" else packed_for_training)(asked)
    batch = collator(list(packed))
    collated = {name: value if isinstance(value, int) else value.tolist() for name, value in batch.items()}
    return {"rows": packed[:], "collated": collated}


asked = json.loads(Path(sys.argv[1]).read_text())
Path(sys.argv[2]).write_text(json.dumps([answer(each) for each in asked]))
