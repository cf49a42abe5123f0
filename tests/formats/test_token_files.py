"""Files of tokens of nanoGPT, llm.c and Megatron-LM, against writers and readers that follow their specifications."""

from __future__ import annotations

import itertools
import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import shoal
from shoal.cli.main import main
from shoal.errors import IndexFileError, ShardError, SourceError, StateError, UsageError
from shoal.formats import Tokens
from shoal.storage.memory_store import MemoryStore
from shoal.testing import check_format

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

MEGATRON = Path(__file__).parent / "data" / "megatron"  # what its IndexedDatasetBuilder wrote, and its reader reads
CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def llm_c(tokens: NDArray[Any], *, llama: bool = False) -> bytes:
    """A shard as llm.c's write_datafile makes it."""
    header = np.zeros(256, "<i4")
    header[:3] = (20240801, 7, len(tokens)) if llama else (20240520, 1, len(tokens))
    return header.tobytes() + tokens.astype("<u4" if llama else "<u2").tobytes()


def megatron(documents: Sequence[Sequence[NDArray[Any]]], dtype: str) -> tuple[bytes, bytes]:
    """The .bin and .idx that IndexedDatasetBuilder makes of documents, each of some sequences."""
    sequences = [sequence for document in documents for sequence in document]
    lengths = np.array([len(sequence) for sequence in sequences], "<i4")
    pointers = np.cumsum([0, *lengths[:-1]])[: len(lengths)] * np.dtype(dtype).itemsize
    ends = np.cumsum([0, *map(len, documents)])
    index = b"MMIDIDX\x00\x00" + struct.pack("<Q", 1) + struct.pack("<B", CODES[dtype])
    index += struct.pack("<QQ", len(sequences), len(ends))
    index += lengths.tobytes() + pointers.astype("<i8").tobytes() + ends.astype("<i8").tobytes()
    return b"".join(sequence.astype(dtype).tobytes() for sequence in sequences), index


def write_megatron(path: Path, documents: Sequence[Sequence[NDArray[Any]]], dtype: str) -> None:
    data, index = megatron(documents, dtype)
    path.with_suffix(".bin").write_bytes(data)
    path.with_suffix(".idx").write_bytes(index)


def windows_of(tokens: NDArray[Any], length: int) -> list[list[int]]:
    """Inputs and their next tokens, as a loop over a memmap cuts them."""
    return [tokens[at : at + length + 1].tolist() for at in range(0, len(tokens) - length, length)]


def in_order(path: Path, form: Tokens) -> list[list[int]]:
    return [sample["tokens"].tolist() for sample in shoal.open(path, format=form)]


@pytest.mark.parametrize("kind", ["uint16", "int32", "llm.c", "llama", "megatron"])
def test_windows_of_every_kind_of_file_equal_those_of_a_memmap(tmp_path: Path, kind: str) -> None:
    tokens = np.random.default_rng(0).integers(0, 50_257, 100_001)
    path, form, dtype = tmp_path / "train.bin", Tokens(64), kind
    if kind == "megatron":
        write_megatron(path, [[part] for part in np.split(tokens, [10, 10, 5000])], dtype := "int32")
    elif kind in ("llm.c", "llama"):
        path.write_bytes(llm_c(tokens, llama=kind == "llama"))
        dtype = "uint32" if kind == "llama" else "uint16"
    else:
        path.write_bytes(tokens.astype(kind).tobytes())
        form = Tokens(64, dtype=kind)
    ds = shoal.open(path, format=form)
    expected = windows_of(tokens, 64)
    assert ds.num_samples == len(expected) == 1562
    assert ds.stream.opened.index.notes == {"tokens_left_over": 100_001 - (1562 * 64 + 1)}
    assert in_order(path, form) == expected
    assert ds[1001]["tokens"].tolist() == expected[1001]
    assert ds[1001]["tokens"].dtype == dtype
    shuffled = ds.shuffle(seed=3, window="1MiB")
    batches = list(shuffled.batch(8))
    assert {batch["tokens"].dtype.name for batch in batches} == {dtype}
    rows = [row for batch in batches for row in batch["tokens"].tolist()]
    assert rows == [expected[number] for number in shuffled.ids().tolist()]
    assert rows != expected


@given(st.integers(0, 400), st.integers(1, 50), st.sampled_from(["uint8", "uint16", "int64"]))
@settings(max_examples=40, deadline=None)
def test_each_token_but_the_first_is_a_target_once_or_counted(num_tokens: int, length: int, dtype: str) -> None:
    data = np.arange(num_tokens).astype(dtype).tobytes()
    form = Tokens(length, dtype=dtype)
    found = form.scan(lambda first, end: data[first:end], len(data), shard="a")
    expected = windows_of(np.arange(num_tokens), length)
    assert found.num_samples == len(expected)
    covered = len(expected) * length + 1 if expected else 0
    assert found.notes.get("tokens_left_over", 0) == num_tokens - covered


@given(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=12), st.sampled_from(["uint16", "int32"]))
@settings(max_examples=40, deadline=None)
def test_documents_are_those_of_the_index_without_empty_ones(lengths: list[list[int]], dtype: str) -> None:
    tokens = iter(range(1000))
    documents = [[np.array([next(tokens) for _ in range(size)], np.int64) for size in each] for each in lengths]
    data, index = megatron(documents, dtype)
    found = Tokens().scan_sidecar(lambda a, b: index[a:b], len(index), len(data), shard="a")
    whole = [np.concatenate([[], *each]).tolist() for each in documents]
    kept = [each for each in whole if each]
    borders = found.sample_starts.tolist()
    read = [np.frombuffer(data[a:b], dtype).tolist() for a, b in itertools.pairwise(borders)]
    assert read == kept
    assert found.notes.get("empty_documents", 0) == len(whole) - len(kept)


def test_windows_conform_to_the_protocol() -> None:
    tokens = np.arange(200_000) % 60_000
    rows = [np.array(row, np.uint16) for row in windows_of(tokens, 1000)]
    shards = {
        "plain.bin": (tokens.astype("<u2").tobytes(), [{"tokens": row} for row in rows]),
        "header.bin": (llm_c(tokens), [{"tokens": row} for row in rows]),
        "some.bin": (tokens[:2100].astype("<u2").tobytes(), [{"tokens": row} for row in rows[:2]]),
        "none.bin": (b"", []),
    }
    report = check_format(Tokens(1000), shards, num_damaged=20)
    assert report.num_samples == 2 * len(rows) + 2
    assert report.damage.num_refused > 0
    long = tokens[:150_001].astype("<u2")
    rows = [long[at : at + 50_001] for at in (0, 50_000, 100_000)]
    check_format(Tokens(50_000), {"long.bin": (long.tobytes(), [{"tokens": row} for row in rows])})


def test_documents_are_packed_from_the_lengths_in_the_index(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    documents = [draw.integers(1, 60_000, size) for size in draw.integers(1, 90, 300)]
    for shard, part in enumerate((documents[:200], documents[200:])):
        write_megatron(
            tmp_path / f"corpus-{shard}_text_document.bin", [[row] for row in part], ["int32", "uint16"][shard]
        )
    ds = shoal.open(tmp_path, format=Tokens())
    assert ds.index_column("num_tokens").tolist() == [len(row) for row in documents]
    assert ds[299]["tokens"].tolist() == documents[299].tolist()
    assert ds.select(num_tokens=lambda count: count > 80).num_samples == sum(len(row) > 80 for row in documents)
    packed = ds.shuffle(seed=1).pack_sequences(128, strategy="best_fit")
    tokens = np.concatenate([row["tokens"][row["segment_ids"] > 0] for row in packed])
    assert sorted(tokens.tolist()) == sorted(np.concatenate(documents).tolist())


def test_a_run_resumes_at_another_world_size(tmp_path: Path) -> None:
    tokens = np.arange(40_001, dtype=np.uint16)
    (tmp_path / "a.bin").write_bytes(tokens.tobytes())
    first = shoal.open(tmp_path / "a.bin", format=Tokens(100)).shuffle(seed=0, window="256KiB").batch(10)
    batches = iter(first)
    seen = [row[0] // 100 for _ in range(7) for row in next(batches)["tokens"].tolist()]
    for rank in range(3):
        ds = shoal.open(tmp_path / "a.bin", format=Tokens(100)).shuffle(seed=0, window="256KiB").batch(4)
        ds = ds.partition(rank=rank, world_size=3)
        ds.load_state_dict(first.state_dict())
        seen += [row[0] // 100 for batch in ds for row in batch["tokens"].tolist()]
    assert sorted(seen) == list(range(400))


def test_another_length_is_another_dataset(tmp_path: Path) -> None:
    np.arange(40_001, dtype=np.uint16).tofile(tmp_path / "a.bin")
    one, other = (shoal.open(tmp_path / "a.bin", format=Tokens(length)) for length in (100, 99))
    assert one.stream.opened.index.fingerprint != other.stream.opened.index.fingerprint
    state = one.shuffle(seed=0).batch(4).state_dict()
    with pytest.raises(StateError) as found:
        other.shuffle(seed=0).batch(4).load_state_dict(state)
    assert "the length of windows" in found.value.hint


def test_a_copied_file_is_compared_with_the_index_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    documents = [[np.arange(5)], [np.arange(9)]]
    write_megatron(tmp_path / "a.bin", documents, "int32")
    ds = shoal.open(tmp_path / "a.bin", format=Tokens())
    os.utime(tmp_path / "a.bin", (1, 1))
    assert [len(sample["tokens"]) for sample in ds] == [5, 9]


@pytest.mark.parametrize("length", [64, None])
def test_indexing_a_remote_file_reads_no_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int | None
) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    documents = [[row] for row in np.split(np.arange(500_000), 50)]
    data, index = megatron(documents, "int32")
    url, store, read = f"memory://tokens-{length}", MemoryStore(), []
    store.put(f"{url}/a.bin", data)
    store.put(f"{url}/a.idx", index)
    original = MemoryStore.read_range

    def counted(self: MemoryStore, path: str, first_byte: int, end_byte: int) -> Any:
        read.append((path.rpartition(".")[2], end_byte - first_byte))
        return original(self, path, first_byte, end_byte)

    monkeypatch.setattr(MemoryStore, "read_range", counted)
    ds = shoal.open(f"{url}/a.bin", format=Tokens(length))
    assert {kind for kind, _ in read} == {"idx"}
    assert sum(size for _, size in read) <= (34 if length else len(index) + 34 * 2)
    read.clear()
    assert len(ds[3]["tokens"]) == (65 if length else 10_000)
    assert sum(size for kind, size in read if kind == "bin") <= 70_000


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_files_of_megatron_itself_are_read_as_it_reads_them(dtype: str) -> None:
    name = f"{dtype}_text_document"
    documents = json.loads((MEGATRON / "expected.json").read_text())[name]
    found = shoal.open(MEGATRON / f"{name}.bin", format=Tokens())
    assert [sample["tokens"].tolist() for sample in found] == [each for each in documents if each]
    assert {sample["tokens"].dtype.name for sample in found} == {dtype}
    assert found.stream.opened.index.notes == {"empty_documents": sum(not each for each in documents)}
    whole = np.concatenate([np.array(each, np.int64) for each in documents])
    assert in_order(MEGATRON / f"{name}.bin", Tokens(16)) == windows_of(whole, 16)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_damaged_index_is_refused_or_divides_the_file(draw: st.DataObject) -> None:
    data, index = megatron([[np.arange(5), np.arange(2)], [np.arange(9)]], "int32")
    damaged = bytearray(index[: draw.draw(st.integers(len(index) // 2, len(index)))])
    for _ in range(draw.draw(st.integers(0, 3))):
        damaged[draw.draw(st.integers(0, len(damaged) - 1))] ^= draw.draw(st.integers(1, 255))
    try:
        found = Tokens().scan_sidecar(lambda a, b: bytes(damaged[a:b]), len(damaged), len(data), shard="a")
    except ShardError:
        return
    assert found.sample_starts[0] == 0
    assert found.sample_starts[-1] == len(data)
    assert (np.diff(found.sample_starts) > 0).all()


def test_a_name_says_what_windows_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.arange(1010, dtype=np.int32).tofile(tmp_path / "a.bin")
    ds = shoal.open(tmp_path / "a.bin", format="tokens:100:int32")
    assert ds.num_samples == 10
    assert ds[9]["tokens"].tolist() == list(range(900, 1001))
    assert main(["info", str(tmp_path / "a.bin"), "--format", "tokens:100:int32"]) == 0
    assert "tokens left over" in capsys.readouterr().out.replace("_", " ")
    assert (
        main(["index", str(tmp_path / "a.bin"), "--format", "tokens:100:int32", "--output", str(tmp_path / "i")]) == 0
    )
    assert shoal.open(tmp_path / "a.bin", index=tmp_path / "i")[9]["tokens"][0] == 900
    with pytest.raises(IndexFileError, match="'length': 50"):
        shoal.open(tmp_path / "a.bin", index=tmp_path / "i", format="tokens:50:int32")
    with pytest.raises(SourceError, match="no shard format"):
        shoal.open(tmp_path / "a.bin", format="tokens:many")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda index: b"TNTIDX" + index[6:], "begins with b'TNTIDX"),
        (lambda index: index[:9] + struct.pack("<Q", 2) + index[17:], "version 2"),
        (lambda index: index[:17] + b"\6" + index[18:], "type 6"),
        (lambda index: index[:30], "has 30 bytes, but a header needs 34"),
        (lambda index: index[:-8], "but its sequences need"),
        (lambda index: index[:34] + struct.pack("<i", 6) + index[38:], "do not follow each other"),
        (lambda index: index[:-8] + struct.pack("<q", 1), "do not divide"),
    ],
)
def test_a_wrong_index_is_refused(change: Any, match: str) -> None:
    data, index = megatron([[np.arange(5)], [np.arange(9)]], "int32")
    index = change(index)
    with pytest.raises(ShardError, match=match):
        Tokens().scan_sidecar(lambda a, b: index[a:b], len(index), len(data), shard="a.bin")


def test_each_file_is_read_by_the_index_beside_it_if_there_is_one(tmp_path: Path) -> None:
    np.arange(50, dtype=np.uint16).tofile(tmp_path / "a.bin")
    write_megatron(tmp_path / "b.bin", [[np.arange(50)]], "int32")
    assert in_order(tmp_path, Tokens(10)) == 2 * windows_of(np.arange(50), 10)
    assert [sample["tokens"].dtype.name for sample in shoal.open(tmp_path, format=Tokens(48))] == ["uint16", "int32"]
    (tmp_path / "a.idx").write_bytes(b"")
    with pytest.raises(ShardError, match="has 0 bytes, but a header needs 34"):
        shoal.open(tmp_path, format=Tokens(10))


def test_what_cannot_be_read_says_what_can(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(999))
    with pytest.raises(SourceError, match=r"Tokens\(length\)"):
        shoal.open(tmp_path / "a.bin")
    with pytest.raises(ShardError, match="ends within a token of uint16"):
        shoal.open(tmp_path / "a.bin", format=Tokens(10))
    with pytest.raises(ShardError, match=r"no \.idx beside it"):
        shoal.open(tmp_path / "a.bin", format=Tokens())
    (tmp_path / "b.bin").write_bytes(llm_c(np.arange(2000))[:-100])
    with pytest.raises(ShardError, match="1 with 2000 tokens, but the file has 1950"):
        shoal.open(tmp_path / "b.bin", format=Tokens(10))
    with pytest.raises(UsageError, match="from 1 to 2"):
        Tokens(0)
    with pytest.raises(UsageError, match="tokens are integers"):
        Tokens(4, dtype="float32")
    (tmp_path / "c.bin").write_bytes(llm_c(np.arange(9))[:1000])
    with pytest.raises(ShardError, match="1000 bytes ends within its header of 1024"):
        shoal.open(tmp_path / "c.bin", format=Tokens(10))
    wrong: Any
    for wrong in (2.5, "8", 2**63):
        with pytest.raises(UsageError, match="from 1 to 2"):
            Tokens(wrong)
    with pytest.raises(UsageError, match="tokens are integers"):
        Tokens(4, dtype="int23")
    whole: Any = np.int64(4)
    assert Tokens(whole).options == {"length": 4}
