"""Which figures are wanted? A line for each goal: measured, wanted, met or short, and what stands beside it.

Beside each goal stand the best peer that mixes as well (at least 40 of 47 classes in 64 samples), the best peer of all
however it mixes, and the limit of the same work in a plain loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ahead import MIXED_CLASSES, best_of
from rows import FROM_99, NARROW, WIDE, Figures, Measured, Row, of_workload, shown


class Quantity(NamedTuple):
    """What is compared of a row, and whether less of it is better."""

    unit: str
    value: Callable[[Measured], float]
    is_less_better: bool = False

    def goodness(self, each: Measured) -> float:
        """Return a number that is larger where a row is better."""
        return -self.value(each) if self.is_less_better else self.value(each)

    def told(self, each: Measured) -> str:
        """Return the figure of a row as text, and how the row mixes if it does not."""
        mixes = each.classes is None or each.classes >= MIXED_CLASSES
        return shown(self.value(each)) + ("" if mixes else f" ({each.classes:.1f} classes)")


RATE = Quantity("samples/s", lambda each: each.samples_per_second)
SECONDS = Quantity("s", lambda each: each.seconds, is_less_better=True)
CPU = Quantity("s of CPU a GB", lambda each: each.cpu_seconds_per_gb, is_less_better=True)
MEMORY = Quantity("MB", lambda each: each.peak_mib * 2**20 / 1e6, is_less_better=True)

MIXING, ANY = "the fastest that mixes", "the fastest of all"


class Goal(NamedTuple):
    """One wanted figure of the best of some rows: ``times`` the figure of ``of``, ``plus`` a constant.

    ``of`` is a row, or `MIXING` or `ANY` of the peers of the same work; without it, ``plus`` alone is wanted.
    """

    title: str
    rows: tuple[Row, ...]
    quantity: Quantity = RATE
    times: float = 1.0
    of: Row | str = ""
    plus: float = 0.0
    limits: tuple[Row, ...] = ()


class Outcome(NamedTuple):
    """A goal beside its figures, each as text; ``is_met`` is None if a figure is missing."""

    title: str
    measured: str
    wanted: str
    mixing: str
    fastest: str
    limits: str
    is_met: bool | None

    @property
    def verdict(self) -> str:
        """Met, short or not measured."""
        return "not measured" if self.is_met is None else "met" if self.is_met else "short"

    def line(self) -> str:
        """As it is printed."""
        beside = [f"equal mixing: {self.mixing}", f"fastest: {self.fastest}", f"limit: {self.limits}"]
        beside = [part for part in beside if not part.endswith(": ")]
        return "; ".join([f"{self.title}: {self.measured}, wanted {self.wanted}: {self.verdict.upper()}", *beside])


def _limit(workload: str, variant: str) -> Row:
    return Row(workload, "one", "limit", variant)


_READV = (_limit("W1", "readv"), _limit("W1", "plain Python"))
_DOCUMENTS = (_limit("W3", "readv"), _limit("W3", "plain Python"))
_ARROW = (_limit("W3", "pyarrow"),)
_TURBO = _limit("W4", "libjpeg-turbo in threads")
_FORKED = (Row("first", "near", "limit", "two empty workers, forked", 2),)
_GETS = (_limit("far", "raw GETs"),)
_LITDATA = Row("far", "one", "litdata", "all keys")
_INDEXED = Row("growing", "epoch", "shoal", "indexed")


def _shoal(workload: str, way: str, variant: str = "mds", *workers: int) -> tuple[Row, ...]:
    return tuple(Row(workload, way, "shoal", variant, number) for number in workers or (0,))


GOALS = (
    Goal("first batch near, 2 workers", _shoal("first", "near", "mds", 2), SECONDS, plus=0.4, limits=_FORKED),
    Goal("first batch near, 2 workers, from 99 %", _shoal("first", "near", FROM_99, 2), SECONDS, plus=0.4,
         limits=_FORKED),
    Goal(
        "first batch of 4 ranks with 2 workers, no index", _shoal("growing", "job", "grow", 2), SECONDS,
        of=Row("growing", "job", "webdataset", "", 2), plus=1.0,
    ),
    Goal("W1 tokens, one by one", _shoal("W1", "one"), times=2, of=ANY, limits=_READV),
    Goal("W1 tokens, batches", _shoal("W1", "batches"), times=5, of=MIXING, limits=_READV),
    Goal("W1 tokens from tar, one by one", _shoal("W1", "one", "tar"), plus=150_000, limits=_READV),
    Goal("W1 tokens from tar, batches", _shoal("W1", "batches", "tar"), plus=250_000, limits=_READV),
    Goal("W2 blobs, one by one", _shoal("W2", "one"), times=1.5, of=MIXING, limits=(_limit("W2", "readv"),)),
    Goal("W2 blobs from tar, one by one", _shoal("W2", "one", "tar"), times=1.5, of=MIXING,
         limits=(_limit("W2", "readv"),)),
    Goal("W2 blobs from Parquet, one by one", _shoal("W2", "one", "parquet"), times=0.8, of=_limit("W2", "pyarrow")),
    Goal("W3 documents, one by one", _shoal("W3", "one"), times=1.5, of=ANY, limits=_DOCUMENTS),
    Goal("W3 documents, batches", _shoal("W3", "batches"), times=1.5, of=ANY, limits=_DOCUMENTS),
    Goal("W3 documents from Parquet, one by one", _shoal("W3", "one", "parquet"), plus=250_000, limits=_ARROW),
    Goal("W3 documents from Parquet, batches", _shoal("W3", "batches", "parquet"), plus=250_000, limits=_ARROW),
    Goal("W4 JPEGs, batches, by threads or workers", _shoal("W4", "batches", "tar", 0, 2), times=0.95, of=_TURBO),
    Goal("20 ms away, speed", _shoal("far", "one", NARROW), times=1.2, of=_LITDATA, limits=_GETS),
    Goal("20 ms away, memory", _shoal("far", "one", NARROW), MEMORY, times=0.2, of=_LITDATA),
    Goal("20 ms away, 100 KB, window of 16 MiB", _shoal("far", "one", NARROW), CPU, plus=2.0, limits=_GETS),
    Goal("20 ms away, chunks of 1 MiB, window of 64 MiB", _shoal("far", "one", WIDE), CPU, plus=1.3, limits=_GETS),
    Goal("first epoch without an index, fast network", _shoal("growing", "epoch", "grow"), times=0.8, of=_INDEXED),
    Goal("memory of an index of 3e8 samples", _shoal("index", "memory", ""), MEMORY, plus=1000),
)  # fmt: skip


def outcome_of(goal: Goal, figures: Figures) -> Outcome:
    """Return a goal beside its figures, as far as they were measured."""
    quantity = goal.quantity
    ours = max((figures[row.name] for row in goal.rows if row.name in figures), key=quantity.goodness, default=None)
    rows = _beside(goal, figures)
    peers = {name: best_of(rows, quantity.goodness, mixes=name is MIXING) for name in (MIXING, ANY)}
    wanted, told = _wanted(goal, figures, peers)
    limits = [figures[row.name] for row in goal.limits if row.name in figures]
    is_met = None
    if ours is not None and wanted is not None:
        value = quantity.value(ours)
        is_met = value <= wanted if quantity.is_less_better else value >= wanted
    return Outcome(
        goal.title,
        "" if ours is None else f"{quantity.told(ours)} {quantity.unit}",
        told,
        _peer(peers[MIXING], quantity) or ("none" if peers[ANY] and peers[ANY].classes else ""),
        _peer(peers[ANY], quantity),
        ", ".join(f"{each.row.variant} {quantity.told(each)}" for each in limits),
        is_met,
    )


def _beside(goal: Goal, figures: Figures) -> list[Measured]:
    """Return the rows of the same work: a first batch has the same number of workers, and begins at the same place."""
    row = goal.rows[0]
    rows = of_workload(figures, row.workload, row.way)
    if goal.quantity is not SECONDS:
        return rows
    is_late = row.variant == FROM_99
    return [each for each in rows if each.row.workers == row.workers and (each.row.variant == FROM_99) == is_late]


def _wanted(goal: Goal, figures: Figures, peers: dict[str, Measured | None]) -> tuple[float | None, str]:
    """Return the wanted figure, None if it is of a row that was not measured, and the figure as text."""
    quantity = goal.quantity
    bound = "at most" if quantity.is_less_better else "at least"
    if not goal.of:
        return goal.plus, f"{bound} {shown(goal.plus)} {quantity.unit}"
    of = peers[goal.of] if isinstance(goal.of, str) else figures.get(goal.of.name)
    name = goal.of if isinstance(goal.of, str) else goal.of.title
    name = (name if of is None else _peer(of, quantity)).removeprefix("limit, ")
    why = f"{name} + {shown(goal.plus)}" if goal.plus else f"{goal.times} x {name}"
    if of is None:
        return None, f"{bound} {why}"
    wanted = goal.times * quantity.value(of) + goal.plus
    return wanted, f"{bound} {shown(wanted)} {quantity.unit} = {why}"


def _peer(each: Measured | None, quantity: Quantity) -> str:
    return "" if each is None else f"{each.row.title} {quantity.told(each)}"


def rows_of_goals(figures: Figures) -> set[Row]:
    """Return the rows that goals name, and the peers beside them by figures of an earlier call."""
    rows: set[Row] = set()
    for goal in GOALS:
        beside, goodness = _beside(goal, figures), goal.quantity.goodness
        peers = (best_of(beside, goodness, mixes=True), best_of(beside, goodness))
        rows |= {*goal.rows, *goal.limits, *(each.row for each in peers if each is not None)}
        rows |= {goal.of} if isinstance(goal.of, Row) else set()
    return rows


def outcomes(figures: Figures) -> list[Outcome]:
    """Return all goals beside their figures."""
    return [outcome_of(goal, figures) for goal in GOALS]
