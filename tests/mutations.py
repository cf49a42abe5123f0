"""Defects that the tests must notice: ``make mutate``.

Each mutation is one wrong line in the core. It is applied alone to a copy of the sources, and the named tests run there
without drills: one of them must fail. Afterwards all tests that failed run on the unchanged copy, and must pass.

python -m tests.mutations [WORD...]  # those whose names hold one of the words; all without any
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

HOME = Path(__file__).parent.parent
SOURCE = HOME / "src" / "shoal"
_SECONDS_FOR_A_TEST = "60"  # a mutation may make a test wait for ever


class Mutation(NamedTuple):
    """A wrong line.

    ``old`` occurs exactly once in ``file``, below src/shoal, and ``new`` takes its place; one of ``tests`` must fail.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def mutated(self) -> str:
        """Return the text of the file with the wrong line; ValueError unless the old text occurs exactly once."""
        text = (SOURCE / self.file).read_text(encoding="utf-8")
        if (times := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: {self.file} has {times} times {self.old!r}")
        return text.replace(self.old, self.new)


MUTATIONS = [
    Mutation(
        "a position is skipped",
        "order/partition.py",
        "begin = min(start + first * self.global_batch, order.num_samples)",
        "begin = min(start + first * self.global_batch + 1, order.num_samples)",
        ("tests/order/test_partition.py",),
    ),
    Mutation(
        "a rank gets what another has",
        "order/partition.py",
        "low = rank * share + min(rank, more)",
        "low = max(rank - 1, 0) * share + min(rank, more)",
        ("tests/order/test_partition.py",),
    ),
    Mutation(
        "the remainder is lost",
        "order/partition.py",
        "if middle < end and not self._drops:",
        'if middle < end and self.remainder == "pad":',
        ("tests/order/test_partition.py",),
    ),
    Mutation(
        "a repeat is not marked",
        "order/partition.py",
        "repeated = np.arange(len(positions)) < missing",
        "repeated = np.arange(len(positions)) < missing - 1",
        ("tests/order/test_partition.py",),
    ),
    Mutation(
        "a gap is ignored",
        "order/position_subsets.py",
        "for number, start, stop in self.ranges if number == epoch)",
        "for number, start, stop in self.ranges[1:] if number == epoch)",
        ("tests/order/test_gaps.py",),
    ),
    Mutation(
        "the seed is ignored",
        "order/seeds.py",
        "for word in (seed, epoch, *_words_of(purpose), *words):",
        "for word in (0, epoch, *_words_of(purpose), *words):",
        ("tests/order/test_seeds.py",),
    ),
    Mutation(
        "an epoch is repeated",
        "order/seeds.py",
        "for word in (seed, epoch, *_words_of(purpose), *words):",
        "for word in (seed, epoch // 2, *_words_of(purpose), *words):",
        ("tests/order/test_seeds.py",),
    ),
    Mutation(
        "a chunk is freed before its last use",
        "reading/schedule/lifetimes.py",
        "first, last = by_unit[begins[:-1]], by_unit[begins[1:] - 1]",
        "first, last = by_unit[begins[:-1]], by_unit[begins[:-1]]",
        ("tests/tools/planning/test_lookahead.py",),
    ),
    Mutation(
        "the kept chunks take more than their memory",
        "reading/schedule/lifetimes.py",
        "while held and held_bytes + size > self._keep_bytes:",
        "while held and held_bytes > self._keep_bytes:",
        ("tests/tools/planning/test_keeping.py",),
    ),
    Mutation(
        "more is read ahead than there is room for",
        "reading/schedule/memory_ledger.py",
        "and num_bytes + pending[0].num_bytes <= room_bytes:",
        "and num_bytes <= room_bytes:",
        ("tests/reading/test_budgeting.py",),
    ),
    Mutation(
        "memory is reused while a value refers to it",
        "storage/files/memory_pool.py",
        "if sys.getrefcount(memory) > _UNUSED_REFERENCES:",
        "if sys.getrefcount(memory) > _UNUSED_REFERENCES + 1:",
        ("tests/reading/test_views.py", "tests/storage/test_local.py"),
    ),
    Mutation(
        "a late answer overwrites bytes in use",
        "reading/remote/read_buffer.py",
        "if self._view is None or part.first_byte in self._claims:",
        "if self._view is None:",
        ("tests/reading/test_rooms.py",),
    ),
    Mutation(
        "a checksum is not compared",
        "reading/checks/checked_reads.py",
        "if (wrong := wrong_extent(opened.index, shard, first_byte, read)) is not None:",
        "if (wrong := wrong_extent(opened.index, shard, first_byte, read[:0])) is not None:",
        ("tests/reading/test_parts.py",),
    ),
    Mutation(
        "a damaged sample is delivered as if it were sound",
        "reading/checks/damaged_samples.py",
        "if number not in wrong:",
        "if number in wrong:",
        ("tests/verify/test_soundness.py",),
    ),
    Mutation(
        "a damaged sample is passed over silently",
        "pipeline/quarantine.py",
        "        counters.num_skipped += 1\n",
        "        counters.num_skipped += error is None\n",
        ("tests/pipeline/test_skips.py",),
    ),
    Mutation(
        "a retry is not counted",
        "storage/retry.py",
        "            control.retried(error)\n",
        "",
        ("tests/reading/test_retrying.py",),
    ),
    Mutation(
        "a deadline is passed by",
        "storage/retry.py",
        "if passed_seconds + pause_seconds > deadline_seconds:",
        "if passed_seconds > 2 * deadline_seconds:",
        ("tests/storage/test_stores.py", "tests/reading/test_retrying.py"),
    ),
    Mutation(
        "a cache serves another version of a shard",
        "reading/cache/cached_ranges.py",
        "(opened.paths[shard], opened.check.version(shard), size, first_byte, end_byte)",
        "(opened.paths[shard], size, first_byte, end_byte)",
        ("tests/reading/test_chunk_caching.py",),
    ),
    Mutation(
        "an evicted chunk still counts",
        "storage/chunk_cache/eviction.py",
        "        book.used_bytes -= charge_bytes(status.st_size)\n        book.num_chunks -= 1\n",
        "        book.num_chunks -= 1\n",
        ("tests/storage/test_chunk_cache.py", "tests/storage/test_cache_bounds.py"),
    ),
    Mutation(
        "a state is one batch short",
        "stream/states/iterator_position.py",
        "return self.partition.end_of(-(-self.num_yielded // size) - 1, self.num_samples, self.start)",
        "return self.partition.end_of(-(-self.num_yielded // size) - 2, self.num_samples, self.start)",
        ("tests/stream/test_cursor.py", "tests/stream/test_resume.py"),
    ),
    Mutation(
        "a finished epoch begins again",
        "stream/states/iterator_position.py",
        "            return self.epoch + 1, 0, None\n",
        "            return self.epoch, 0, None\n",
        ("tests/stream/test_cursor.py", "tests/stream/test_resume.py"),
    ),
    Mutation(
        "a delivery is summed up without its epoch",
        "stream/states/delivery_sums.py",
        'draws(keys(key(0, epoch, "certificate"), positions), ids)',
        'draws(keys(key(0, 0, "certificate"), positions), ids)',
        ("tests/stream/test_certificates.py",),
    ),
    Mutation(
        "a sample is taken twice by a rank that fills its batches",
        "stream/refilling/filled_batches.py",
        "self._waiting = Part(samples[num_samples:], counts[num_samples:], hashes[num_samples:])",
        "self._waiting = Part(samples[num_samples - 1 :], counts[num_samples - 1 :], hashes[num_samples - 1 :])",
        ("tests/stream/test_refill.py",),
    ),
    Mutation(
        "what a filter drops is not refilled",
        "stream/refilling/filled_batches.py",
        "replace(super().partition(batching, world_size), refills=batching is not None)",
        "super().partition(batching, world_size)",
        ("tests/stream/test_refill.py",),
    ),
    Mutation(
        "a count of refilled samples is off by one",
        "stream/refilling/filled_batches.py",
        "self._context.counters.num_refilled += count - position.num_yielded - num_rows",
        "self._context.counters.num_refilled += count - position.num_yielded - num_rows + 1",
        ("tests/stream/test_refill.py",),
    ),
    Mutation(
        "a weight is ignored",
        "order/sampling/systematic_draws.py",
        "ends = np.cumsum(part[places], dtype=np.uint64)",
        "ends = np.cumsum(part[places[::-1]], dtype=np.uint64)",
        ("tests/order/test_sampling.py",),
    ),
    Mutation(
        "a mixture forgets its debts where weights change",
        "order/mixture/source_schedule.py",
        "owed = earlier.owed(start, before)",
        "owed = None",
        ("tests/order/test_mixture_schedules.py",),
    ),
    Mutation(
        "a source comes round without its next epoch",
        "order/mixture/endless_source.py",
        "= self.round(number).locate(\n",
        "= self.round(0).locate(\n",
        ("tests/order/test_mixture_orders.py",),
    ),
    Mutation(
        "a document is cut twice",
        "order/sequences/packing_strategies.py",
        "starts = num_full[rests] * length",
        "starts = np.maximum(num_full[rests] * length - 1, 0)",
        ("tests/order/test_sequences.py",),
    ),
    Mutation(
        "padding is not marked",
        "pipeline/sequence_arrays.py",
        "mask = np.arange(width) < lengths[:, None]",
        "mask = np.arange(width) <= lengths[:, None]",
        ("tests/stream/test_batch_by_length.py", "tests/pipeline/test_sequence_arrays.py"),
    ),
    Mutation(
        "a row of the index is lost",
        "index/assembly.py",
        "rows = joined_ranges(first_extent[chosen], counts)",
        "rows = joined_ranges(first_extent[chosen], counts := counts - (counts > 1))",
        ("tests/formats/test_index_join.py", "tests/stream/test_dataset.py"),
    ),
    Mutation(
        "a sample is looked up in the extent before its own",
        "index/table.py",
        'extents = np.searchsorted(index.extent_first_sample, ids, side="right") - 1\n    first',
        "extents = np.maximum(np.searchsorted(index.extent_first_sample, ids) - 1, 0)\n    first",
        ("tests/formats/test_index.py",),
    ),
    Mutation(
        "the border of a split moves",
        "stream/choosing/hash_splits.py",
        "edges = [int(end * 2**64) for end",
        "edges = [int(end * 2**64 * 31 // 32) for end",
        ("tests/stream/test_hash_splits.py",),
    ),
    Mutation(
        "the last bytes of a shard are not verified",
        "verify/shard_checks.py",
        "for span in _spans(opened, shard, *extents):",
        "for span in _spans(opened, shard, extents[0], extents[1] - 1):",
        ("tests/verify/test_soundness.py",),
    ),
    Mutation(
        "a running epoch reads new shards",
        "stream/verbs/growth_verbs.py",
        "border = epoch + (number > 0)",
        "border = epoch",
        ("tests/stream/generations/test_extended.py",),
    ),
    Mutation(
        "another subset of the shards is tried for the dataset of a state",
        "indexing/generations/subset_of_shards.py",
        "numbers = order[: borders[-1]]",
        "numbers = order[-borders[-1] :]",
        ("tests/stream/generations/test_resumed_on_more_shards.py",),
    ),
    Mutation(
        "a rank reads the new shards that it sees itself",
        "stream/generations/agreed_datasets.py",
        "return _as_decided(opened, latest, decided, look)",
        "return latest",
        ("tests/stream/generations/test_followed.py",),
    ),
]


class _LastStarted:
    """Writes the name of each test into a file when it starts: with -x, the last one has failed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_sessionstart(self) -> None:
        """Take the first example that fails: looking for the smallest takes longer than all else."""
        from hypothesis import Phase, settings  # not before pytest has prepared it

        settings.register_profile("mutations", settings.default, phases=(Phase.explicit, Phase.generate))
        settings.load_profile("mutations")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Before each test."""
        self._path.write_text(nodeid, encoding="utf-8")


class Outcome(NamedTuple):
    """Of the tests on one state of the copy: the exit code of pytest, the last test, and the seconds."""

    code: int
    test: str
    seconds: float
    output: str


def run_tests(copy: Path, tests: Sequence[str]) -> Outcome:
    """Run tests of the copy until one fails."""
    started = copy / "last-started"
    started.write_text("", encoding="utf-8")
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutations", "--in-copy", str(started), *tests],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - began
    return Outcome(done.returncode, started.read_text(encoding="utf-8"), seconds, done.stdout + done.stderr)


def in_copy(started: str, tests: Sequence[str]) -> int:
    """Run tests in the process of a copy, once it is clear that the copy is what they import."""
    import shoal

    if HOME not in Path(shoal.__file__).parents:
        sys.stderr.write(f"{shoal.__file__} is not of {HOME}\n")
        return pytest.ExitCode.INTERNAL_ERROR
    options = ["-x", "-q", "-p", "no:cacheprovider", "--timeout", _SECONDS_FOR_A_TEST]
    return int(pytest.main([*options, *tests], plugins=[_LastStarted(Path(started))]))


def write_source(path: Path, text: str) -> None:
    """Write a module, and forget what was compiled of it: a new text may have the size and second of the old one."""
    path.write_text(text, encoding="utf-8")
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def show(*cells: object) -> None:
    """Print a row of the table."""
    sys.stdout.write("{:<58} {:>6}  {}\n".format(*cells))
    sys.stdout.flush()


def main(words: Sequence[str]) -> int:
    """Try the mutations whose names hold one of the words; 1 unless each is noticed."""
    chosen = [mutation for mutation in MUTATIONS if not words or any(word in mutation.name for word in words)]
    num_wrong = 0
    noticing: list[str] = []
    with tempfile.TemporaryDirectory(prefix="shoal-mutations-") as made:
        copy = Path(made).resolve()
        for name in ("src", "tests"):
            shutil.copytree(HOME / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(HOME / "pyproject.toml", copy)
        show("mutation", "s", "noticed by")
        for mutation in chosen:
            path = copy / "src" / "shoal" / mutation.file
            before = path.read_text(encoding="utf-8")
            try:
                write_source(path, mutation.mutated())
            except ValueError as error:
                num_wrong += 1
                show(mutation.name, "-", error)
                continue
            outcome = run_tests(copy, mutation.tests)
            write_source(path, before)
            is_noticed = outcome.code == pytest.ExitCode.TESTS_FAILED and outcome.test != ""
            num_wrong += not is_noticed
            if is_noticed:
                noticing.append(outcome.test)
            elif outcome.code != pytest.ExitCode.OK:
                sys.stdout.write(outcome.output[-2000:])
            show(mutation.name, f"{outcome.seconds:.1f}", outcome.test if is_noticed else "NOT NOTICED")
        if noticing:
            sound = run_tests(copy, list(dict.fromkeys(noticing)))
            show(
                "none: all of these tests", f"{sound.seconds:.1f}", "pass" if not sound.code else f"FAIL: {sound.test}"
            )
            num_wrong += sound.code != pytest.ExitCode.OK
    sys.stdout.write(f"{len(noticing)} of {len(chosen)} mutations are noticed\n")
    return int(num_wrong > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--in-copy"]:
        raise SystemExit(in_copy(sys.argv[2], sys.argv[3:]))
    raise SystemExit(main(sys.argv[1:]))
