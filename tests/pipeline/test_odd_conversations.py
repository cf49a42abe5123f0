"""Conversations and templates of strangers: their damage is named, masks stay exact, and the work stays in bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.pipeline.chats_of_tests import CHATML, write_model
from tokenizers import Tokenizer, processors

from shoal.errors import UsageError
from shoal.pipeline.stages.conversations.chat_tokens import chat_tokens_with
from shoal.pipeline.stages.conversations.jinja_templates import compiled, render
from shoal.pipeline.stages.running import FieldError

CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "the dog\n"}]
_DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def _circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


@pytest.mark.parametrize(
    ("sample", "cause"),
    [
        ({"messages": _DEEP}, "nested too deeply"),
        ({"messages": f'[{{"role": "user", "content": {_DEEP}}}]'}, "nested too deeply"),
        ({"messages": _circle()}, "nested too deeply"),
        ({"messages": CHAT, "tools": _DEEP}, "nested too deeply"),
        ({"messages": [{"from": ["human"], "value": "hi"}]}, r"message 0 is from \['human'\]"),
        ({"messages": [{"role": "user", "content": "hi", ("a", "b"): 1}]}, r"the key \('a', 'b'\)"),
    ],
)
def test_odd_conversations_are_damage_too(model: Path, sample: dict[str, Any], cause: str) -> None:
    with pytest.raises(FieldError) as caught:
        chat_tokens_with(model)(sample, 0)
    caught.match("the field")
    assert caught.value.__cause__ is not None
    with pytest.raises(ValueError, match=cause):
        raise caught.value.__cause__


def test_a_lack_of_memory_is_no_damage(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = chat_tokens_with(model)

    def fails(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("shoal.pipeline.stages.conversations.chat_tokens.render", fails)
    with pytest.raises(MemoryError):
        stage({"messages": CHAT}, 0)


@pytest.mark.parametrize("expression", ["{{ messages | random }}", "{{ lipsum() }}"])
def test_templates_draw_no_random_numbers(model: Path, expression: str) -> None:
    """A resumed run would have other tokens."""
    with pytest.raises((UsageError, FieldError)):
        chat_tokens_with(model, template=CHATML + expression)({"messages": CHAT}, 0)


@pytest.mark.parametrize(
    "template",
    [
        "{% set x %}{% generation %}abc{% endgeneration %}{% endset %}abc and then {{ x }}",
        "{% set x %}{% generation %}ab{% endgeneration %}{% endset %}abab",
        "{% generation %}x{% generation %}x{% endgeneration %}{% endgeneration %}",
        "{% macro say() %}{% generation %}a{% endgeneration %}{% endmacro %}a{{ say() }}",
    ],
)
def test_a_moved_mark_is_refused_even_if_its_place_has_the_same_text(model: Path, template: str) -> None:
    with pytest.raises(UsageError, match="changes or moves the text"):
        chat_tokens_with(model, template=template)({"messages": CHAT}, 0)


def test_a_block_without_text_teaches_no_token(model: Path) -> None:
    """Even if a token begins before it and ends after it."""
    stage = chat_tokens_with(model, template="th{% generation %}{% endgeneration %}e")
    made = stage({"messages": CHAT}, 0)
    assert made["num_tokens"] == 1
    assert made["loss_mask"].tolist() == [0]


def test_a_space_at_the_end_is_learned_whether_or_not_offsets_are_trimmed(model: Path) -> None:
    template = "u{% generation %}{{ messages[0].content }} {% endgeneration %}<|im_end|>"
    masks = []
    for trims in (False, True):
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=trims)
        tokenizer.save(str(model / "tokenizer.json"))
        masks.append(chat_tokens_with(model, template=template)({"messages": CHAT}, 0)["loss_mask"].tolist())
    assert masks == [[0, 1, 1, 1, 0]] * 2


class _Block(str):
    """A block of text that counts how often its length is asked for."""

    __slots__ = ()
    num_asked = 0

    def __len__(self) -> int:
        _Block.num_asked += 1
        return super().__len__()


def test_the_place_of_a_mark_takes_no_look_at_all_text_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a conversation of many short messages takes linear time."""
    template = compiled(CHATML, None)
    num_blocks = 0

    class Counted:
        """The template, with blocks of `_Block` in place of plain text."""

        def generate(self, variables: Any) -> Any:
            nonlocal num_blocks
            for block in template.generate(variables):
                num_blocks += 1
                yield _Block(block) if type(block) is str else block

    monkeypatch.setattr(_Block, "num_asked", 0)
    _, generated = render(Counted(), {"messages": CHAT[1:] * 500})
    assert len(generated) == 500
    assert _Block.num_asked <= num_blocks


def test_many_messages_have_exact_masks(model: Path) -> None:
    chat = [{"role": ("user", "assistant")[i % 2], "content": "the dog " * (i % 5)} for i in range(2000)]
    made = chat_tokens_with(model)({"messages": json.dumps(chat)}, 0)
    singles = [chat_tokens_with(model)({"messages": [message]}, 0) for message in chat[:10]]
    expected = np.concatenate([single["loss_mask"] for single in singles])
    assert made["loss_mask"].tolist() == [*expected] * 200
