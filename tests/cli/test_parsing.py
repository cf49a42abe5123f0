"""Words that are mistyped on the command line are told what was probably meant."""

from __future__ import annotations

import pytest

from shoal.cli.main import main


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit, match="2"):
        main(list(words))
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("traec data --step 0", "trace"),
        ("verfy data", "verify"),
        ("trace data --step 0 --bach-size 4", "--batch-size"),
        ("trace data --step 0 --bach-size=4", "--batch-size"),
        ("info data --windw 1GiB", "--window"),
        ("info data --order windo", "window"),
        ("trace data --step 0 --batch-size 4 --remainder dropp", "drop"),
        ("pack data out --on-error skp", "skip"),
    ],
)
def test_what_was_meant(words: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"did you mean '{meant}'?" in complaint(capsys, *words.split())


def test_an_option_is_told_before_one_that_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    """The mistyped one is often the one that lacks."""
    said = complaint(capsys, "trace", "data", "--step", "0", "--world-sise", "4")
    assert said == "shoal trace: error: unrecognized arguments: --world-sise; did you mean '--world-size'?"


def test_what_is_like_nothing_is_only_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert complaint(capsys, "info", "data", "--zzz").endswith("error: unrecognized arguments: --zzz")


def test_what_only_looks_like_an_option_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    """Behind "--" come names, and an option may be cut short."""
    assert main(["info", "--", "--windw"]) == 2
    assert "--windw" in capsys.readouterr().err
    assert main(["info", "no-such-data", "--js"]) == 2
    assert "no-such-data" in capsys.readouterr().err
