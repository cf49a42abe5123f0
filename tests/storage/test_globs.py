from __future__ import annotations

import glob
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.storage.sources.patterns import has_magic, matcher

NAMES = [
    *("a", "b.tar", "a.tar", ".hid", "x/a.tar", "x/.hid", "x/y/a.tar", "x/y/z/b.tar", ".dot/a.tar", "x/.dot/a.tar"),
    *("ab/a1", "ab/a2", "ab/[a]", "é/ü.tar", "x y/a b.tar"),
]
PARTS = ["*", "**", "?", "a*", "*.tar", "[ab]*", "[!a]*", ".*", "a", "x", "ab", "a[12]", "[[]a]", "x*", "**.tar", "y"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    for name in NAMES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")
    return root


def found_by_glob(root: Path, pattern: str) -> set[str]:
    found = glob.glob(pattern, root_dir=root, recursive=True)  # noqa: PTH207  # its rules are those to be kept
    return {name for name in found if (root / name).is_file()}


@given(pattern=st.lists(st.sampled_from(PARTS), min_size=1, max_size=4))
def test_globs_mean_what_they_mean_for_files(pattern: list[str], tree: Path) -> None:
    text = "/".join(pattern)
    is_match = matcher(text)
    assert {name for name in NAMES if is_match(name)} == found_by_glob(tree, text)


def test_has_magic() -> None:
    assert not has_magic("a/{0..3}.tar")
    for text in ("*", "a?", "[a]"):
        assert has_magic(text)
