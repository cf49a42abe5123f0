"""Processor time of conversations to tokens and masks: by the stage, by its parts, and by transformers.

``python bench/chat_tokens.py [--num 2000]`` writes random conversations of some 330 tokens, and applies a template in
the style of ChatML in one thread: the tokenizer alone, the rendering alone, the stage, and ``apply_chat_template`` of
transformers in its own environment. Rounds alternate; the table has the medians of five rounds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.compat.peers.environments import python_of
from tests.pipeline.chats_of_tests import CHATML, write_model

from shoal.pipeline.stages.conversations.chat_tokens import chat_tokens_with
from shoal.pipeline.stages.conversations.jinja_templates import compiled, render
from shoal.pipeline.stages.tokens.tokenizing import loaded_tokenizer

ROUNDS = 5
_WORDS = "the quick brown fox jumps over a lazy dog and packs my box with five dozen liquor jugs"
_THEIRS = """
import json, sys, time
from transformers import PreTrainedTokenizerFast
tokenizer = PreTrainedTokenizerFast.from_pretrained(sys.argv[1])
chats = json.loads(open(sys.argv[2]).read())
for _ in sys.stdin:
    before = time.process_time()
    for messages in chats:
        tokenizer.apply_chat_template(messages, return_assistant_tokens_mask=True)
    print(time.process_time() - before, flush=True)
"""


def conversations(number: int) -> list[list[dict[str, str]]]:
    """Return conversations of two to eight turns."""
    draw = random.Random(0)
    roles = ("user", "assistant")
    return [
        [
            {"role": roles[turn % 2], "content": " ".join(draw.choices(_WORDS.split(), k=draw.randint(5, 60)))}
            for turn in range(2 * draw.randint(1, 4))
        ]
        for _ in range(number)
    ]


def seconds_of(function: Callable[[Any], object], items: list[Any]) -> float:
    """Return the processor seconds of a function over all items."""
    before = time.process_time()
    for item in items:
        function(item)
    return time.process_time() - before


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num", type=int, default=2000, help="conversations")
    chats = conversations(parser.parse_args().num)
    with tempfile.TemporaryDirectory() as directory:
        model = write_model(Path(directory, "model"), CHATML)
        stage = chat_tokens_with(model)
        encoder, template = loaded_tokenizer(stage.source), compiled(CHATML, None)
        samples = [{"messages": messages} for messages in chats]
        texts = [render(template, {"messages": messages}).text for messages in chats]
        num_tokens = sum(stage(sample, 0)["num_tokens"] for sample in samples)
        (given := Path(directory, "chats.json")).write_text(json.dumps(chats))
        peer = subprocess.Popen(
            [python_of("transformers"), "-c", _THEIRS, str(model), str(given)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert peer.stdin is not None
        assert peer.stdout is not None
        measured: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            ours = {
                "the tokenizer alone": (lambda text: encoder.encode_batch_fast([text]), texts),
                "the tokenizer with offsets": (lambda text: encoder.encode_batch([text])[0].offsets, texts),
                "the rendering alone": (lambda messages: render(template, {"messages": messages}), chats),
                "chat_tokens": (lambda sample: stage(sample, 0), samples),
            }
            for name, (function, items) in ours.items():
                measured.setdefault(name, []).append(seconds_of(function, items))
            peer.stdin.write("\n")
            peer.stdin.flush()
            measured.setdefault("apply_chat_template of transformers", []).append(float(peer.stdout.readline()))
        peer.stdin.close()
        peer.wait()
    print(f"{len(chats):,} conversations, {num_tokens / len(chats):.0f} tokens each")
    print("| | us a conversation | tokens a CPU second |\n| --- | --- | --- |")
    for name, seconds in measured.items():
        median = statistics.median(seconds)
        print(f"| {name} | {median / len(chats) * 1e6:.0f} | {num_tokens / median / 1e6:.2f} million |")


if __name__ == "__main__":
    main()
