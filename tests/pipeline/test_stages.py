from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest

from shoal.errors import UsageError
from shoal.pipeline.stages.chosen_fields import Rename, SelectColumns, ToTuple
from shoal.pipeline.stages.decode import Decode
from shoal.pipeline.stages.map_and_filter import Filter, Map
from shoal.pipeline.stages.running import run_stages
from shoal.pipeline.stages.stage import DROPPED, Stage, verb_of
from shoal.pipeline.stages.with_ids import WithIds


def run(stage: Stage, sample: Any) -> Any:
    return run_stages([stage], sample, 7, index=None)


def test_stages_leave_the_sample_they_were_given_alone() -> None:
    sample = {"a": 1, "b.txt": b"2"}
    for stage in (WithIds(), Rename({"c": "a"}), SelectColumns(("a",)), ToTuple(("a",)), Decode(())):
        run(stage, sample)
        assert sample == {"a": 1, "b.txt": b"2"}


def test_nothing_runs_after_a_filter_said_no() -> None:
    stages: list[Stage] = [Filter(lambda sample: sample > 3), Map(lambda sample: 1 / 0)]
    assert run_stages(stages, 3, 0, index=None) is DROPPED
    with pytest.raises(ZeroDivisionError) as caught:
        run_stages(stages, 4, 17, index=None)
    assert "id 17" in caught.value.__notes__[0]


def test_with_ids() -> None:
    assert run(WithIds(), {"a": 1}) == {"a": 1, "__id__": 7, "__epoch__": 0}
    assert run(WithIds(3), {"a": 1, "__id__": 7}) == {"a": 1, "__id__": 7, "__epoch__": 3}
    ids: Any = np.array([4, 2])  # as stages of batches get them
    assert WithIds()({"__id__": ids.copy()}, ids)["__id__"] is ids
    for own in (3, "7", b"7", [7, 8]):
        with pytest.raises(UsageError, match="the samples have a field of that name") as caught:
            run(WithIds(), {"a": 1, "__id__": own})
        assert "rename" in caught.value.hint


@pytest.mark.parametrize(
    ("names", "renamed"),
    [
        ({"image": "jpg;jpeg;png"}, {"image": 2, "png": 1, "cls": 3}),
        ({"image": "png", "label": "cls"}, {"image": 1, "label": 3, "jpeg": 2}),
        ({"cls": "png"}, {"cls": 1, "jpeg": 2}),
        ({"png": "cls", "cls": "png"}, {"png": 3, "cls": 1, "jpeg": 2}),
        ({"a": "cls", "b": "cls"}, {"a": 3, "b": 3, "png": 1, "jpeg": 2}),
        ({"cls": "cls"}, {"cls": 3, "png": 1, "jpeg": 2}),
    ],
)
def test_rename(names: dict[str, str], renamed: dict[str, int]) -> None:
    assert run(Rename(names), {"png": 1, "jpeg": 2, "cls": 3}) == renamed


def test_a_missing_field_is_named_with_those_there_are() -> None:
    for stage in (Rename({"x": "jpg;png"}), SelectColumns(("jpg;png",)), ToTuple(("jpg;png",))):
        with pytest.raises(UsageError, match=r"needs the field 'jpg;png'; this sample has 'a', 'b'") as caught:
            run(stage, {"a": 1, "b": 2})
        assert 'alternatives are separated by ";"' in caught.value.hint


def test_stages_of_fields_refuse_what_has_none() -> None:
    for stage in (Rename({"x": "a"}), SelectColumns(("a",)), ToTuple(("a",)), WithIds(), Decode(())):
        with pytest.raises(UsageError, match="needs samples that are dicts; got tuple"):
            run(stage, (1, 2))


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def test_decode_knows_common_suffixes_and_leaves_the_rest() -> None:
    sample = {
        "__key__": "k",
        "json": b'{"a": [1]}',
        "meta.json": b"[2]",
        "txt": "é".encode(),
        "cls": b"12\n",
        "npy": npy(np.arange(3)),
        "xyz": b"?",
        "number": 5,
    }
    got = run(Decode(()), sample)
    assert got.pop("npy").tolist() == [0, 1, 2]
    assert got == {
        "__key__": "k",
        "json": {"a": [1]},
        "meta.json": [2],
        "txt": "é",
        "cls": 12,
        "xyz": b"?",
        "number": 5,
    }


def test_decode_never_runs_pickles() -> None:
    with pytest.raises(UsageError, match="can run any code") as caught:
        run(Decode(()), {"npy": npy(np.array([{}], dtype=object))})
    assert "allow_pickle=True" in caught.value.hint


def test_later_decoders_win_and_pickle_along() -> None:
    decode = Decode(("pil", {"txt": len}))
    assert run(decode, {"txt": b"1234"}) == {"txt": 4}
    copy = pickle.loads(pickle.dumps(decode))
    assert repr(copy) == repr(decode)
    assert run(copy, {"txt": b"1234"}) == {"txt": 4}


def test_an_image() -> None:
    image = pytest.importorskip("PIL.Image").new("RGB", (3, 2), (255, 0, 7))
    stream = io.BytesIO()
    image.save(stream, "png")
    sample = {"seg.png": stream.getvalue()}
    assert run(Decode(("pil",)), sample)["seg.png"].size == (3, 2)
    array = run(Decode(("rgb8",)), sample)["seg.png"]
    assert array.shape == (2, 3, 3)
    assert array[0, 0].tolist() == [255, 0, 7]
    assert run(Decode(()), sample) == sample


def test_stages_are_named_as_they_are_called() -> None:
    stages = (WithIds(), Rename({"x": "a"}), SelectColumns(("a", "b")), ToTuple(("a",)))
    assert list(map(repr, stages)) == ["with_ids()", "rename(x='a')", "columns('a', 'b')", "to_tuple('a')"]
    assert [verb_of(stage) for stage in stages] == ["with_ids", "rename", "columns", "to_tuple"]
