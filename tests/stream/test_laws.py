"""The laws of every stream, whatever it is made of, read by and cut into.

Every sample comes once through any chain of resumes, at any world size and batch size. A resumed run is the run that
was not stopped. A position that is sought is the one that a scan comes to. `tests/stream/laws.py` has the kinds of
streams; here each two values of the axes below occur together in some case.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from tests.stream.laws import FORMATS, KINDS, ORDERS, Kind, open_sources, repeats_in, tokens_in

import shoal
from shoal.errors import UsageError
from shoal.indexing.jobs import shared_indexing
from shoal.storage.files.local_store import LocalStore
from shoal.stream.dataset import Dataset
from shoal.stream.iterating import shares

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

BATCHINGS: dict[str, dict[str, Any] | None] = {
    "single": None,
    "1": {"size": 1},
    "7": {"size": 7},
    "5 padded": {"size": 5, "remainder": "pad"},
    "6 or dropped": {"size": 6, "remainder": "drop"},
    "34 in all": {"global_batch_size": 34},
    "18 in all, padded": {"global_batch_size": 18, "remainder": "pad"},
}


@dataclass(frozen=True)
class Leg:
    """A run at a world size, up to a number of steps or to the end of the epoch."""

    world_size: int
    batching: str
    steps: int | None

    @property
    def is_single(self) -> bool:
        return BATCHINGS[self.batching] is None

    @property
    def drops(self) -> bool:
        return "dropped" in self.batching

    def ranks(self, kind: Kind, stream: Dataset, state: dict[str, Any]) -> list[Dataset]:
        """Each rank of the run, behind the state."""
        arguments = BATCHINGS[self.batching]
        if kind.batching is not None and arguments is not None:
            arguments = {**arguments, **kind.batching, **({"steps": "apart"} if kind.fills else {})}
            stream = stream.batch(**arguments)
        ranks = [stream.partition(rank=rank, world_size=self.world_size) for rank in range(self.world_size)]
        for rank in ranks:
            rank.load_state_dict(json.loads(json.dumps(state)))
        return ranks

    def global_batch(self, kind: Kind) -> int:
        """Positions of a step of all ranks."""
        arguments = None if kind.batching is None else BATCHINGS[self.batching]
        if arguments is None:
            return self.world_size
        return int(arguments.get("global_batch_size", 0)) or int(arguments["size"]) * self.world_size


def first_state(stream: Dataset, epoch: int) -> dict[str, Any]:
    stream.set_epoch(epoch)
    return stream.state_dict()


def whole_epoch(kind: Kind, stream: Dataset, epoch: int) -> dict[str, Any]:
    """The certificate of an epoch that was not stopped."""
    (rank,) = Leg(1, "7", None).ranks(kind, stream, first_state(stream, epoch))
    for _ in rank:
        pass
    certificate: dict[str, Any] = rank.certificate()["epochs"][str(epoch)]
    return certificate


def in_step(kind: Kind, stream: Dataset, legs: list[Leg], epoch: int) -> None:
    """Every step delivers the positions that are next, all ranks have one small state, and no position is left."""
    by_position = kind.items_by_position(stream, epoch)
    items, places, done = [*by_position.values()], [*by_position], 0
    assert Counter(itertools.chain(*items)) == kind.items_of_epoch(stream, epoch)
    state, certificates = first_state(stream, epoch), []
    for leg in legs:
        global_batch = leg.global_batch(kind)
        ranks = leg.ranks(kind, stream, state)
        assert all(rank.state_dict() == state for rank in ranks)
        runs = [iter(rank) for rank in ranks]
        steps_left = 10**6 if leg.steps is None else leg.steps
        while steps_left:
            steps_left -= 1
            batches = [batch for run in runs if (batch := next(run, None)) is not None]
            assert leg.is_single or len(batches) in (0, leg.world_size)
            while leg.is_single and kind.is_filtered and done < len(items) and not items[done]:
                done += 1  # a single sample that a filter drops is no step
            if batches:
                delivered = Counter(item for batch in batches for item in kind.items(batch))
                assert delivered == Counter(itertools.chain(*items[done : done + global_batch]))
                if kind.batching is not None and not leg.is_single and not kind.is_filtered:
                    check_repeats(leg, [repeats_in(batch) for batch in batches], len(items) - done, global_batch)
                done = min(done + global_batch, len(items))
            if leg.is_single and len(batches) not in (0, leg.world_size):
                steps_left += 1  # the epoch ends within this step, and its state is the next epoch's
                continue
            state = ranks[0].state_dict()
            assert all(each.state_dict() == state for each in (*ranks, *runs))
            assert len(json.dumps(state)) < 1000
            assert (
                not batches
                or done == len(items)
                or leg.drops
                or state["position"] in (places[done], places[done - 1] + 1)
            )
            if not batches:
                break
        for run in runs:
            run.close()
        certificates += [rank.certificate() for rank in ranks]
        if state["epoch"] != epoch:
            break
    assert (state["epoch"], state["position"]) == (epoch + 1, 0)
    if leg.drops and kind.batching is not None:
        assert len(items) - done < global_batch
    else:
        assert done == len(items)
        certificate = shoal.merge_certificates(certificates)
        assert certificate["epochs"][str(epoch)] == whole_epoch(kind, stream, epoch)
        if not kind.is_filtered:
            stream.check_certificate(certificate)


def check_repeats(leg: Leg, marks: list[Any], num_left: int, global_batch: int) -> None:
    """Only the last step has repeats, as many as its remainder says, and ranks share it evenly."""
    num_repeats, sizes = sum(int(each.sum()) for each in marks), [len(each) for each in marks]
    assert max(sizes) - min(sizes) <= 1
    if num_left >= global_batch:
        assert num_repeats == 0
    elif "padded" in leg.batching:
        assert num_repeats == global_batch - num_left
    else:
        assert num_repeats == max(0, leg.world_size - num_left)


def epochs_of(rank: Dataset, last_epoch: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """The epoch and each batch of a rank that fills its batches, up to the end of an epoch."""
    while (epoch := rank.epoch) <= last_epoch:
        for batch in rank:
            yield epoch, batch


def apart(kind: Kind, stream: Dataset, legs: list[Leg], epoch: int) -> None:
    """Ranks that fill their batches are at different positions, and at times in different epochs."""
    last_epoch = epoch if kind.comes_again else epoch + 1
    delivered = {each: Counter[int]() for each in range(epoch, last_epoch + 1)}
    state, certificates, num_again = first_state(stream, epoch), [], 0
    for leg in legs:
        states = []
        for rank in leg.ranks(kind, stream, state):
            for step, (of_epoch, batch) in enumerate(epochs_of(rank, last_epoch)):
                delivered[of_epoch].update(kind.items(batch))
                if step + 1 == leg.steps:
                    break
            states.append(rank.state_dict())
            certificates.append(rank.certificate())
        num_again += leg.world_size * kind.comes_again
        state = shoal.merge_states(states)
        if state["epoch"] > last_epoch:
            break
    assert (state["epoch"], state["position"]) == (last_epoch + 1, 0)
    certificate = shoal.merge_certificates(certificates)["epochs"]
    for of_epoch, items in delivered.items():
        expected = kind.items_of_epoch(stream, of_epoch)
        assert not expected - items
        assert len({item // 100 for item in items - expected}) <= num_again
        if not kind.comes_again:
            assert items == expected
            assert certificate[str(of_epoch)] == whole_epoch(kind, stream, of_epoch)


def each_comes_once(kind: Kind, stream: Dataset, legs: list[Leg], epoch: int) -> None:
    """Through any chain of resumes, at any world size and batch size."""
    (apart if kind.fills else in_step)(kind, stream, legs, epoch)


def resumed_is_uninterrupted(kind: Kind, stream: Dataset, legs: list[Leg], epoch: int) -> None:
    """At the same world size and batch size: from the state of each rank, or from one that all of them merge to."""
    first = legs[0]

    def told(batch: dict[str, Any]) -> Any:
        tokens = batch["tokens"].tolist() if kind.items is tokens_in else None
        return kind.items(batch), None if first.is_single else repeats_in(batch).tolist(), tokens

    start = first_state(stream, epoch)
    uninterrupted = [[told(batch) for batch in rank] for rank in first.ranks(kind, stream, start)]
    parts: list[list[Any]] = [[] for _ in uninterrupted]
    states = [start] * first.world_size
    for number, leg in enumerate(legs):
        ranks = first.ranks(kind, stream, start)
        for rank, state, part in zip(ranks, states, parts, strict=True):
            rank.load_state_dict(json.loads(json.dumps(state)))
            if rank.epoch == epoch:
                part += [told(batch) for batch in itertools.islice(rank, leg.steps)]
        states = [rank.state_dict() for rank in ranks]
        if number % 2 and all(len(part) < len(whole) for part, whole in zip(parts, uninterrupted, strict=True)):
            states = [shoal.merge_states(states)] * first.world_size
    assert parts == uninterrupted


def sought_is_scanned(kind: Kind, stream: Dataset, legs: list[Leg], epoch: int) -> None:
    """A state that is made for a position gives what a scan gives from there on, one by one and in batches."""
    by_position = kind.items_by_position(stream, epoch)
    scan = [kind.items(each) for each in ranks_alone(kind, stream, first_state(stream, epoch))]
    assert scan == [items for items in by_position.values() if items]
    for leg, position in zip(legs, (min(1, max(by_position)), len(by_position) // 2, max(by_position)), strict=False):
        state = stream.state_at(position, epoch=epoch)
        rest = [items for place, items in by_position.items() if place >= position and items]
        assert [kind.items(each) for each in ranks_alone(kind, stream, state)] == rest
        if not leg.drops:
            batches = itertools.chain(*leg.ranks(kind, stream, state))
            assert Counter(item for each in batches for item in kind.items(each)) == Counter(itertools.chain(*rest))


def ranks_alone(kind: Kind, stream: Dataset, state: dict[str, Any]) -> Dataset:
    """The stream on one rank, without batches."""
    (rank,) = Leg(1, "single", None).ranks(kind, stream, state)
    return rank


LAWS: dict[str, Callable[[Kind, Dataset, list[Leg], int], None]] = {
    "once": each_comes_once,
    "resumed": resumed_is_uninterrupted,
    "sought": sought_is_scanned,
}
AXES: dict[str, tuple[Any, ...]] = {
    "kind": tuple(KINDS),
    "law": tuple(LAWS),
    "format": FORMATS,
    "order": tuple(ORDERS),
    "wing": ("local", "threads"),
    "batching": tuple(BATCHINGS),
    "worlds": ((1,), (2, 5), (3, 1, 4), (1, 17, 2)),
    "span": (1, 20, 1 << 15),
}
"""`wing`: the consumer reads, or threads as for remote stores. `span`: positions that are planned at once."""
Case = dict[str, Any]


def is_possible(case: Case) -> bool:
    kind = KINDS[case["kind"]]
    if case["format"] not in kind.formats or case["order"] not in kind.orders:
        return False
    # A stream that makes its batches has no other; one that fills or balances them needs some.
    if (kind.batching is None or kind.batching or kind.fills) and (case["batching"] == "single") != (
        kind.batching is None
    ):
        return False
    if kind.fills and (case["law"] == "sought" or (case["law"] == "once" and "dropped" in case["batching"])):
        return False  # no state is made for a position, and a rank drops what only it knows
    # Ranks of single samples have no state in the middle of an epoch where a filter leaves some out.
    return not (kind.is_filtered and case["batching"] == "single" and case["worlds"] != (1,))


def pairs_of(case: Case) -> set[tuple[str, Any, str, Any]]:
    return {(one, case[one], other, case[other]) for one, other in itertools.combinations(AXES, 2)}


def pairwise() -> list[Case]:
    """Few possible cases in which each two values of two axes occur, where they can."""
    generator, cases = random.Random(0), list[Case]()
    missing = {
        (one, value, other, another)
        for one, other in itertools.combinations(AXES, 2)
        for value, another in itertools.product(AXES[one], AXES[other])
    }
    for wanted in sorted(missing, key=str):
        if wanted in missing:
            drawn = ({name: generator.choice(values) for name, values in AXES.items()} for _ in range(60))
            given = {wanted[0]: wanted[1], wanted[2]: wanted[3]}
            possible = [case for each in drawn if is_possible(case := each | given)]
            if possible:
                cases.append(max(possible, key=lambda case: len(pairs_of(case) & missing)))
                missing -= pairs_of(cases[-1])
    return cases


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    return open_sources(tmp_path_factory.mktemp("sources"))


def check(sources: dict[str, Dataset], case: Case, legs: list[Leg], epoch: int) -> None:
    kind = KINDS[case["kind"]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "reads_ahead", case["wing"] == "local")
        patch.setattr(shares, "span_positions", lambda *_: case["span"])
        for name in ("_LEAST_WAIT_SECONDS", "_UNKNOWN_WAIT_SECONDS"):
            patch.setattr(shared_indexing, name, 0.05)  # ranks of this process wait for no other
        stream = kind.make(sources[case["format"]], ORDERS[case["order"]])
        LAWS[case["law"]](kind, stream, legs, epoch)


def case_name(case: Case) -> str:
    return "-".join(str(case[name]).replace(" ", "_") for name in AXES)


@pytest.mark.parametrize("case", pairwise(), ids=case_name)
def test_each_law_holds(sources: dict[str, Dataset], case: Case) -> None:
    generator = random.Random(case_name(case))
    batchings = [case["batching"]]
    while len(batchings) < len(case["worlds"]):
        batching = generator.choice(AXES["batching"])
        batchings += [batching] if is_possible({**case, "batching": batching}) else []
    stops = [generator.randrange(5) for _ in case["worlds"][1:]]
    legs = [Leg(*each) for each in zip(case["worlds"], batchings, [*stops, None], strict=True)]
    check(sources, case, legs, generator.randrange(2))


@st.composite
def drawn_cases(draw: st.DrawFn) -> tuple[Case, list[Leg]]:
    """Any possible case, and legs of its batching and of others."""
    axes = {name: st.sampled_from(values) for name, values in AXES.items()}
    case = draw(st.fixed_dictionaries(axes).filter(is_possible))
    allowed = [batching for batching in BATCHINGS if is_possible({**case, "batching": batching})]
    worlds = st.integers(1, 17) if len(case["worlds"]) > 1 else st.just(1)
    leg = st.builds(Leg, worlds, st.sampled_from(allowed), st.integers(0, 7))
    last = st.builds(Leg, worlds, st.just(case["batching"]), st.none())
    return case, [*draw(st.lists(leg, max_size=4)), draw(last)]


@pytest.mark.drill
@pytest.mark.timeout(1200)
@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(drawn_cases(), st.integers(0, 1))
def test_each_law_holds_in_any_case(sources: dict[str, Dataset], drawn: tuple[Case, list[Leg]], epoch: int) -> None:
    try:
        check(sources, *drawn, epoch)
    except UsageError as error:
        if "keeps none of the" not in error.message:
            raise
        reject()  # a rank that keeps nothing of a whole epoch is refused, and few samples are left for some ranks
