"""Values of the wrong type for each argument of each public method: an error that says what was asked, at once."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.stream.test_every_method import ASKED, VERBS, call, check_words, home, mixture

import shoal
from shoal.errors import StateError, UsageError
from shoal.live.live_dataset import LiveDataset
from shoal.stream.dataset import Dataset

__all__ = ["home"]

pytestmark = [
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
    pytest.mark.filterwarnings("ignore:samples of:UserWarning"),
]

SUBJECTS: dict[str, Callable[[Path], Any]] = {
    "dataset": lambda home: shoal.open(home / "web"),
    "shuffled": lambda home: shoal.open(home / "web").shuffle(seed=0),
    "mixture": lambda home: mixture(home, missing="none"),
    "packed": lambda home: shoal.open(home / "web").pack_sequences(16),
    "packed mixture": lambda home: mixture(home, missing="none").pack_sequences(16),
    "packed as they come": lambda home: shoal.open(home / "web").pack_sequences(16, lengths=None),
    "batches": lambda home: shoal.open(home / "web").shuffle(seed=0).batch(4),
    "live": lambda _: shoal.from_iterable([{"tokens": 1, "label": 2, "text": "x"}] * 9),
}


class Odd:
    """Something that no argument is."""


WRONG: dict[str, Any] = {
    "none": None,
    "text": "nothing",
    "bytes": b"x",
    "int": 7,
    "float": 1.5,
    "nan": float("nan"),
    "list": ["tokens", "num_tokens"],
    "list of lists": [[1], [2]],
    "set": {1, 2},
    "dict": {"a": 1},
    "dict of numbers": {1: None},
    "array": np.arange(3),
    "table": np.zeros((2, 2)),
    "object": Odd(),
    "type": int,
}
FITS: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "None": (type(None),),
    "Mapping": (dict,),
}


def may_fit(value: Any, annotation: str) -> bool:
    """Return True if the signature does not rule the value out."""
    kinds = [each.strip().split("[")[0] for each in annotation.split("|")]
    if any(kind not in FITS for kind in kinds):
        return True
    return isinstance(value, tuple(one for kind in kinds for one in FITS[kind]))


def arguments_of(subject: Any, name: str, home: Path) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments that the method takes, of which the test exchanges one."""
    values, named = ({**VERBS, **ASKED}.get(name) or [call()])[0]
    if name == "map":
        values = (lambda sample, _=None: sample,)
    elif name == "tokenize":
        values = (str(home / "tokenizer.json"),)
    elif name in ("load_state_dict", "check_certificate"):
        values = ({},)
    elif isinstance(subject, LiveDataset) and name == "shuffle":
        named = {}
    return list(values), dict(named)


def exchanged(function: Any, values: list[Any], named: dict[str, Any], wrong: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield each parameter with the arguments that have the wrong value there."""
    for place, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.kind is parameter.VAR_POSITIONAL:
            yield parameter, [wrong], named
        elif parameter.kind is parameter.VAR_KEYWORD:
            yield parameter, values, {**named, "label": wrong}
        elif place < len(values):
            yield parameter, [*values[:place], wrong, *values[place + 1 :]], named
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            yield parameter, [wrong], named
        else:
            yield parameter, values, {**named, parameter.name: wrong}


def used(found: Any) -> None:
    """Read from what a method returned, where an error may come later."""
    if isinstance(found, Dataset | LiveDataset):
        repr(found)
        list(itertools.islice(iter(found), 2))


PLACES = [
    (subject, name)
    for subject in SUBJECTS
    for name in sorted({*VERBS, *ASKED, "certificate", "state_dict", "stats"} - {"to_hf"})
]


@pytest.mark.parametrize(("subject", "name"), PLACES, ids=lambda text: text.replace(" ", "-"))
def test_a_wrong_argument_is_told_or_right(
    subject: str, name: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a wrong text may be the name of a file
    failures, ds = [], SUBJECTS[subject](home)
    if not hasattr(type(ds), name):
        pytest.skip("has no such method")
    values, named = arguments_of(ds, name, home)
    for label, wrong in WRONG.items():
        for parameter, *given in exchanged(getattr(ds, name), values, named, wrong):
            where = f"{name}({parameter.name}={label})"
            try:
                found = getattr(ds, name)(*given[0], **given[1])
                if parameter.name != "function":  # whatever can be called is one
                    used(found)
            except StateError:
                pass
            except UsageError as error:
                check_words(error)
            except Exception as error:  # noqa: BLE001  # all of them are shown at once
                failures.append(f"{where}: {type(error).__name__}: {error}")
            else:
                if not may_fit(wrong, str(parameter.annotation)):
                    failures.append(f"{where}: was taken, and the signature says {parameter.annotation}")
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("verb", ["columns", "to_tuple"])
def test_a_list_of_names_is_told_how_to_call_the_verb(verb: str, home: Path) -> None:
    for ds in (shoal.open(home / "web"), shoal.from_iterable([{"tokens": 1}])):
        for names in (["tokens", "label"], ("tokens", "label"), np.array(["tokens", "label"])):
            with pytest.raises(UsageError, match=rf"{verb}\(\) takes names as separate arguments: each") as told:
                getattr(ds, verb)(names)
            assert told.value.hint == f"{verb}('tokens', 'label')"
