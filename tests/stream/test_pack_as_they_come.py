"""Documents packed as they come, without lengths in the index: what each rank yields, saves and resumes."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import StateError, UsageError
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore:a window of")

NUM_DOCUMENTS, LENGTH, GROUP = 300, 32, 20


def tokens_of(document: int) -> list[int]:
    size = int(np.random.default_rng(document).integers(0, 50))
    return [document * 100 + place for place in range(size)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("documents") / "d"
    samples = ({"tokens": tokens_of(number)} for number in range(NUM_DOCUMENTS))
    shoal.pack.pack(samples, directory, format="jsonl", shard_bytes="8KiB", extent_bytes=512)
    return directory


@pytest.fixture(scope="module")
def documents(directory: Path) -> Dataset:
    return shoal.open(directory)


def streamed(documents: Dataset, strategy: str = "best_fit", size: int = 3, **how: Any) -> Dataset:
    how = {"lengths": None, "block": GROUP, **how}
    return (
        documents.shuffle(seed=1, window="8KiB", chunk="1KiB")
        .pack_sequences(LENGTH, strategy=strategy, **how)
        .batch(size, steps="apart")
    )


def ranks_of(documents: Dataset, strategy: str, size: int, world_size: int, state: Any = None) -> list[Dataset]:
    ranks = [streamed(documents, strategy, size).partition(rank=r, world_size=world_size) for r in range(world_size)]
    for rank in ranks if state is not None else ():
        rank.load_state_dict(json.loads(json.dumps(state)))
    return ranks


def tokens_in(batch: dict[str, Any]) -> Counter[int]:
    return Counter(batch["tokens"][batch["segment_ids"] > 0].tolist())


ALL_TOKENS = Counter(token for document in range(NUM_DOCUMENTS) for token in tokens_of(document))


def test_another_world_size_is_told_what_comes_again(documents: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    first = streamed(documents)
    next(iter(first))
    state = first.state_dict()
    assert len(json.dumps(state)) < 1024
    streamed(documents).load_state_dict(state)
    assert not caplog.messages
    streamed(documents, size=4).load_state_dict(state)
    assert caplog.messages == [
        "ranks packed documents of epoch 0 as they came; open groups: 1; up to 20 documents may repeat"
    ]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torch_gets_the_same_through_workers(documents: Dataset, num_workers: int) -> None:
    torch = pytest.importorskip("shoal.torch", reason="torch is not installed", exc_type=ImportError)
    wanted = [batch["tokens"].tolist() for batch in streamed(documents)]
    loader = torch.DataLoader(streamed(documents), num_workers=num_workers)
    found = []
    for batch in loader:
        found.append(batch["tokens"].tolist())
        if len(found) == 4:
            break
    state = loader.state_dict()
    loader = torch.DataLoader(streamed(documents), num_workers=num_workers)
    loader.load_state_dict(state)
    assert found + [batch["tokens"].tolist() for batch in loader] == wanted


def test_a_filter_may_come_before(documents: Dataset) -> None:
    ordered = documents.shuffle(seed=1, window="8KiB", chunk="1KiB").filter(lambda sample: len(sample["tokens"]) % 2)
    found: Counter[int] = Counter()
    for batch in ordered.pack_sequences(LENGTH, lengths=None, block=GROUP).batch(4):
        found += tokens_in(batch)
    odd = (tokens_of(number) for number in range(NUM_DOCUMENTS))
    assert found == Counter(token for tokens in odd if len(tokens) % 2 for token in tokens)


def test_epochs_are_packed_anew(documents: Dataset) -> None:
    dataset = streamed(documents)
    first, second = ([batch["tokens"].tolist() for batch in dataset] for _ in range(2))
    assert first != second
    again = streamed(documents)
    again.set_epoch(1)
    assert [batch["tokens"].tolist() for batch in again] == second


def test_what_is_counted(documents: Dataset) -> None:
    dataset = streamed(documents, too_long="drop")
    num_sequences = sum(len(batch["tokens"]) for batch in dataset)
    stats = dataset.stats()
    longer = [number for number in range(NUM_DOCUMENTS) if len(tokens_of(number)) > LENGTH]
    assert stats["num_dropped_documents"] == len(longer) > 0
    assert stats["num_tokens"] == sum(len(tokens_of(n)) for n in range(NUM_DOCUMENTS) if n not in longer)
    assert stats["num_tokens"] + stats["num_padding_tokens"] == num_sequences * LENGTH
    assert stats["num_samples"] == num_sequences


def test_the_certificate_is_that_of_the_documents(documents: Dataset) -> None:
    certificates = []
    for rank in ranks_of(documents, "concat", 4, 2):
        for _ in rank:
            pass
        certificates.append(rank.certificate())
    plain = documents.shuffle(seed=1, window="8KiB", chunk="1KiB").batch(7)
    for _ in plain:
        pass
    assert shoal.merge_certificates(certificates) == plain.certificate()


def test_a_check_in_the_middle_of_an_epoch_says_what_it_covered(documents: Dataset) -> None:
    dataset = streamed(documents, size=1)
    iterator = iter(dataset)
    next(iterator)
    groups = f"a group of {GROUP} documents that pack_sequences(lengths=None) packs counts once all its sequences are"
    said = dataset.check_certificate(dataset.certificate())
    assert said == f"no documents yet; {groups} delivered"
    while not dataset.certificate()["epochs"]:
        next(iterator)
    said = dataset.check_certificate(dataset.certificate())
    assert said == f"epoch 0, not whole: positions [0, {GROUP}) of {NUM_DOCUMENTS}; {groups} delivered"
    for _ in iterator:
        pass
    assert dataset.check_certificate(dataset.certificate()) == f"epoch 0: all of {NUM_DOCUMENTS} samples"


def test_passes_of_some_steps_add_up_to_one_certificate(documents: Dataset) -> None:
    def passes() -> Dataset:
        shuffled = documents.shuffle(seed=1, window="8KiB", chunk="1KiB")
        return shuffled.pack_sequences(LENGTH, lengths=None, block=GROUP).batch(3, steps=9)

    dataset = passes()
    next(iter(dataset))  # a look, which is forgotten
    while "1" not in dataset.certificate()["epochs"]:
        list(dataset)
    assert dataset.check_certificate(dataset.certificate()).startswith(f"epoch 0: all of {NUM_DOCUMENTS} samples; ")
    parts, state = [], passes().state_dict()
    while state["refill"][0]["epoch"] == 0 if "refill" in state else not state["epoch"]:
        run = passes()
        run.load_state_dict(state)
        list(run)
        parts.append(run.certificate())
        state = run.state_dict()
    told = run.check_certificate(shoal.merge_certificates(parts))
    assert told.startswith(f"epoch 0: all of {NUM_DOCUMENTS} samples")


def test_ranks_at_different_places_are_told_when_a_certificate_holds(documents: Dataset) -> None:
    ranks = [streamed(documents, size=1).partition(rank=rank, world_size=2) for rank in range(2)]
    for rank, num_steps in zip(ranks, (60, 20), strict=True):
        list(itertools.islice(rank, num_steps))
    with pytest.raises(StateError, match="fewer than expected") as told:
        ranks[0].check_certificate(shoal.merge_certificates(rank.certificate() for rank in ranks))
    assert "ranks that fill their batches are at different positions until an epoch ends" in told.value.hint


@pytest.mark.parametrize("separators", [(7, None), (None, 7)])
def test_with_or_without_separators_nothing_is_missed_behind_a_state_of_the_other(
    documents: Dataset, separators: tuple[int | None, int | None]
) -> None:
    before, after = (streamed(documents, "concat", separator=separator) for separator in separators)
    found: Counter[int] = Counter()
    for batch in itertools.islice(before, 2):
        found += tokens_in(batch)
    after.load_state_dict(before.state_dict())
    for batch in after:
        found += tokens_in(batch)
    assert not ALL_TOKENS - found


def test_what_cannot_be_done_is_refused(documents: Dataset) -> None:
    with pytest.raises(UsageError, match=r"pack_sequences\(lengths=None\) fills batches, but this dataset has none"):
        next(iter(documents.pack_sequences(8, lengths=None)))
    with pytest.raises(TypeError, match="number of sequences documents fill"):
        len(streamed(documents))
    with pytest.raises(UsageError, match="tokens, but a sequence has 32"):
        list(streamed(documents, too_long="refuse"))
    with pytest.raises(UsageError, match="packs documents as they come"):
        next(iter(documents.pack_sequences(LENGTH).batch(3)))
    nothing = documents.map(lambda _: {"tokens": []}).pack_sequences(LENGTH, lengths=None).batch(2)
    with pytest.raises(UsageError, match="the 300 documents of rank 0 in epoch 0 fill no sequence"):
        list(nothing)
    first = streamed(documents)
    next(iter(first))
    with pytest.raises(StateError, match="ranks filled their batches"):
        documents.shuffle(seed=1, window="8KiB", chunk="1KiB").batch(3).load_state_dict(first.state_dict())


_RUN = """
import json, os, sys
import shoal
path, state_file, out = sys.argv[1:]
ds = shoal.open(path).shuffle(seed=1, window="8KiB", chunk="1KiB")
ds = ds.pack_sequences(32, strategy="best_fit", lengths=None, block=20).batch(3)
try:
    ds.load_state_dict(json.load(open(state_file)))
except FileNotFoundError:
    pass
if ds.state_dict()["epoch"] == 0:
    for number, batch in enumerate(ds):
        with open(out, "a") as file:
            file.write(json.dumps([ds.state_dict(), batch["tokens"].tolist()]) + "\\n")
        with open(state_file + ".new", "w") as file:
            json.dump(ds.state_dict(), file)
        os.replace(state_file + ".new", state_file)
        print(number, flush=True)
"""


def test_sequences_that_are_dropped_do_not_come_after_a_stop(documents: Dataset) -> None:
    for size in range(2, 9):  # some sizes leave more of the last group to drop than a batch
        dataset = documents.shuffle(seed=1, window="8KiB", chunk="1KiB").pack_sequences(LENGTH, lengths=None, block=100)
        dataset = dataset.batch(size, steps="apart", remainder="drop")
        num_batches = sum(1 for _ in dataset)
        dataset.set_epoch(0)
        first = dataset.partition()
        batches = iter(first)
        for _ in range(num_batches):
            next(batches)
        resumed = dataset.partition()
        resumed.load_state_dict(first.state_dict())
        assert resumed.epoch > 0 or [*resumed] == []


@pytest.mark.parametrize("kills", [(5,), pytest.param((2, 5, 3), marks=pytest.mark.drill)])
def test_a_killed_process_goes_on_with_the_next_sequence(
    documents: Dataset, directory: Path, tmp_path: Path, kills: tuple[int, ...]
) -> None:
    state, out = tmp_path / "state.json", tmp_path / "out.jsonl"
    for kill_after in (*kills, None):
        arguments = [sys.executable, "-c", _RUN, str(directory), str(state), str(out)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for number, _ in enumerate(lines(process.stdout)):
                if number == kill_after:
                    os.kill(process.pid, signal.SIGKILL)
                    break
            process.wait(60)
    yielded: dict[str, Any] = {}
    for line in out.read_text().splitlines():
        saved, tokens = json.loads(line)
        yielded[json.dumps(saved)] = tokens
    assert [*yielded.values()] == [batch["tokens"].tolist() for batch in streamed(documents)]


def lines(stream: Any) -> Iterator[str]:
    while line := stream.readline():
        yield line
