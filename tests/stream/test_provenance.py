"""Which documents a sequence is made of: ids and sources by segment, told by the order and shown in batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.stream.test_pack_sequences import tokens_of, written

import shoal
from shoal.errors import UsageError
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore:a window of")

NUM_WEB, NUM_CODE = 70, 40
LENGTH = 48


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("provenance")
    written(home / "web", range(NUM_WEB))
    written(home / "code", range(NUM_WEB, NUM_WEB + NUM_CODE))
    return home


def mixture(home: Path, **how: Any) -> Dataset:
    sources = {name: shoal.open(home / name) for name in ("web", "code")}
    return shoal.mix(sources, weights={"web": 0.6, "code": 0.4}, **how).shuffle(seed=1)


def check(batch: dict[str, Any], ids: Any, sources: Any = None) -> int:
    """Compare the ids, and sources, of a batch with what its tokens say; return the number of its segments."""
    tokens, segments = np.asarray(batch["tokens"]), np.asarray(batch["segment_ids"])
    ids = np.asarray(ids)
    assert ids.shape == (len(tokens), 1 + segments.max())
    assert (ids[:, 0] == -1).all()
    of_tokens = np.take_along_axis(ids, segments.astype(np.int64), axis=1)
    assert (of_tokens == np.where(segments > 0, tokens // 100, -1)).all()
    assert ((ids >= 0).sum(1) == segments.max(1)).all()
    if sources is not None:
        numbers = np.where(ids < 0, -1, (ids >= NUM_WEB).astype(np.int64))
        assert (np.asarray(sources) == numbers).all()
    return int((ids >= 0).sum())


PACKINGS = [{"block": 32}, {"block": 16, "lengths": None}]


@pytest.mark.parametrize("how", PACKINGS)
@pytest.mark.parametrize("form", [None, "numpy", "torch"])
def test_sequences_tell_their_documents_and_sources(home: Path, how: dict[str, Any], form: str | None) -> None:
    ds = mixture(home).pack_sequences(LENGTH, extras=["document_ids", "source_ids"], **how).batch(4)
    ds = ds if form is None else ds.format(form)
    assert sum(check(batch, batch["document_ids"], batch["source_ids"]) for batch in ds) > NUM_WEB


@pytest.mark.parametrize("how", PACKINGS)
def test_ids_that_were_asked_for_before_packing_are_those_of_documents(home: Path, how: dict[str, Any]) -> None:
    for ds in (
        mixture(home).with_ids(),
        shoal.open(home / "web").shuffle(seed=1).with_ids(),
        shoal.mix({name: shoal.open(home / name).with_ids() for name in ("web", "code")}).shuffle(seed=1),
    ):
        for batch in ds.pack_sequences(LENGTH, **how).batch(4):
            check(batch, batch["document_ids"])


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("how", PACKINGS)
def test_ids_travel_from_workers(home: Path, how: dict[str, Any], num_workers: int) -> None:
    torch = pytest.importorskip("shoal.torch")
    ds = mixture(home).pack_sequences(LENGTH, extras=["document_ids", "source_ids"], **how).batch(4)
    batches = list(torch.DataLoader(ds, num_workers=num_workers))
    ds.set_epoch(0)
    assert [batch["document_ids"].tolist() for batch in batches] == [batch["document_ids"].tolist() for batch in ds]
    for batch in batches:
        check(batch, batch["document_ids"], batch["source_ids"])


def test_single_sequences_tell_theirs(home: Path) -> None:
    ds = mixture(home).pack_sequences(LENGTH, extras=["document_ids"])
    for sequence in ds:
        batch = {name: values[None] for name, values in sequence.items()}
        check(batch, batch["document_ids"])


def test_sources_of_nested_mixtures_and_added_ones_are_numbered_as_in_source_of(home: Path) -> None:
    written(home / "more", range(200, 220))
    inner = shoal.mix({name: shoal.open(home / name) for name in ("web", "code")})
    outer = shoal.mix({"inner": inner, "more": shoal.open(home / "more")}).shuffle(seed=1)
    ds = outer.pack_sequences(LENGTH, extras=["source_ids", "document_ids"]).batch(4)
    for batch in ds:
        ids = batch["document_ids"]
        assert (batch["source_ids"] == np.where(ids < 0, -1, ids >= NUM_WEB + NUM_CODE)).all()
    assert ds.sources == ("inner", "more")


def test_the_documents_of_a_step_are_told_without_reading(home: Path) -> None:
    ds = mixture(home).pack_sequences(LENGTH, strategy="best_fit", block=32).batch(4)
    for step, batch in enumerate(ds):
        told = ds.batch_segments(step)
        assert told.ids.tolist() == ds.batch_ids(step).tolist()
        for row, segment, sample_id, start, stop in zip(*told, strict=True):
            tokens = batch["tokens"][row][batch["segment_ids"][row] == segment]
            assert tokens.tolist() == tokens_of(int(sample_id))[start:stop]
    by_length = shoal.open(home / "web").batch_by_length(4)
    told = by_length.batch_segments(0)
    assert (told.rows.tolist(), told.segments.tolist()) == ([0] * 4, [1, 2, 3, 4])
    ranks = [ds.batch_segments(1, epoch=2, rank=rank, world_size=2) for rank in range(2)]
    assert len(np.concatenate([each.ids for each in ranks])) == len(
        mixture(home).pack_sequences(LENGTH, strategy="best_fit", block=32).batch(8).batch_ids(1, epoch=2)
    )


def test_what_has_no_documents_or_sources_is_refused(home: Path) -> None:
    web = shoal.open(home / "web")
    with pytest.raises(UsageError, match="this is a single dataset"):
        web.pack_sequences(LENGTH, extras=["source_ids"])
    with pytest.raises(UsageError, match=r"(?s)must be one of .*'document_ids'.*did you mean 'document_ids'"):
        web.pack_sequences(LENGTH, extras=["document_id"])
    with pytest.raises(UsageError, match="are not packed"):
        web.batch(4).batch_segments(0)
    with pytest.raises(UsageError, match=r"only reading shows the samples.*\n.*with_ids"):
        web.pack_sequences(LENGTH, lengths=None).batch(4).batch_segments(0)
    with pytest.raises(UsageError, match="sequences have a field of this name"):
        web.rename(document_ids="tokens").pack_sequences(LENGTH, key="document_ids")


@pytest.mark.parametrize("verb", ["pack_sequences", "batch_by_length"])
def test_a_field_that_is_missing_is_told_beside_those_that_are_there(home: Path, verb: str) -> None:
    ds = getattr(shoal.open(home / "web"), verb)(LENGTH, key="token")
    with pytest.raises(UsageError, match=r"it has 'tokens', 'num_tokens'\n.*did you mean 'tokens'") as told:
        next(iter(ds))
    assert "no such field" in str(told.value)
    with pytest.raises(UsageError, match="it is a tuple"):
        next(iter(getattr(shoal.open(home / "web").to_tuple("tokens"), verb)(LENGTH)))
