"""Compares the tokens and masks of conversations with those of transformers, token for token.

``python -m tests.compat.sequences.chats [--num 400]`` applies five chat templates, and two by name in one model, to
random conversations: with and without tools, with reasoning, null values, and texts of many scripts.
Conversations that a template refuses must be refused by both. Exit code 1 if any differs; skipped where transformers
cannot be had.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.compat.peers.environments import python_of, run_in, title_of
from tests.environments import CannotHaveError
from tests.pipeline.chats_of_tests import CHATML, TEMPLATES, TOOLS, WEATHER, conversation, write_model

from shoal.pipeline.stages.conversations.chat_tokens import ChatTokens, chat_tokens_with
from shoal.pipeline.stages.running import FieldError

_MOST_SHOWN = 3
VARIABLES: dict[str, dict[str, Any]] = {
    "Llama 3": {"date_string": "26 Jul 2026"},
    "reasoning": {"enable_thinking": True},
}


BY_NAME = {"default": CHATML, "tool_use": TOOLS}
MODELS: dict[str, str | Mapping[str, str]] = {**TEMPLATES, "templates by name": BY_NAME}
WITH_TOOLS = ("Llama 3", "tools", "templates by name")


def asked_of(style: str, draw: random.Random) -> dict[str, Any]:
    """A conversation for a template; a few conversations have roles in an order that a template may refuse."""
    messages = conversation(draw, style)
    if draw.random() < 0.1:
        draw.shuffle(messages)
    tools = draw.choice((None, [], [WEATHER], [WEATHER, WEATHER])) if style in WITH_TOOLS else None
    return {"messages": messages, "tools": tools, "variables": VARIABLES.get(style, {})}


def applied(stage: ChatTokens, given: dict[str, Any]) -> dict[str, Any]:
    """What shoal makes of a conversation."""
    try:
        made = stage({"messages": json.dumps(given["messages"]), "tools": given["tools"]}, 0)
    except FieldError as error:
        return {"error": type(error.__cause__).__name__}
    return {"tokens": made["tokens"].tolist(), "mask": made["loss_mask"].tolist()}


def main() -> int:
    """Compare, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num", type=int, default=400, help="conversations of each template")
    num_conversations = parser.parse_args().num
    try:
        python = python_of("transformers")
    except CannotHaveError as error:
        print(f"transformers: skipped: {error}")
        return 0
    draw, total, refused, learned, differing = random.Random(0), 0, 0, 0, []
    with tempfile.TemporaryDirectory() as directory:
        asked: list[dict[str, Any]] = []
        for number, (style, template) in enumerate(MODELS.items()):
            folder = write_model(Path(directory, str(number)), template)
            conversations = [asked_of(style, draw) for _ in range(num_conversations)]
            asked.append({"folder": str(folder), "conversations": conversations})
        given, answered = Path(directory, "asked.json"), Path(directory, "answered.json")
        given.write_text(json.dumps(asked))
        run_in(python, Path(__file__).parent / "in_transformers.py", given, answered)
        for style, each, answers in zip(MODELS, asked, json.loads(answered.read_text()), strict=True):
            stage = chat_tokens_with(each["folder"], variables=VARIABLES.get(style))
            for wanted, theirs in zip(each["conversations"], answers, strict=True):
                ours = applied(stage, wanted)
                total, refused, learned = (
                    total + 1,
                    refused + ("error" in theirs),
                    learned + sum(theirs.get("mask", ())),
                )
                if ours != theirs:
                    differing.append(f"{style}: {wanted['messages']}: {ours}, and transformers has {theirs}")
    print(
        f"{title_of('transformers')}: {total:,} conversations of {len(MODELS)} models, {learned:,} tokens to "
        f"learn, {refused:,} conversations refused by both; {len(differing):,} differ"
    )
    for text in differing[:_MOST_SHOWN]:
        print(f"    {text:.2000}")
    assert learned > 0
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
