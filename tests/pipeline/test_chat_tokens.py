"""Conversations as tokens: the template's text, a mask of exactly the marked text, and errors that name the remedy."""

from __future__ import annotations

import contextlib
import json
import pickle
import random
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.pipeline.chats_of_tests import CHATML, LLAMA3, PLAIN, TEMPLATES, TOOLS, WEATHER, conversation, write_model
from tokenizers import Tokenizer

from shoal.errors import UsageError
from shoal.pipeline.stages.conversations.chat_tokens import ChatTokens, chat_tokens_with
from shoal.pipeline.stages.conversations.messages import messages_in, tools_in
from shoal.pipeline.stages.running import FieldError

CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "hello 日本"},
    {"role": "user", "content": "bye"},
    {"role": "assistant", "content": "ciao"},
]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def words(stage: ChatTokens, tokens: Any) -> str:
    assert stage.source.text is None
    return str(Tokenizer.from_file(stage.source.name).decode(tokens.tolist(), skip_special_tokens=False))


def test_every_assistant_turn_is_learned_and_nothing_else(model: Path) -> None:
    stage = chat_tokens_with(model)
    sample = stage({"messages": CHAT, "number": 7}, 0)
    library = Tokenizer.from_file(str(model / "tokenizer.json"))
    text = "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in CHAT)
    assert sample["tokens"].tolist() == library.encode(text, add_special_tokens=False).ids
    learned = sample["tokens"][sample["loss_mask"] == 1].tolist()
    assert learned == library.encode("hello 日本<|im_end|>\nciao<|im_end|>\n", add_special_tokens=False).ids
    assert sample["loss_mask"].shape == sample["tokens"].shape
    assert sample == sample | {"number": 7, "num_tokens": len(sample["tokens"])}
    assert set(sample) == {"tokens", "loss_mask", "num_tokens", "number"}


@pytest.mark.parametrize("train_on", ["last", "all"])
def test_the_last_turn_or_every_token(model: Path, train_on: str) -> None:
    stage, every = chat_tokens_with(model, train_on=train_on), chat_tokens_with(model)
    sample, before = stage({"messages": CHAT}, 0), every({"messages": CHAT[:3]}, 0)
    if train_on == "all":
        assert sample["loss_mask"].all()
    else:
        num_before = len(every({"messages": CHAT[:4]}, 0)["tokens"])
        first = int(sample["loss_mask"].argmax())
        assert first > num_before
        assert sample["loss_mask"][first:].all()
        assert before["loss_mask"].any()


def test_json_and_sharegpt_give_the_same_tokens(model: Path) -> None:
    stage = chat_tokens_with(model)
    expected = stage({"messages": CHAT}, 0)["tokens"].tolist()
    speakers = {"user": "human", "assistant": "gpt", "system": "system"}
    sharegpt = [{"from": speakers[each["role"]], "value": each["content"]} for each in CHAT]
    for sample in (
        {"messages": json.dumps(CHAT)},
        {"messages": json.dumps(CHAT).encode()},
        {"conversations": sharegpt},
        {"conversations": json.dumps(sharegpt)},
        {"messages": [{**message, "tool_calls": None} for message in CHAT]},
    ):
        made = stage(sample, 0)
        assert made["tokens"].tolist() == expected
        assert set(made) == {"tokens", "loss_mask", "num_tokens"}
    nested = chat_tokens_with(model, field="row.chat")({"row": {"chat": CHAT, "id": 3}}, 0)
    assert nested["tokens"].tolist() == expected
    assert nested["row"] == {"id": 3}


def test_the_forms_of_messages_and_tools() -> None:
    assert messages_in([{"role": "assistant", "content": "a", "reasoning": "b"}]) == [
        {"thinking": "b", "role": "assistant", "content": "a", "reasoning": "b", "reasoning_content": "b"}
    ]
    assert messages_in([{"from": "observation", "value": "3", "weight": 1}]) == [
        {"role": "tool", "content": "3", "weight": 1}
    ]
    assert tools_in(None) is None
    assert tools_in("") is None
    assert tools_in("[]") == []
    assert tools_in([json.dumps(WEATHER)]) == tools_in(json.dumps([WEATHER])) == [WEATHER]


def test_tools_come_from_their_field_and_choose_their_template(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", {"default": CHATML, "tool_use": TOOLS})
    stage = chat_tokens_with(model)
    plain, with_tools = stage({"messages": CHAT}, 0), stage({"messages": CHAT, "tools": json.dumps([WEATHER])}, 0)
    assert (
        plain["tokens"].tolist() == chat_tokens_with(model, template=CHATML)({"messages": CHAT}, 0)["tokens"].tolist()
    )
    assert "weather" in words(stage, with_tools["tokens"]).replace(" ", "")
    assert "tools" not in with_tools
    named = chat_tokens_with(model, template="tool_use")({"messages": CHAT, "tools": [WEATHER]}, 0)
    assert named["tokens"].tolist() == with_tools["tokens"].tolist()


def test_preference_pairs_stay_in_one_sample(model: Path) -> None:
    stage = chat_tokens_with(model, field=["chosen", "rejected"], prompt="prompt", train_on="last")
    sample: dict[str, Any] = {
        "prompt": CHAT[:2],
        "chosen": CHAT[2:3],
        "rejected": [{"role": "assistant", "content": "no"}],
        "score": 0.5,
    }
    made = stage(sample, 0)
    single = chat_tokens_with(model)
    for name in ("chosen", "rejected"):
        expected = single({"messages": sample["prompt"] + sample[name]}, 0)
        assert made[f"{name}_tokens"].tolist() == expected["tokens"].tolist()
        assert made[f"{name}_mask"].tolist() == expected["loss_mask"].tolist()
    both = len(made["chosen_tokens"]) + len(made["rejected_tokens"])
    assert made == made | {"score": 0.5, "num_tokens": both}
    assert not {"prompt", "chosen", "rejected"} & set(made)


@pytest.mark.parametrize("style", TEMPLATES)
def test_a_pickled_stage_and_an_object_of_transformers_give_the_same(tmp_path: Path, style: str) -> None:
    model = write_model(tmp_path / "model", TEMPLATES[style])
    variables = {"date_string": "1 Jan 2026", "enable_thinking": True}
    stage = chat_tokens_with(model, variables=variables)
    backend = Tokenizer.from_file(str(model / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    fast = SimpleNamespace(backend_tokenizer=backend, chat_template=TEMPLATES[style], special_tokens_map=special)
    others = [
        pickle.loads(pickle.dumps(stage)),
        chat_tokens_with(fast, variables=variables),
        chat_tokens_with(model / "tokenizer.json", variables=variables),
        chat_tokens_with(backend, template=TEMPLATES[style], variables=variables | special),
    ]
    draw = random.Random(0)
    for _ in range(20):
        sample = {"messages": conversation(draw, style)}
        expected = stage(sample, 0)
        for other in others:
            made = other(sample, 0)
            assert made["tokens"].tolist() == expected["tokens"].tolist()
            assert made["loss_mask"].tolist() == expected["loss_mask"].tolist()
    assert {other.token_identities for other in others} == {stage.token_identities}


def test_identities_name_all_that_makes_the_tokens(model: Path) -> None:
    base = chat_tokens_with(model)
    for changed in (
        chat_tokens_with(model, template=TOOLS),
        chat_tokens_with(model, variables={"add_generation_prompt": True}),
        chat_tokens_with(model, date="2026-01-01"),
    ):
        assert changed.token_identities[0] == base.token_identities[0]
        assert changed.token_identities[1] != base.token_identities[1]
        assert changed.identity != base.identity
    same_tokens = chat_tokens_with(model, train_on="all")
    assert same_tokens.token_identities == base.token_identities
    assert same_tokens.identity != base.identity


def test_a_date_is_given_and_never_that_of_the_run(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", LLAMA3)
    with pytest.raises(UsageError, match="tokens change from day to day") as caught:
        chat_tokens_with(model)({"messages": CHAT}, 0)
    assert "chat_tokens(date=" in caught.value.hint
    dated, named = (
        chat_tokens_with(model, date="2026-07-26"),
        chat_tokens_with(model, variables={"date_string": "26 Jul 2026"}),
    )
    made = [stage({"messages": CHAT}, 0)["tokens"].tolist() for stage in (dated, named)]
    assert made[0] == made[1]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"template": PLAIN}, "does not mark the assistant's text"),
        ({"template": PLAIN, "train_on": "last"}, "does not mark the assistant's text"),
        ({"template": "{% generation %}{{ m }"}, "the chat template has an error in line 1"),
        ({"template": "tool_usage"}, "is no Jinja text, no file, and no template of the model"),
        ({"template": 3}, "is no Jinja text"),
        ({"train_on": "assistants"}, "train_on"),
        ({"date": "yesterday"}, "takes a date; got"),
        ({"variables": [1]}, "takes a dict; got"),
        ({"variables": {"now": object()}}, r"variables\['now'\] is object"),
    ],
)
def test_wrong_arguments(model: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        chat_tokens_with(model, **arguments)
    assert caught.value.hint


def test_a_model_without_a_template_or_a_tokenizer(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", None)
    with pytest.raises(UsageError, match="has no chat template") as caught:
        chat_tokens_with(model)
    assert "chat_template.jinja" in caught.value.hint
    (model / "tokenizer_config.json").write_text("{")
    with pytest.raises(UsageError, match=r"tokenizer_config\.json is not JSON"):
        chat_tokens_with(model)
    with pytest.raises(UsageError, match=r"cannot be read.*tokenizer\.json"):
        chat_tokens_with(tmp_path)
    with pytest.raises(UsageError, match=r"chat_tokens takes a tokenizer\.json or a fast tokenizer"):
        chat_tokens_with(object())


def test_a_template_without_marks_can_teach_every_token(model: Path) -> None:
    made = chat_tokens_with(model, template=PLAIN, train_on="all")({"messages": CHAT}, 0)
    assert made["loss_mask"].all()
    (model / "mine.jinja").write_text(PLAIN)
    again = chat_tokens_with(model, template=model / "mine.jinja", train_on="all")({"messages": CHAT}, 0)
    assert made["tokens"].tolist() == again["tokens"].tolist()


@pytest.mark.parametrize(
    "value, cause",
    [
        ([], "a conversation is a list of messages; this is list"),
        ("[", "Expecting value"),
        (b"\xff", "can't decode byte"),
        (None, "this is NoneType None"),
        ({"role": "user", "content": "hi"}, "this is dict"),
        (["hi"], "message 0 is str 'hi', not a dict"),
        ([{"content": "hi"}], "message 0 has no role: it has 'content'"),
        ([{"from": "humans", "value": "hi"}], r"message 0 is from 'humans'; did you mean 'human'\?"),
        ([{"role": "user", "content": b"hi"}], r"the field\[0\]\['content'\] is bytes b'hi'"),
        ([{"role": "user"}, {"role": "user", "content": "\ud83d"}], "surrogates not allowed"),
    ],
)
def test_bad_conversations_are_damage_with_a_cause(model: Path, value: Any, cause: str) -> None:
    with pytest.raises(FieldError) as caught:
        chat_tokens_with(model)({"messages": value}, 0)
    assert re.search(cause, str(caught.value.__cause__))


def test_a_template_refuses_a_conversation(model: Path) -> None:
    stage = chat_tokens_with(model, template=TEMPLATES["alternating"])
    with pytest.raises(FieldError) as caught:
        stage({"messages": [CHAT[2], CHAT[1]]}, 0)
    assert "roles must alternate" in str(caught.value.__cause__)
    with pytest.raises(UsageError, match=r"needs the field 'messages;conversations'; this sample has 'message'"):
        stage({"message": CHAT}, 0)
    with pytest.raises(FieldError) as caught:
        stage({"messages": CHAT, "tools": [3]}, 0)
    assert "tools are a list of JSON schemas" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    "template",
    [
        "{% macro say(m) %}: {% generation %}{{ m.content }}{% endgeneration %}{% endmacro %}{{ say(messages[1]) }}",
        "{% filter upper %}{{ bos_token }}{% generation %}{{ messages[1].content }}{% endgeneration %}{% endfilter %}",
    ],
)
def test_a_mark_without_a_known_place_is_refused(model: Path, template: str) -> None:
    with pytest.raises(UsageError, match="changes or moves the text") as caught:
        chat_tokens_with(model, template=template)({"messages": CHAT}, 0)
    assert "outside of macros" in caught.value.hint


@pytest.mark.parametrize(
    "expression",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ dict.__class__ }}",
        "{{ raise_exception.__globals__ }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 3 %}",
        "{{ messages.append(3) }}",
    ],
)
def test_templates_stay_in_their_sandbox(model: Path, expression: str) -> None:
    stage = chat_tokens_with(model, template=f"{{{{ 'a' }}}}{expression}b", train_on="all")
    sample = {"messages": CHAT}
    with contextlib.suppress(FieldError):
        assert words(stage, stage(sample, 0)["tokens"]).replace(" ", "") == "ab"
    assert len(sample["messages"]) == len(CHAT) == 5


def test_jinja_is_wanted_by_name(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(UsageError, match="jinja2, which is not installed") as caught:
        chat_tokens_with(model)
    assert "pip install jinja2" in caught.value.hint
    monkeypatch.setitem(sys.modules, "jinja2", SimpleNamespace(__version__="3.1.4"))
    with pytest.raises(UsageError, match=r"3\.1\.4 is installed, with known holes"):
        chat_tokens_with(model)
