"""Hints of the library speak Python, and the command line shows the options of the verb in their place."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.calls import Calls

from shoal.cli.display.shell_hints import in_shell


@pytest.mark.parametrize(
    ("hint", "shown"),
    [
        ("on_error='skip' leaves it out", "--on-error skip leaves it out"),
        (
            'split="train" reads one, split=["train", "val"] both',
            '--split train reads one, split=["train", "val"] both',
        ),
        ("labelled=False packs files without their class", "--no-label packs files without their class"),
        ("grouped=True joins files", "--group joins files"),
        ("fewer num_workers=", "fewer --workers"),
        ("`shoal index --columns NAME=PATH` makes one", "`shoal index --columns NAME=PATH` makes one"),
        ("shoal.open(..., index=...)", "--index ..."),
        ('shoal.open(..., split="train")', "--split train"),
        ('.rename(image="jpg;png")', '.rename(image="jpg;png")'),
    ],
)
def test_arguments_become_options_of_the_verb(hint: str, shown: str) -> None:
    options = ["--on-error", "--split", "--no-label", "--label", "--group", "--workers", "--index", "--columns"]
    assert in_shell(hint, options) == shown


def test_a_damaged_shard_is_skipped_where_the_hint_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    call = Calls(capsys)
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": \n{"a": 3}\n')
    lines = call.json_lines("head", tmp_path / "a.jsonl", "--on-error", "skip")
    assert [line["fields"] for line in lines] == [{"a": 1}, {"a": 3}]
    assert "note: sample 1 is skipped" in call.complaints
    assert call.json("bench", tmp_path / "a.jsonl", "--on-error", "skip")["num_skipped"] == 1
