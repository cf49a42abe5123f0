"""Runs in the environment of transformers: ``in_transformers.py ASKED ANSWERED`` applies chat templates.

``ASKED`` has folders of models, and conversations of each; the answers are tokens and masks, or the name of the error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast


def applied(tokenizer: Any, given: dict[str, Any]) -> dict[str, Any]:
    """What transformers makes of a conversation."""
    try:
        made = tokenizer.apply_chat_template(
            given["messages"], tools=given["tools"], return_assistant_tokens_mask=True, **given["variables"]
        )
    except Exception as error:  # noqa: BLE001  # which errors a template may raise is compared
        return {"error": type(error).__name__}
    return {"tokens": list(made["input_ids"]), "mask": list(made["assistant_masks"])}


def main() -> None:
    """Answer."""
    asked, answered = map(Path, sys.argv[1:])
    answers = []
    for each in json.loads(asked.read_text()):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(each["folder"])
        answers.append([applied(tokenizer, given) for given in each["conversations"]])
    answered.write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
