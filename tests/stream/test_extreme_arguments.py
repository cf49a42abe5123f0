"""Numbers that no run has, at every argument that takes one: refused at once with the number, never a hang."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.errors import UsageError
from shoal.mixing import PerBatch, PerRank
from shoal.orders import Block, Window
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

LONG = ("1e999999999", "1e-999999999", "9" * 5000, "0." + "9" * 5000, "1/" + "9" * 5000, 10**5000)
HUGE = (10**18, 2**63 - 1, 2**63, 10**5000)
TWO = "sources:\n  a: {{path: s-000.jsonl, weight: {}}}\n  b: {{path: s-001.jsonl, weight: 1}}\n{}"


def first(ds: Any) -> Any:
    """The first batch or sample."""
    return next(iter(ds))


@pytest.fixture
def pair(lines: Dataset) -> dict[str, Dataset]:
    """Two sources of a mixture."""
    return {"a": lines.take(50), "b": lines.skip(50)}


@pytest.mark.parametrize("weight", LONG, ids=lambda weight: "10**5000" if isinstance(weight, int) else weight[:12])
def test_long_weights_are_refused_with_what_was_given(weight: Any, pair: dict[str, Dataset]) -> None:
    weights = {"a": weight, "b": 1}
    given = r"16,610 bits" if isinstance(weight, int) else weight[:12]
    for ask in (
        lambda: shoal.mix(pair, weights=weights),
        lambda: shoal.mix(pair, repeat=weights),
        lambda: shoal.mix(pair).reweight(at=10, weights=weights),
    ):
        with pytest.raises(UsageError, match=rf"weight of 'a' is too long.*at most 400 digits.*{given}"):
            ask()


def test_floats_and_long_decimals_are_weights_as_before(pair: dict[str, Dataset]) -> None:
    for weight in (5e-324, 1.7e308, "0." + "3" * 300, "1e-400", "1e400"):
        assert shoal.mix(pair, weights={"a": weight, "b": 1}, ends="forever").shuffle().counts(100)


@pytest.mark.parametrize(
    ("weight", "more"),
    [
        *((weight, "") for weight in LONG if not isinstance(weight, int)),
        ("1" + "0" * 5000, ""),
        ("1", "epoch_size: 1e999999999"),
        ("1", f"seed: {'9' * 5000}"),
        ("1", "changes: [{at: 1e999999999, weights: {a: 1, b: 2}}]"),
        ("1", "missing: {text: " + "9" * 5000 + "}"),
        ("1", "choice: {batch: 1e999999999}"),
    ],
    ids=lambda text: text[:12] or "none",
)
def test_long_numbers_in_a_mixture_file_are_refused_at_their_line(weight: str, more: str, tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"s-00{number}.jsonl").write_text('{"text": "a"}\n' * 20)
    (tmp_path / "mixture.yaml").write_text(TWO.format(weight, more))
    line = 4 if more else 2
    with pytest.raises(UsageError, match=rf"line {line}, column \d+: .*too long: a number has at most 400 digits"):
        shoal.open(tmp_path / "mixture.yaml")


@pytest.mark.parametrize("number", HUGE, ids=lambda number: f"{number.bit_length()} bits")
@pytest.mark.parametrize(
    ("words", "ask"),
    [
        ("world_size must be from 1 to 1,048,576", lambda ds, n: ds.batch(4).partition(rank=0, world_size=n)),
        ("world_size must be from 1 to 1,048,576", lambda ds, n: ds.partition(rank=0, world_size=n)),
        ("world_size must be|integer below", lambda ds, n: ds.batch(4).batch_ids(0, rank=0, world_size=n)),
        ("at most 2|integer below", lambda ds, n: ds.batch(n, remainder="pad")),
        ("at most 2|integer below", lambda ds, n: ds.batch(global_batch_size=n, remainder="pad")),
        ("length.* must be", lambda ds, n: ds.pack_sequences(n, lengths=None)),
        ("size of a batch|integer below", lambda ds, n: PerBatch(n)),
        ("size of a batch|integer below", lambda ds, n: PerRank(n)),
        ("canonical nodes|integer below", lambda ds, n: ds.shuffle(Window(max(4, n // 2), n // 4))),
        ("canonical nodes|integer below", lambda ds, n: ds.shuffle(num_canonical_nodes=n).ids()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_huge_sizes_are_refused(words: str, ask: Callable[[Dataset, int], Any], number: int, lines: Dataset) -> None:
    with pytest.raises(UsageError, match=words):
        ask(lines, number)


def test_a_last_batch_is_padded_with_millions_of_repeats_at_most(lines: Dataset) -> None:
    with pytest.raises(UsageError, match="999,999,917 repeats for its 83 samples; at most 16,777,216"):
        first(lines.batch(10**9, remainder="pad"))
    assert len(first(lines.batch(10**9))["id"]) == 83
    assert len(first(lines.batch(200, remainder="pad"))["id"]) == 200


@pytest.mark.parametrize("choice", [PerBatch, PerRank])
def test_runs_of_a_billion_samples_are_mixed_in_the_memory_of_a_batch(choice: Any, pair: dict[str, Dataset]) -> None:
    ds = shoal.mix(pair, choice=choice(10**9), ends="forever").shuffle(seed=1)
    assert set(first(ds.batch(8))["__source__"]) in ({"a"}, {"b"})
    around = ds.source_of(range(10**9 - 3, 10**9 + 3)).tolist()
    assert len(set(around[:3])) == len(set(around[3:])) == 1


def test_a_block_of_more_chunks_than_there_are_is_a_block_of_all(lines: Dataset) -> None:
    expected = lines.shuffle(Block(10**6), seed=3).ids().tolist()
    assert lines.shuffle(Block(2**63 - 1), seed=3).ids().tolist() == expected


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("{a,b}" * 24, r"stands for 16,777,216 names; at most 1,000,000"),
        ("{a,b}" * 80, r"stands for more than 1,000,000,000,000,000,000 names"),
        ("{a,b}" * 3000, r"has 3,000 braces; at most 100 are expanded"),
        ("{" * 20000, r"has 20,000 braces; at most 100"),
        ("{0..1" + "0" * 5000 + "}", r"a number of a range has at most 100 digits"),
        ("{0..9..1" + "0" * 5000 + "}", r"a number of a range has at most 100 digits"),
        ("{0.." + "9" * 18 + "}", r"stands for more than"),
        ("{0..9}" * 12, r"stands for 1,000,000,000,000 names"),
    ],
    ids=lambda text: text[:12],
)
def test_braces_are_counted_before_they_are_expanded(pattern: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        shoal.open(f"{tmp_path}/{pattern}.jsonl")
    assert len(str(caught.value)) < 600
